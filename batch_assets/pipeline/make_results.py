"""What follows the outputs: the gates are held once more, then each of the result assets is made of a partition."""

from collections.abc import Iterator, Sequence, Set

from batch_assets.core.asset_names import LLM_OUTPUTS, VALIDATED_RESULTS
from batch_assets.core.errors import NotReadyError
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_partitions import compute_report
from batch_assets.pipeline.checks.llm_outputs import CheckedOutput
from batch_assets.pipeline.checks.of_task import list_checks
from batch_assets.pipeline.checks.validated_results import CheckedResults
from batch_assets.pipeline.partition_inputs import build_inputs, is_current, load_fallback_of
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.result_assets import RESULT_ASSETS, FinishedPartition
from batch_assets.pipeline.validated_frame import write_validated_frame
from batch_assets.reports.run_report import RunReport
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.failures import clear_failures, count_failure


def make_results(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    selected: Set[str] | None = None,
    *,
    run_id: str,
) -> Iterator[MadePartition]:
    """Make the results of finished output partitions; yield each asset's partition once all of them are made.

    Only those of the `selected` assets are yielded, all unless some are named.

    A partition that isn't finished, or that a gate refuses, is passed over. Raises NotReadyError at the end, which
    names those. A refusal is counted for the data version that was refused, so that nobody asks for the same again and
    again.
    """
    refused: list[str] = []
    for partition in partitions:
        inputs = build_inputs(task, platform, partition)
        state = is_current(platform, inputs) if inputs else None
        if inputs is None or state is None:
            refused.append(f"{partition}: llm_outputs is not up to date: materialize it first")
            continue
        fallback = load_fallback_of(task, platform, state)
        version = fallback.results_version(state) if fallback else state.data_version
        report = compute_report(platform, inputs, inputs.variant.model)
        failed = _find_failed_gates(CheckedOutput(platform=platform, inputs=inputs, report=report))
        if not failed:
            made = list(_make_partition(platform, inputs, report, version))
            failed = [f"{m.asset}.{name}" for m in made for name in m.failed_gates]
            yield from (m for m in made if selected is None or m.asset in selected)
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
    """Yield each result asset of one partition. If a check of its frame blocks, nothing is written."""
    with write_validated_frame(platform, inputs) as validated:
        subject = CheckedResults(platform=platform, inputs=inputs, validated=validated)
        outcomes = [check.examine(subject) for check in list_checks(inputs.task, VALIDATED_RESULTS)]
        if any(c.is_blocking and not c.passed for c in outcomes):
            yield MadePartition(
                asset=VALIDATED_RESULTS,
                partition=str(inputs),
                data_version=version,
                figures={"rows": validated.rows},
                checks=outcomes,
                is_unmade=True,
            )
            return
        known = {"labels": validated.labels, "fallback_ok": len(validated.fallback_ids)}
        finished = FinishedPartition(
            platform=platform,
            inputs=inputs,
            validated=validated,
            report=report.model_copy(update=known),
            data_version=version,
        )
        validated.staged.put()
        figures = {asset.name: asset.make(finished) for asset in RESULT_ASSETS}
    for name, found in figures.items():
        yield MadePartition(
            asset=name,
            partition=str(inputs),
            data_version=version,
            figures=found,
            checks=outcomes if name == VALIDATED_RESULTS else (),
        )
