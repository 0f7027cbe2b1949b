"""What an output partition is made of: all records of its frozen batch, or what the output has quarantined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.identity import fallback_fingerprint, fingerprint, results_version
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.records import Record
from batch_assets.core.tasks import Task
from batch_assets.pipeline.platform import Platform
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE
from batch_assets.store.batches import load_batch
from batch_assets.store.fallbacks import FallbackState, load_fallback, load_quarantined
from batch_assets.store.frames import cut
from batch_assets.store.partitions import PartitionState, load_partition

CHUNK_RECORDS = 500
CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What the fallback of a finished output partition is to be made of, and its state if it is so made."""

    fingerprint: str
    state: FallbackState | None

    @property
    def data_version(self) -> str:
        """Its data version; empty while it isn't made."""
        return self.state.data_version if self.state else ""

    def results_version(self, output: PartitionState) -> str:
        """Return the data version of what follows: the output's own until the fallback is made."""
        return results_version(output.data_version, self.data_version) if self.state else output.data_version


def find_fallback(
    task: Task, platform: Platform, output: PartitionState, made: FallbackState | None
) -> Fallback | None:
    """Return the fallback of an output partition, or None if its variant has none. `made` is its row in the store."""
    other = task.fallbacks.get(output.variant)
    if other is None:
        return None
    wanted = fallback_fingerprint(output.data_version, platform.spec(task, other.key))
    return Fallback(fingerprint=wanted, state=made if made and made.fingerprint == wanted else None)


def load_fallback_of(task: Task, platform: Platform, output: PartitionState) -> Fallback | None:
    """Return the fallback of an output partition as it is now, or None if its variant has none."""
    with platform.database.read() as connection:
        made = load_fallback(connection, task.name, output.batch, output.variant)
    return find_fallback(task, platform, output, made)


def build_inputs(task: Task, platform: Platform, partition: PartitionKey) -> PartitionInputs | None:
    """Return the inputs of one output partition, from the frozen batch, or None if the batch was never frozen."""
    spec = platform.spec(task, partition.variant)
    with platform.database.read() as connection:
        state = load_batch(connection, task.name, partition.batch)
    if state is None or not platform.frames.path(task.name, SOURCE_RECORDS, partition.batch).exists():
        return None

    def read() -> Iterator[Sequence[Record]]:
        blocks = platform.frames.read_blocks(task.name, SOURCE_RECORDS, partition.batch)
        return (records for block in blocks for records in to_records(block))

    return PartitionInputs(
        task=task,
        variant=task.variants[partition.variant],
        spec=spec,
        batch=partition.batch,
        fingerprint=fingerprint(state.content, spec),
        parts={"source": state.content, **spec.parts},
        read=read,
    )


def build_fallback_inputs(task: Task, platform: Platform, partition: PartitionKey) -> PartitionInputs | None:
    """Return the inputs of one partition's fallback, or None if the output isn't up to date or has no fallback."""
    other, own = task.fallbacks.get(partition.variant), build_inputs(task, platform, partition)
    state = is_current(platform, own) if own else None
    if other is None or own is None or state is None:
        return None
    spec = platform.spec(task, other.key)

    def read() -> Iterator[Sequence[Record]]:
        with platform.database.read() as connection:
            quarantined = load_quarantined(connection, own.key, own.batch)
        for records in own.read() if quarantined else ():
            if chosen := [r for r in records if r.item_id in quarantined]:
                yield chosen

    return replace(
        own, variant=other, spec=spec, read=read, fallback_for=own.variant, parts={},
        fingerprint=fallback_fingerprint(state.data_version, spec),
    )  # fmt: skip


def is_current(platform: Platform, inputs: PartitionInputs) -> PartitionState | None:
    """Return the finished partition if it was made of these inputs, else None."""
    with platform.database.read() as connection:
        state = load_partition(connection, inputs.task.name, inputs.batch, inputs.variant.key)
    return state if state and state.fingerprint == inputs.fingerprint else None


def to_records(frame: pl.DataFrame) -> Iterator[Sequence[Record]]:
    """Yield a frame's records in chunks of so many, and of so many bytes."""
    for chunk in cut(frame.drop(SOURCE_LINE), CHUNK_RECORDS, CHUNK_BYTES):
        yield [Record(item_id=row[ITEM_ID], fields=row) for row in chunk.to_dicts()]
