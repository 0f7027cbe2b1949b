"""Backfills with holes: the first run of one takes over the partitions of the others, so that one engine start does.

Dagster cuts a selection with holes into a run per contiguous range. They are of the same backfill, so what this run
materializes counts for it; those that still wait in the queue at its end are ended as done.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster import DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey, parse_partition_key
from batch_assets.core.tasks import Task
from batch_assets.dagster.events import BACKFILL_TAG, emit
from batch_assets.dagster.partitions import output_partitions

PARTITION_TAG = "dagster/partition"
RANGE_START_TAG, RANGE_END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_NOT_ENDED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
]


class Siblings:
    """The other runs of a run's backfill that are to make the same asset."""

    def __init__(self, context: dg.AssetExecutionContext, definition: dg.PartitionsDefinition[str]) -> None:
        self._instance: DagsterInstance = context.instance
        self._run: DagsterRun = context.run
        self._assets = set(context.selected_asset_keys)
        self._definition = definition
        self._backfill = self._run.tags.get(BACKFILL_TAG)

    def list_partitions(self) -> list[str]:
        """Return the keys that they are to make: runs that haven't ended, and those that Dagster is about to submit.

        One that was started waits for its slot of the pool while this run has it. If there are more slots it may be
        at work: then it holds the leases of its partitions.
        """
        if self._backfill is None:
            return []
        found = [self._read(r.tags) for r in self._find(_NOT_ENDED)]
        backfill = self._instance.get_backfill(self._backfill)
        for request in (backfill.submitting_run_requests or ()) if backfill else ():
            if set(request.asset_selection or ()) == self._assets:
                key = {PARTITION_TAG: request.partition_key} if request.partition_key else {}
                found.append(self._read({**request.tags, **key}))
        return list(dict.fromkeys(key for keys in found for key in keys))

    def end(self, made: Collection[str]) -> None:
        """End those in the queue whose partitions are all made, as successes that say by whom.

        One that leaves the queue at this moment is let run: it finds everything done.
        """
        if self._backfill is None:
            return
        for sibling in self._find([DagsterRunStatus.QUEUED]):
            if set(self._read(sibling.tags)) <= set(made):
                words = f"Its partitions were brought up to date by run {self._run.run_id} of the same backfill."
                self._instance.report_engine_event(words, sibling)
                done = DagsterEvent(
                    event_type_value=dg.DagsterEventType.PIPELINE_SUCCESS.value,
                    job_name=sibling.job_name,
                    message=words,
                )
                self._instance.report_dagster_event(done, run_id=sibling.run_id)

    def _find(self, statuses: Sequence[DagsterRunStatus]) -> list[DagsterRun]:
        found = self._instance.get_runs(RunsFilter(tags={BACKFILL_TAG: self._backfill or ""}, statuses=statuses))
        others = [r for r in found if r.run_id != self._run.run_id and r.run_config == self._run.run_config]
        return [r for r in others if set(r.asset_selection or ()) == self._assets]

    def _read(self, tags: Mapping[str, str]) -> Sequence[str]:
        if PARTITION_TAG in tags:
            return [tags[PARTITION_TAG]]
        if RANGE_START_TAG not in tags:
            return []
        bounds = dg.PartitionKeyRange(tags[RANGE_START_TAG], tags[RANGE_END_TAG])
        with dg.partition_loading_context(dynamic_partitions_store=self._instance):
            return [str(k) for k in self._definition.get_partition_keys_in_range(bounds)]


def make_for_backfill(
    context: dg.AssetExecutionContext,
    task: Task,
    make: Callable[[Sequence[PartitionKey], Sequence[PartitionKey]], Iterator[MadePartition]],
) -> Iterator[Any]:
    """Yield the events of what `make` makes of the run's own output partitions and of those that it takes over."""
    siblings = Siblings(context, output_partitions(task.name))
    own = [str(k) for k in context.partition_keys]
    theirs = [k for k in siblings.list_partitions() if k not in own]
    if theirs:
        context.log.info(f"takes over {len(theirs)} partitions of other runs of this backfill: one engine start")
    finished: set[str] = set()

    def record_made() -> Iterator[MadePartition]:
        for made in make([parse_partition_key(k) for k in own], [parse_partition_key(k) for k in theirs]):
            finished.add(made.partition)
            yield made

    yield from emit(context, task, record_made())
    siblings.end(finished)
