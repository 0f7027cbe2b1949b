"""Finished output partitions: what each was made of, and the transaction that finishes one."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.identity import data_version
from batch_assets.store.database import now
from batch_assets.store.results import VariantKey, put_home, summarise
from batch_assets.store.tables import partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A finished partition. `counts`: ok, invalid, error, reused."""

    batch: str
    variant: str
    fingerprint: str
    content: str
    parts: Mapping[str, str]
    counts: Mapping[str, int]
    run_id: str
    finished_at: dt.datetime

    @property
    def data_version(self) -> str:
        """`<fingerprint>.<content>`."""
        return data_version(self.fingerprint, self.content)


def load_partitions(connection: sa.Connection, task: str) -> dict[tuple[str, str], PartitionState]:
    """Return all finished partitions of a task by (batch, variant)."""
    rows = connection.execute(sa.select(partitions).where(partitions.c.task == task)).mappings()
    return {(r["batch"], r["variant"]): _state(r) for r in rows}


def load_partition(connection: sa.Connection, task: str, batch: str, variant: str) -> PartitionState | None:
    """Return one finished partition, or None."""
    where = (partitions.c.task == task, partitions.c.batch == batch, partitions.c.variant == variant)
    row = connection.execute(sa.select(partitions).where(*where)).mappings().first()
    return None if row is None else _state(row)


def finish_partition(
    connection: sa.Connection,
    key: VariantKey,
    batch: str,
    variant: str,
    *,
    fingerprint: str,
    parts: Mapping[str, str],
    run_id: str,
) -> PartitionState:
    """Record that every record of a partition has its row, in the caller's transaction. Rows follow their owners."""
    put_home(connection, key, batch, run_id)
    counts, content = summarise(connection, key, batch)
    where = (partitions.c.task == key.task, partitions.c.batch == batch, partitions.c.variant == variant)
    connection.execute(sa.delete(partitions).where(*where))
    connection.execute(
        sa.insert(partitions).values(
            task=key.task,
            batch=batch,
            variant=variant,
            fingerprint=fingerprint,
            content=content,
            parts=dict(parts),
            counts=counts,
            run_id=run_id,
            finished_at=now(),
        )
    )
    return _state(connection.execute(sa.select(partitions).where(*where)).mappings().one())


def _state(row: sa.RowMapping) -> PartitionState:
    names = ("batch", "variant", "fingerprint", "content", "parts", "counts", "run_id", "finished_at")
    return PartitionState(**{n: row[n] for n in names})
