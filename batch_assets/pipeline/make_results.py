"""What follows the outputs: validated_results, quarantine, qa_samples and run_reports, made together.

Each has its own function at the end. A new one is a function there, its name in core/asset_names.py, and its row in
dagster/assets/results.py.
"""

from collections.abc import Iterator, Sequence, Set

import polars as pl

from batch_assets.core.asset_names import (
    LLM_OUTPUTS,
    QA_SAMPLES,
    QUARANTINE,
    RESULT_ASSETS,
    RUN_REPORTS,
    VALIDATED_RESULTS,
)
from batch_assets.core.errors import NotReadyError
from batch_assets.core.outcomes import Figures, FilePath, Json, MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_partitions import compute_report, tabulate_failures
from batch_assets.pipeline.checks.llm_outputs import CheckedOutput
from batch_assets.pipeline.checks.of_task import list_checks
from batch_assets.pipeline.checks.validated_results import CheckedResults
from batch_assets.pipeline.frame_schemas import OUTPUT_PREFIX
from batch_assets.pipeline.partition_inputs import build_inputs, is_current, load_fallback_of
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.validated_frame import ValidatedFrame, write_validated_frame
from batch_assets.reports.qa_sample import take_sample
from batch_assets.reports.run_report import RunReport
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.failures import clear_failures, count_failure
from batch_assets.store.figures import load_quarantine
from batch_assets.store.qa_samples import SampledRecord, save_qa_samples
from batch_assets.store.run_reports import save_run_report

SHOWN = 20


def make_results(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    selected: Set[str] = frozenset(RESULT_ASSETS),
    *,
    run_id: str,
) -> Iterator[MadePartition]:
    """Make the results of finished output partitions; yield each asset's partition as it is made.

    A partition that isn't finished, or that a gate refuses, is passed over. Raises NotReadyError at the end, which
    names those. A refusal is counted for the data version that was refused, so that nobody asks for the same again and
    again.
    """
    refused: list[str] = []
    for partition in partitions:
        inputs = build_inputs(task, platform, partition)
        state = is_current(platform, inputs) if inputs else None
        if inputs is None or state is None:
            refused.append(f"{partition}: llm_outputs is not up to date")
            continue
        fallback = load_fallback_of(task, platform, state)
        version = fallback.results_version(state) if fallback else state.data_version
        report = compute_report(platform, inputs, inputs.variant.model)
        failed = _find_failed_gates(CheckedOutput(platform=platform, inputs=inputs, report=report))
        if not failed:
            made = list(_make_partition(platform, inputs, report, version))
            failed = [f"{m.asset}.{name}" for m in made for name in m.failed_gates]
            yield from (m for m in made if m.asset in selected)
        with platform.database.write() as connection:
            if failed:
                why = f"{', '.join(failed)} fails"
                refused.append(f"{partition}: {why}")
                count_failure(connection, task.name, Step.RESULTS, str(partition), version, run_id, why)
            else:
                clear_failures(connection, task.name, Step.RESULTS, [str(partition)])
    if refused:
        raise NotReadyError("; ".join(refused))


def _find_failed_gates(subject: CheckedOutput) -> list[str]:
    """Return the blocking checks of llm_outputs that fail now: they are held again before their data is used."""
    gates = [c for c in list_checks(subject.inputs.task, LLM_OUTPUTS) if c.is_blocking]
    return [gate.name for gate in gates if not gate.examine(subject).passed]


def _make_partition(
    platform: Platform, inputs: PartitionInputs, report: RunReport, version: str
) -> Iterator[MadePartition]:
    with write_validated_frame(platform, inputs) as validated:
        subject = CheckedResults(platform=platform, inputs=inputs, validated=validated)
        outcomes = [check.examine(subject) for check in list_checks(inputs.task, VALIDATED_RESULTS)]
        is_refused = any(c.is_blocking and not c.passed for c in outcomes)
        figures: Figures = {"rows": validated.rows}
        sample: Sequence[SampledRecord] = ()
        if not is_refused:  # else what is there stays: a frame that breaks its contract doesn't take its place
            sample = _take_sample(inputs, validated)
            figures = {**figures, "frame": FilePath(str(validated.staged.put()))}
    yield MadePartition(
        asset=VALIDATED_RESULTS,
        partition=str(inputs),
        data_version=version,
        figures=figures,
        checks=outcomes,
        is_unmade=is_refused,
    )
    if is_refused:
        return
    report = report.model_copy(update={"labels": validated.labels, "fallback_ok": len(validated.fallback_ids)})
    by_asset: dict[str, Figures] = {
        QUARANTINE: _summarise_quarantine(platform, inputs, validated.fallback_ids),
        QA_SAMPLES: _save_sample(platform, inputs, sample),
        RUN_REPORTS: _save_report(platform, inputs, report, version),
    }
    for asset, made in by_asset.items():
        yield MadePartition(asset=asset, partition=str(inputs), data_version=version, figures=made)


def _take_sample(inputs: PartitionInputs, validated: ValidatedFrame) -> Sequence[SampledRecord]:
    """Return the records of a partition that a person is to look at.

    The seed is the task's name: the same records are sampled for each variant, so that samples can be compared.
    """
    task = inputs.task
    ids = validated.scan_own().select("item_id").collect()["item_id"].to_list()
    ranks = {item_id: rank for rank, item_id in take_sample(ids, task.name, task.qa_sample_size)}
    rows = validated.scan_own().filter(pl.col("item_id").is_in(list(ranks))).collect().to_dicts()
    return [
        SampledRecord(
            item_id=row["item_id"],
            rank_hash=ranks[row["item_id"]],
            answer={k.removeprefix(OUTPUT_PREFIX): v for k, v in row.items() if k.startswith(OUTPUT_PREFIX)},
        )
        for row in rows
    ]


def _save_sample(platform: Platform, inputs: PartitionInputs, sample: Sequence[SampledRecord]) -> Figures:
    """Replace a partition's sample in the store; return its figures."""
    with platform.database.write() as connection:
        save_qa_samples(connection, inputs.task.name, inputs.batch, inputs.variant.key, sample)
    return {"rows": len(sample)}


def _summarise_quarantine(platform: Platform, inputs: PartitionInputs, answered: Set[str]) -> Figures:
    """Return what has no accepted answer, from anybody; `answered` are the ids that the fallback has answered."""
    with platform.database.read() as connection:
        reasons, first = load_quarantine(connection, inputs.key, inputs.batch, answered, SHOWN)
    return {
        "rows": sum(reasons.values()),
        **({"answered_by_fallback": len(answered)} if inputs.task.fallbacks else {}),
        "reasons": Json(reasons),
        "first_failures": tabulate_failures(first),
    }


def _save_report(platform: Platform, inputs: PartitionInputs, report: RunReport, version: str) -> Figures:
    """Replace a partition's report in the store; return its figures."""
    with platform.database.write() as connection:
        figures = report.model_dump(mode="json")
        save_run_report(connection, inputs.task.name, inputs.batch, inputs.variant.key, figures, version)
    return {**report.numbers(), "labels": Json(report.labels)}
