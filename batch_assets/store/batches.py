"""Batches as they were read, and which of them owns an item_id that comes more than once."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.canonical import DIGEST_HEX_DIGITS, digest, digest_text
from batch_assets.store.database import lock_task, now
from batch_assets.store.results import in_chunks
from batch_assets.store.tables import batches, item_owner, results

_OWNER_CHUNK = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """A batch as it was frozen. `content` is what an output's fingerprint covers of it."""

    batch: str
    seq: int
    change_token: str
    source_hash: str
    records: int
    superseded: int
    superseded_hash: str
    malformed: Sequence[tuple[int, str]]
    frozen_at: dt.datetime

    @property
    def content(self) -> str:
        """The batch's own content and what later batches have taken over from it."""
        return content_of(self.source_hash, self.superseded_hash)


def content_of(source_hash: str, superseded_hash: str) -> str:
    """Return the hash that the fingerprints of a batch's output partitions cover."""
    return digest([source_hash, superseded_hash]) if superseded_hash else source_hash


def load_batches(connection: sa.Connection, task: str) -> dict[str, BatchState]:
    """Return all frozen batches of a task, in the order of first sight."""
    rows = connection.execute(sa.select(batches).where(batches.c.task == task).order_by(batches.c.seq)).mappings()
    return {r["batch"]: _state(r) for r in rows}


def load_batch(connection: sa.Connection, task: str, batch: str) -> BatchState | None:
    """Return one frozen batch, or None."""
    where = (batches.c.task == task, batches.c.batch == batch)
    row = connection.execute(sa.select(batches).where(*where)).mappings().first()
    return None if row is None else _state(row)


def load_owned(connection: sa.Connection, task: str, batch: str) -> set[str]:
    """Return the ids that a batch owns."""
    where = (item_owner.c.task == task, item_owner.c.batch == batch)
    return set(connection.scalars(sa.select(item_owner.c.item_id).where(*where)))


def freeze_batch(
    connection: sa.Connection,
    task: str,
    batch: str,
    *,
    change_token: str,
    source_hash: str,
    item_ids: Sequence[str],
    malformed: Sequence[tuple[int, str]],
) -> tuple[BatchState, set[str]]:
    """Record a batch as it was read and settle who owns its ids: the batch seen last. In the caller's transaction.

    Rows follow their record's owner. Returns the batch, and the ids that it had and holds no more: the caller gives
    them to an earlier batch that has them (`adopt_items`); until then their rows belong to none.
    """
    lock_task(connection, task)
    known = load_batches(connection, task)
    seq = known[batch].seq if batch in known else max((b.seq for b in known.values()), default=0) + 1
    owners = _load_owners(connection, task, item_ids)
    taken: dict[str, list[str]] = {}
    superseded: list[str] = []
    for item_id in item_ids:
        owner = owners.get(item_id)
        if owner is None or owner == batch:
            continue
        if known[owner].seq > seq:
            superseded.append(item_id)
        else:
            taken.setdefault(owner, []).append(item_id)
    for earlier, ids in taken.items():
        _count_superseded(connection, task, earlier, ids, sign=1)
    _set_owner(connection, task, [i for i in item_ids if i not in owners], batch, is_new=True)
    _set_owner(connection, task, [i for ids in taken.values() for i in ids], batch, is_new=False)
    released = _release_absent(connection, task, batch, set(item_ids))
    values = {
        "change_token": change_token,
        "source_hash": source_hash,
        "records": len(item_ids),
        "malformed": [list(m) for m in malformed],
        "superseded": len(superseded),
        "superseded_hash": _hash_ids(superseded),
        "frozen_at": now(),
    }
    where = (batches.c.task == task, batches.c.batch == batch)
    if batch in known:
        connection.execute(sa.update(batches).where(*where).values(**values))
    else:
        connection.execute(sa.insert(batches).values(task=task, batch=batch, seq=seq, **values))
    return _state(connection.execute(sa.select(batches).where(*where)).mappings().one()), released


def adopt_items(connection: sa.Connection, task: str, batch: str, item_ids: Sequence[str]) -> None:
    """Give ids back to an earlier batch, since the later one holds them no more."""
    _set_owner(connection, task, item_ids, batch, is_new=True)
    _count_superseded(connection, task, batch, item_ids, sign=-1)


def touch_batch(connection: sa.Connection, task: str, batch: str, change_token: str) -> None:
    """Remember that a file's size or time changed and its content didn't. An empty token: it is to be frozen again."""
    where = (batches.c.task == task, batches.c.batch == batch)
    connection.execute(sa.update(batches).where(*where).values(change_token=change_token))


def _state(row: sa.RowMapping) -> BatchState:
    names = ("batch", "seq", "change_token", "source_hash", "records", "superseded", "superseded_hash", "frozen_at")
    return BatchState(
        **{n: row[batches.c[n]] for n in names}, malformed=[(int(line), str(why)) for line, why in row["malformed"]]
    )


def _load_owners(connection: sa.Connection, task: str, item_ids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for chunk in in_chunks(item_ids, _OWNER_CHUNK):
        where = (item_owner.c.task == task, item_owner.c.item_id.in_(chunk))
        for item_id, owner in connection.execute(sa.select(item_owner.c.item_id, item_owner.c.batch).where(*where)):
            found[item_id] = owner
    return found


def _set_owner(connection: sa.Connection, task: str, item_ids: Sequence[str], batch: str, *, is_new: bool) -> None:
    if not item_ids:
        return
    if is_new:
        rows = [{"task": task, "item_id": i, "batch": batch} for i in item_ids]
        connection.execute(sa.insert(item_owner), rows)
    for chunk in in_chunks(item_ids, _OWNER_CHUNK):
        if not is_new:
            owned = (item_owner.c.task == task, item_owner.c.item_id.in_(chunk))
            connection.execute(sa.update(item_owner).where(*owned).values(batch=batch))
        connection.execute(
            sa.update(results).where(results.c.task == task, results.c.item_id.in_(chunk)).values(batch=batch)
        )


def _count_superseded(connection: sa.Connection, task: str, batch: str, item_ids: Sequence[str], sign: int) -> None:
    where = (batches.c.task == task, batches.c.batch == batch)
    row = connection.execute(sa.select(batches.c.superseded, batches.c.superseded_hash).where(*where)).one()
    count = max(0, row.superseded + sign * len(item_ids))
    marked = _hash_ids(item_ids, row.superseded_hash, sign) if count else ""
    connection.execute(sa.update(batches).where(*where).values(superseded=count, superseded_hash=marked))


def _hash_ids(item_ids: Sequence[str], start: str = "", sign: int = 1) -> str:
    """Return the hash of a set of ids, with others already in it; "" for none.

    The sum of their digests, so that it says which ids are superseded and not in which order they came to be.
    """
    total = int(start or "0", 16) + sign * sum(int(digest_text(i), 16) for i in item_ids)
    return f"{total % 16**DIGEST_HEX_DIGITS:0{DIGEST_HEX_DIGITS}x}" if item_ids or start else ""


def _release_absent(connection: sa.Connection, task: str, batch: str, present: set[str]) -> set[str]:
    released = load_owned(connection, task, batch) - present
    for chunk in in_chunks(released, _OWNER_CHUNK):
        connection.execute(sa.delete(item_owner).where(item_owner.c.task == task, item_owner.c.item_id.in_(chunk)))
        connection.execute(
            sa.update(results).where(results.c.task == task, results.c.item_id.in_(chunk)).values(batch=None)
        )
    return released
