"""Finished output partitions: what each was made of, and the transaction that finishes one."""

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.attempts import Status
from batch_assets.core.canonical import DIGEST_HEX_DIGITS, exact_json
from batch_assets.core.identity import data_version
from batch_assets.store.database import now
from batch_assets.store.results import VariantKey, of_variant, own_rows
from batch_assets.store.tables import batches, item_owner, partitions, results


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
    _put_home(connection, key, batch, run_id)
    counts, content = _summarise(connection, key, batch)
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


def _put_home(connection: sa.Connection, key: VariantKey, batch: str, run_id: str) -> None:
    """Put a partition's rows where their records are owned now.

    A batch that is frozen anew while a run works on it changes owners behind that run. Rows of records that a frozen
    batch holds no more are let go, if this run wrote them; any others are somebody's doing, and for a check to find.
    """
    r, o = results.c, item_owner.c
    mine = of_variant(results, key)
    owned_here = sa.select(o.item_id).where(o.task == key.task, o.batch == batch)
    away = sa.or_(r.batch.is_(None), r.batch != batch)
    connection.execute(sa.update(results).where(*mine, away, r.item_id.in_(owned_here)).values(batch=batch))
    owner = sa.select(o.batch).where(o.task == r.task, o.item_id == r.item_id).scalar_subquery()
    here = (*mine, r.batch == batch)
    connection.execute(sa.update(results).where(*here, owner != batch).values(batch=owner))
    is_frozen = sa.exists().where(batches.c.task == key.task, batches.c.batch == batch)
    left = (r.run_id == run_id, owner.is_(None), is_frozen)
    connection.execute(sa.update(results).where(*here, *left).values(batch=None))


def _summarise(connection: sa.Connection, key: VariantKey, batch: str) -> tuple[dict[str, int], str]:
    """Return the counts of a partition's rows by status, and the hash of their content in item_id's order."""
    counts = {s.value: 0 for s in Status}
    counts["reused"] = 0
    content = hashlib.sha256()
    c = results.c
    rows = connection.execute(
        sa.select(c.item_id, c.status, c.payload, c.error_kind, c.reused_from)
        .where(*own_rows(key), c.batch == batch)
        .order_by(c.item_id),
        execution_options={"yield_per": 5000},
    )
    for item_id, status, payload, error_kind, reused_from in rows:
        counts[status] += 1
        counts["reused"] += reused_from is not None
        content.update(exact_json([item_id, status, payload, error_kind]).encode("utf-8", "surrogatepass"))
    return counts, content.hexdigest()[:DIGEST_HEX_DIGITS]


def _state(row: sa.RowMapping) -> PartitionState:
    names = ("batch", "variant", "fingerprint", "content", "parts", "counts", "run_id", "finished_at")
    return PartitionState(**{n: row[n] for n in names})
