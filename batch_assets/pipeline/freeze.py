"""The first step: batches frozen as they were read, so that what was asked stays known. Makes source_records."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import polars as pl

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.errors import SourceError
from batch_assets.core.outcomes import FilePath, MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.pipeline.checks.of_task import list_checks
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import ITEM_ID, BatchRef, Source, SourceBatch
from batch_assets.store.batches import (
    BatchState,
    adopt_items,
    freeze_batch,
    load_batch,
    load_batches,
    touch_batch,
)
from batch_assets.store.database import lock_task
from batch_assets.store.failures import clear_failures, count_failure


def freeze_batches(
    task: Task, source: Source, platform: Platform, batches: Iterable[str], run_id: str
) -> Iterator[MadePartition]:
    """Read and freeze batches, in the source's order; yield each as it is frozen.

    One that can't be read stops no other, and nothing of it is kept. Raises SourceError at the end for those.
    """
    wanted = set(batches)
    checks = list_checks(task, SOURCE_RECORDS)
    offered = [ref for ref in source.list_batches() if ref.batch in wanted]
    absent = wanted - {ref.batch for ref in offered}
    broken: dict[str, str] = {}
    for ref in offered:
        try:
            read = source.read(ref, task.used_fields)
        except SourceError as e:
            broken[ref.batch] = str(e)
            with platform.database.write() as connection:
                count_failure(connection, task.name, Step.SOURCES, ref.batch, ref.change_token, run_id, str(e))
            continue
        outcomes = [check.examine(read) for check in checks]
        state = _freeze_one(task, platform, ref, read)
        yield MadePartition(
            asset=SOURCE_RECORDS,
            partition=ref.batch,
            data_version=state.source_hash,
            figures={
                "records": state.records,
                "malformed_lines": len(state.malformed),
                "cleaned_values": len(read.cleaned),
                "superseded": state.superseded,
                "source": FilePath(ref.locator) if ref.changed_at else ref.locator,
                "frame": FilePath(str(platform.frames.path(task.name, SOURCE_RECORDS, ref.batch))),
            },
            checks=outcomes,
        )
    with platform.database.write() as connection:
        clear_failures(connection, task.name, Step.SOURCES, wanted - broken.keys())
    if absent:
        broken[""] = f"task {task.name}: the source has no batch {', '.join(sorted(absent))}"
    if broken:
        raise SourceError("; ".join(broken.values()))


def freeze_unfrozen(
    task: Task, source: Source, platform: Platform, partitions: Iterable[PartitionKey], run_id: str
) -> Generator[MadePartition, None, Mapping[str, str]]:
    """Freeze the batches of output partitions that never were; yield each. Return why others can't be, by batch."""
    with platform.database.read() as connection:
        frozen = load_batches(connection, task.name)
    paths = {p.batch: platform.frames.path(task.name, SOURCE_RECORDS, p.batch) for p in partitions}
    broken: dict[str, str] = {}
    for batch, path in paths.items():
        if batch not in frozen or not path.exists():
            try:
                yield from freeze_batches(task, source, platform, [batch], run_id)
            except SourceError as e:
                broken[batch] = str(e)
    return broken


def _freeze_one(task: Task, platform: Platform, ref: BatchRef, read: SourceBatch) -> BatchState:
    """Put the frame and the batch's row in place, both or neither: nobody else freezes one of the task meanwhile.

    The change token is taken away first. A kill between the frame and the commit then leaves a batch without one, which
    is frozen again, whatever its source says.
    """
    ids: list[str] = read.frame[ITEM_ID].to_list()
    with platform.frames.prepare(read.frame, task.name, SOURCE_RECORDS, ref.batch) as staged:
        with platform.database.write() as connection:
            touch_batch(connection, task.name, ref.batch, "")
        with platform.database.write() as connection:
            lock_task(connection, task.name)
            known = load_batch(connection, task.name, ref.batch)
            if known and known.source_hash == read.source_hash:
                touch_batch(connection, task.name, ref.batch, ref.change_token)
                staged.put()
                return known
            state, released = freeze_batch(
                connection,
                task.name,
                ref.batch,
                change_token=ref.change_token,
                source_hash=read.source_hash,
                item_ids=ids,
                malformed=read.malformed,
            )
            earlier = list(load_batches(connection, task.name)) if released else []
            heirs = _find_heirs(task, platform, released, [b for b in earlier if b != ref.batch])
            for batch, mine in heirs.items():
                adopt_items(connection, task.name, batch, sorted(mine))
            staged.put()
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
            if found:
                heirs[batch] = found
            left -= found
    return heirs
