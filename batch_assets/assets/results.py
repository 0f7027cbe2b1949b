"""What follows llm_outputs, in one step: validated_results, quarantine, qa_samples, run_reports [batch × variant].

One step, because a run over many partitions hands no Output on, and Dagster would skip the steps after it.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from batch_assets.assets import validated_results
from batch_assets.assets.events import Finding, Stamp, emit
from batch_assets.assets.llm_outputs import OutputCheck, report_on
from batch_assets.assets.qa_samples import write_qa_samples
from batch_assets.assets.run_reports import write_run_report
from batch_assets.core.errors import NotReadyError
from batch_assets.core.tasks import Task
from batch_assets.partitions import PartitionKey, output_partitions, parse_partition_key
from batch_assets.planner import (
    LLM_OUTPUTS,
    QA_SAMPLES,
    QUARANTINE,
    RESULT_ASSETS,
    RUN_REPORTS,
    VALIDATED_RESULTS,
    asset_key,
    build_work,
    is_current,
)
from batch_assets.reports.run_report import RunReport
from batch_assets.resources import PLATFORM, Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.store.figures import load_failures

ResultCheck = Callable[[PartitionWork, pl.DataFrame, list[str]], Finding]
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
        stamps = follow(task, platform, partitions, checks, gates, selected)
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
        deps=[asset_key(task, upstream)],
        skippable=True,
        group_name=task.name,
        owners=list(task.owners),
        kinds=set(kinds),
        description=words,
    )


def follow(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    checks: Sequence[ResultCheck],
    gates: Sequence[OutputCheck],
    selected: Set[str] = frozenset(RESULT_ASSETS),
) -> Iterator[Stamp]:
    """Make the results of finished output partitions; yield each asset's partition as it is made.

    A partition that isn't finished, or that a gate refuses, is passed over; NotReadyError names them at the end.
    """
    refused: list[str] = []
    for partition in partitions:
        work = build_work(task, platform, partition)
        state = is_current(platform, work) if work else None
        if work is None or state is None:
            refused.append(f"{partition}: llm_outputs is not up to date")
            continue
        report = report_on(platform, work, work.variant.model)
        failed = [f for f in (gate(platform, work, report) for gate in gates) if not f.passed]
        if failed:
            refused.append(f"{partition}: {', '.join(f.name for f in failed)} fails")
            continue
        stamps = list(_make(platform, work, report, state.data_version, checks))
        refused += [
            f"{partition}: {s.asset}.{f.name} fails" for s in stamps for f in s.findings if s.is_held and not f.passed
        ]
        yield from (s for s in stamps if s.asset in selected)
    if refused:
        raise NotReadyError("; ".join(refused))


def _make(
    platform: Platform, work: PartitionWork, report: RunReport, version: str, checks: Sequence[ResultCheck]
) -> Iterator[Stamp]:
    partition = str(PartitionKey(work.batch, work.variant.key))
    frame, disagreeing = validated_results.make_frame(platform, work)
    findings = [check(work, frame, disagreeing) for check in checks]
    validated = Stamp(
        asset=VALIDATED_RESULTS,
        partition=partition,
        data_version=version,
        metadata={"rows": frame.height},
        findings=findings,
    )
    if validated.is_held:  # what is there stays: a frame that breaks its contract doesn't take its place
        yield validated
        return
    path = platform.frames.write(frame, work.task.name, VALIDATED_RESULTS, work.batch, work.variant.key)
    yield replace(validated, metadata={"rows": frame.height, "frame": dg.MetadataValue.path(str(path))})
    sampled = write_qa_samples(platform, work, frame)
    write_run_report(platform, work, report, version)
    with platform.database.read() as connection:
        failures = load_failures(connection, work.key, work.batch, SHOWN)
    by_asset: dict[str, dict[str, Any]] = {
        QUARANTINE: {
            "rows": report.invalid + report.error,
            "reasons": dg.MetadataValue.json(report.error_kinds),
            "first": dg.MetadataValue.md(
                "\n".join(f"- `{i}`: {s}/{k}" for i, s, k, _ in failures) if failures else "none"
            ),
        },
        QA_SAMPLES: {"rows": sampled},
        RUN_REPORTS: {k: v for k, v in report.model_dump().items() if isinstance(v, int | float)},
    }
    for asset, metadata in by_asset.items():
        yield Stamp(asset=asset, partition=partition, data_version=version, metadata=metadata)
