"""source_records [batch]: each batch frozen as it was read, so that what was asked stays known."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
import polars as pl

from batch_assets.asset_keys import SOURCE_RECORDS, asset_key
from batch_assets.assets.events import Finding, Stamp, emit
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.core.errors import SourceError
from batch_assets.core.tasks import Task
from batch_assets.partitions import batch_partitions
from batch_assets.resources import PLATFORM, Platform
from batch_assets.sources.base import ITEM_ID, BatchRef, Source, SourceBatch
from batch_assets.store.batches import (
    BatchState,
    adopt_items,
    freeze_batch,
    load_batch,
    load_batches,
    load_owned,
    touch_batch,
)
from batch_assets.store.failures import Step, clear_failures, count_failure
from batch_assets.works import used_fields

SourceCheck = Callable[[SourceBatch], Finding]


def build_source_records(
    task: Task, source: Source, specs: Sequence[dg.AssetCheckSpec], checks: Sequence[SourceCheck]
) -> dg.AssetsDefinition:
    """Build the asset of one task."""

    @dg.asset(
        key=asset_key(task, SOURCE_RECORDS),
        partitions_def=batch_partitions(task.name),
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=specs,
        output_required=False,
        group_name=task.name,
        owners=list(task.owners),
        kinds={"polars", "parquet"},
        description="One row per record of the batch, frozen as it was read; all fields are text.",
        required_resource_keys={PLATFORM},
    )
    def source_records(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        batches = list(context.partition_keys)
        with outlast_lost_store(context, platform):
            yield from emit(context, task, freeze(task, source, platform, batches, checks, context.run.run_id))

    return source_records


def freeze(
    task: Task, source: Source, platform: Platform, batches: Iterable[str], checks: Sequence[SourceCheck], run_id: str
) -> Iterator[Stamp]:
    """Read and freeze batches, in the source's order.

    One that can't be read stops no other: SourceError tells of it at the end, and nothing of it is kept.
    """
    wanted = set(batches)
    offered = [ref for ref in source.list_batches() if ref.batch in wanted]
    absent = wanted - {ref.batch for ref in offered}
    broken: dict[str, str] = {}
    for ref in offered:
        try:
            read = source.read(ref, used_fields(task))
        except SourceError as e:
            broken[ref.batch] = str(e)
            with platform.database.write() as connection:
                count_failure(connection, task.name, Step.SOURCES, ref.batch, ref.stamp, run_id, str(e))
            continue
        findings = [check(read) for check in checks]
        state = _freeze_one(task, platform, ref, read)
        yield Stamp(
            asset=SOURCE_RECORDS,
            partition=ref.batch,
            data_version=state.source_hash,
            metadata={
                "records": state.records,
                "malformed_lines": len(state.malformed),
                "cleaned_values": len(read.cleaned),
                "superseded": state.superseded,
                "source": dg.MetadataValue.path(ref.locator) if ref.changed_at else ref.locator,
                "frame": dg.MetadataValue.path(str(platform.frames.path(task.name, SOURCE_RECORDS, ref.batch))),
            },
            findings=findings,
        )
    with platform.database.write() as connection:
        clear_failures(connection, task.name, Step.SOURCES, wanted - broken.keys())
    if absent:
        broken[""] = f"task {task.name}: the source has no batch {', '.join(sorted(absent))}"
    if broken:
        raise SourceError("; ".join(broken.values()))


def _freeze_one(task: Task, platform: Platform, ref: BatchRef, read: SourceBatch) -> BatchState:
    path = platform.frames.path(task.name, SOURCE_RECORDS, ref.batch)
    ids: list[str] = read.frame[ITEM_ID].to_list()
    with platform.database.read() as connection:
        known = load_batch(connection, task.name, ref.batch)
        gone = load_owned(connection, task.name, ref.batch) - set(ids)
        earlier = list(load_batches(connection, task.name)) if gone else []
    if known and known.source_hash == read.source_hash and path.exists():
        with platform.database.write() as connection:
            touch_batch(connection, task.name, ref.batch, ref.stamp)
        return known
    heirs = _find_heirs(task, platform, gone, [b for b in earlier if b != ref.batch])
    # The frame first: killed between the two, the stamp still tells that the batch is to be frozen again.
    platform.frames.write(read.frame, task.name, SOURCE_RECORDS, ref.batch)
    with platform.database.write() as connection:
        state, released = freeze_batch(
            connection,
            task.name,
            ref.batch,
            stamp=ref.stamp,
            source_hash=read.source_hash,
            item_ids=ids,
            malformed=read.malformed,
        )
        for batch, back in heirs.items():
            if mine := sorted(released & back):
                adopt_items(connection, task.name, batch, mine)
    return state


def _find_heirs(task: Task, platform: Platform, gone: set[str], earlier: Sequence[str]) -> dict[str, set[str]]:
    """Return which earlier batches still have ids that this batch has no more: the last that has one owns it again."""
    heirs: dict[str, set[str]] = {}
    left = set(gone)
    for batch in reversed(earlier):
        path = platform.frames.path(task.name, SOURCE_RECORDS, batch)
        if not left:
            break
        if path.exists():
            found = left & set(pl.read_parquet(path, columns=[ITEM_ID], glob=False)[ITEM_ID].to_list())
            heirs[batch] = found
            left -= found
    return heirs
