"""What follows llm_outputs, in one step: validated_results, quarantine, qa_samples, run_reports [batch × variant].

One step, because a run over many partitions hands no Output on, and Dagster would skip the steps after it.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from batch_assets.asset_keys import (
    FALLBACK_OUTPUTS,
    LLM_OUTPUTS,
    QA_SAMPLES,
    QUARANTINE,
    RESULT_ASSETS,
    RUN_REPORTS,
    VALIDATED_RESULTS,
    asset_key,
)
from batch_assets.assets.events import Finding, Stamp, emit
from batch_assets.assets.llm_outputs import OutputCheck, report_on, tabulate_failures
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.assets.qa_samples import write_qa_samples
from batch_assets.assets.run_reports import write_run_report
from batch_assets.assets.validated_results import Validated, validate
from batch_assets.core.errors import NotReadyError
from batch_assets.core.tasks import Task
from batch_assets.partitions import PartitionKey, output_partitions, parse_partition_key
from batch_assets.reports.run_report import RunReport
from batch_assets.resources import PLATFORM, Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.store.failures import Step, clear_failures, count_failure
from batch_assets.store.figures import load_quarantine
from batch_assets.works import build_work, is_current, look_up_fallback

ResultCheck = Callable[[Platform, PartitionWork, Validated], Finding]
SHOWN = 20


def build_results(
    task: Task,
    specs: Sequence[dg.AssetCheckSpec],
    checks: Sequence[ResultCheck],
    gates: Sequence[OutputCheck],
) -> dg.AssetsDefinition:
    """Build the step of one task. `gates` are the blocking checks of llm_outputs, held again where it is consumed."""

    @dg.multi_asset(
        name=f"{task.name}__results",
        specs=[_spec(task, name, upstream, words, kinds) for name, upstream, words, kinds in _ASSETS],
        partitions_def=output_partitions(task.name),
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1000),
        check_specs=specs,
        can_subset=True,
        required_resource_keys={PLATFORM},
    )
    def results(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(str(k)) for k in context.partition_keys]
        selected = {k.path[-1] for k in context.selected_asset_keys}
        stamps = follow(task, platform, partitions, checks, gates, selected, run_id=context.run.run_id)
        with outlast_lost_store(context, platform):
            yield from emit(context, task, stamps)

    return results


_ASSETS = (
    (
        VALIDATED_RESULTS,
        LLM_OUTPUTS,
        "One row per record whose answer is accepted: the answer's fields as typed columns, in Parquet.",
        {"pydantic", "pandera", "parquet"},
    ),
    (
        QUARANTINE,
        LLM_OUTPUTS,
        "One row per record without an accepted answer, with its reason: work for another model or a person.",
        {"sql"},
    ),
    (
        QA_SAMPLES,
        VALIDATED_RESULTS,
        "One row per sampled result: those of smallest seeded hash, stable and mergeable over batches.",
        {"sql"},
    ),
    (
        RUN_REPORTS,
        QA_SAMPLES,
        "One row per batch and variant: counts, tokens, seconds, rates, cost and latency.",
        {"sql"},
    ),
)


def _spec(task: Task, name: str, upstream: str, words: str, kinds: Set[str]) -> dg.AssetSpec:
    return dg.AssetSpec(
        asset_key(task, name),
        deps=[asset_key(task, name) for name in _list_upstream(task, upstream)],
        skippable=True,
        group_name=task.name,
        owners=list(task.owners),
        kinds=set(kinds),
        description=words,
    )


def _list_upstream(task: Task, upstream: str) -> Sequence[str]:
    """Return the assets that one of ours is made from: what is made of the outputs is made of the fallback's too."""
    return [LLM_OUTPUTS, FALLBACK_OUTPUTS] if task.fallbacks and upstream == LLM_OUTPUTS else [upstream]


def follow(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    checks: Sequence[ResultCheck],
    gates: Sequence[OutputCheck],
    selected: Set[str] = frozenset(RESULT_ASSETS),
    *,
    run_id: str,
) -> Iterator[Stamp]:
    """Make the results of finished output partitions; yield each asset's partition as it is made.

    A partition that isn't finished, or that a gate refuses, is passed over; NotReadyError names them at the end. A
    refusal is counted for the data version that was refused, so that nobody asks for the same again and again.
    """
    refused: list[str] = []
    for partition in partitions:
        work = build_work(task, platform, partition)
        state = is_current(platform, work) if work else None
        if work is None or state is None:
            refused.append(f"{partition}: llm_outputs is not up to date")
            continue
        fallback = look_up_fallback(task, platform, state)
        version = fallback.results_version(state) if fallback else state.data_version
        report = report_on(platform, work, work.variant.model)
        failed = [f.name for f in (gate(platform, work, report) for gate in gates) if not f.passed]
        if not failed:
            stamps = list(_make(platform, work, report, version, checks))
            failed = [f"{s.asset}.{f.name}" for s in stamps for f in s.findings if f.is_blocking and not f.passed]
            yield from (s for s in stamps if s.asset in selected)
        with platform.database.write() as connection:
            if failed:
                why = f"{', '.join(failed)} fails"
                refused.append(f"{partition}: {why}")
                count_failure(connection, task.name, Step.RESULTS, str(partition), version, run_id, why)
            else:
                clear_failures(connection, task.name, Step.RESULTS, [str(partition)])
    if refused:
        raise NotReadyError("; ".join(refused))


def _make(
    platform: Platform, work: PartitionWork, report: RunReport, version: str, checks: Sequence[ResultCheck]
) -> Iterator[Stamp]:
    partition = str(PartitionKey(work.batch, work.variant.key))
    made = validate(platform, work)
    findings = [check(platform, work, made) for check in checks]
    report = report.model_copy(
        update={"labels": made.labels, "fallback_ok": made.frame.height - made.own.height}
    )  # fmt: skip
    validated = Stamp(
        asset=VALIDATED_RESULTS,
        partition=partition,
        data_version=version,
        metadata={"rows": made.frame.height},
        findings=findings,
    )
    if validated.is_held:  # what is there stays: a frame that breaks its contract doesn't take its place
        yield validated
        return
    path = platform.frames.write(made.frame, work.task.name, VALIDATED_RESULTS, work.batch, work.variant.key)
    yield replace(validated, metadata={"rows": made.frame.height, "frame": dg.MetadataValue.path(str(path))})
    sampled = write_qa_samples(platform, work, made.own)
    write_run_report(platform, work, report, version)
    answered = set(made.frame.filter(pl.col("is_fallback"))["item_id"])
    with platform.database.read() as connection:
        reasons, first = load_quarantine(connection, work.key, work.batch, answered, SHOWN)
    by_asset: dict[str, dict[str, Any]] = {
        QUARANTINE: {
            "rows": sum(reasons.values()),
            **({"answered_by_fallback": len(answered)} if work.task.fallbacks else {}),
            "reasons": dg.MetadataValue.json(reasons),
            "first_failures": tabulate_failures(first),
        },
        QA_SAMPLES: {"rows": sampled},
        RUN_REPORTS: {**report.numbers(), "labels": dg.MetadataValue.json(report.labels)},
    }
    for asset, metadata in by_asset.items():
        yield Stamp(asset=asset, partition=partition, data_version=version, metadata=metadata)
