"""Tells Dagster which partitions a launched run is to make.

A launched run is of an op job, so Dagster doesn't know its partitions. Once it does, the asset's page shows them as
materializing while the run works, and as failed if the run fails before them. A run that succeeds or is canceled leaves
no mark on what it passed over.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
from dagster import DagsterEvent, EventLogEntry
from dagster._core.events import AssetMaterializationPlannedData

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.event_log import store_planned
from batch_assets.pipeline.dispatch import NextStep
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.result_assets import RESULT_NAMES
from batch_assets.store.leases import load_live


def record_planned(task: Task, platform: Platform, context: dg.OpExecutionContext, step: NextStep) -> None:
    """Log as planned what a step is to make.

    What another run works on is left out: that run has planned it. A step that begins again has planned it before.
    """
    if context.retry_number:
        return
    with platform.database.read() as connection:
        live = load_live(connection, task.name)
    run_id = context.run.run_id
    others = {f"{batch}|{variant}" for (batch, variant), holder in live.items() if holder.run_id != run_id}
    planned = list(_list_planned(step, others))
    entries = [_build_entry(task, context, name, partition) for name, partition in planned]
    store_planned(context.instance, run_id, entries)


def _list_planned(step: NextStep, others: set[str]) -> Iterator[tuple[str, str]]:
    """Yield asset and partition of what a step is to make."""
    if step.step is Step.SOURCES:
        yield from ((VARIANT_SPECS, variant) for variant in step.variants)
        yield from ((SOURCE_RECORDS, batch) for batch in step.batches)
        return
    names: Mapping[Step, Sequence[str]] = {
        Step.OUTPUTS: (LLM_OUTPUTS,),
        Step.FALLBACKS: (FALLBACK_OUTPUTS,),
        Step.RESULTS: RESULT_NAMES,
    }
    for partition in map(str, step.partitions):
        if partition not in others or step.step is Step.RESULTS:
            yield from ((name, partition) for name in names[step.step])


def _build_entry(task: Task, context: dg.OpExecutionContext, name: str, partition: str) -> EventLogEntry:
    planned = DagsterEvent.build_asset_materialization_planned_event(
        context.job_name,
        ".".join(context.op_handle.path),
        AssetMaterializationPlannedData(asset_key(task, name), partition=partition),
    )
    return EventLogEntry(
        error_info=None,
        level=10,  # as Dagster itself logs it: debug
        user_message=planned.message or "",
        run_id=context.run.run_id,
        timestamp=time.time(),
        step_key=planned.step_key,
        job_name=planned.job_name,
        dagster_event=planned,
    )
