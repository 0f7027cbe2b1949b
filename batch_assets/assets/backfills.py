"""Backfills with holes: the first run of one takes over the partitions of the others, so that one engine start does.

Dagster cuts a selection with holes into a run per contiguous range. All of them are in the queue before the first has
a slot of the pool; they are of the same backfill, so what this run materializes counts for it.
"""

from collections.abc import Sequence

import dagster as dg
from dagster import DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from batch_assets.assets.events import BACKFILL_TAG

PARTITION_TAG = "dagster/partition"
RANGE_START_TAG, RANGE_END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def find_siblings(instance: DagsterInstance, run: DagsterRun) -> list[DagsterRun]:
    """Return the runs of the same backfill that wait in the queue to make the same assets."""
    backfill = run.tags.get(BACKFILL_TAG)
    if backfill is None:
        return []
    queued = instance.get_runs(RunsFilter(tags={BACKFILL_TAG: backfill}, statuses=[DagsterRunStatus.QUEUED]))
    return [r for r in queued if r.asset_selection == run.asset_selection and r.run_config == run.run_config]


def list_partitions(
    instance: DagsterInstance, definition: dg.PartitionsDefinition[str], runs: Sequence[DagsterRun]
) -> list[str]:
    """Return the keys that runs are to make."""
    keys: list[str] = []
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        for run in runs:
            if PARTITION_TAG in run.tags:
                keys.append(run.tags[PARTITION_TAG])
            elif RANGE_START_TAG in run.tags:
                bounds = dg.PartitionKeyRange(run.tags[RANGE_START_TAG], run.tags[RANGE_END_TAG])
                keys += definition.get_partition_keys_in_range(bounds)
    return keys


def end_siblings(instance: DagsterInstance, run: DagsterRun, siblings: Sequence[DagsterRun]) -> None:
    """Take runs whose partitions are all made out of the queue, as successes that say by whom.

    One that has left the queue in the meantime is let run: it finds everything done.
    """
    for sibling in siblings:
        now = instance.get_run_by_id(sibling.run_id)
        if now is None or now.status is not DagsterRunStatus.QUEUED:
            continue
        instance.report_engine_event(
            f"Its partitions were brought up to date by run {run.run_id} of the same backfill, with one engine start.",
            sibling,
        )
        done = DagsterEvent(
            event_type_value=dg.DagsterEventType.PIPELINE_SUCCESS.value,
            job_name=sibling.job_name,
            message=f"Done by run {run.run_id}.",
        )
        instance.report_dagster_event(done, run_id=sibling.run_id)
