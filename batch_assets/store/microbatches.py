"""Microbatches: which rows of a stream are in which batch. A row (an id with its cursor value) is in one, once."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from batch_assets.core.cursors import StreamRow, StreamState, from_document, to_document
from batch_assets.core.names import check_key
from batch_assets.store.database import Database, lock_task
from batch_assets.store.results import in_chunks
from batch_assets.store.tables import microbatch_items, microbatches, streams


class MicrobatchLog:
    """The microbatches of one task."""

    def __init__(self, database: Database, task: str) -> None:
        self._database = database
        self._task = task

    def batches(self) -> list[tuple[str, int, dt.datetime]]:
        """Return all microbatches in the order of their forming: key, records, when."""
        c = microbatches.c
        query = sa.select(c.batch, c.records, c.formed_at).where(c.task == self._task).order_by(c.seq)
        with self._database.read() as connection:
            return [(row.batch, row.records, row.formed_at) for row in connection.execute(query)]

    def items(self, batch: str) -> list[str]:
        """Return the ids in a microbatch, each once, by cursor text and id; empty if there is no such batch."""
        c = microbatch_items.c
        query = sa.select(c.cursor, c.item_id).where(c.task == self._task, c.batch == batch)
        with self._database.read() as connection:
            # Sorted here: databases differ in how they order text.
            return list(dict.fromkeys(item_id for _, item_id in sorted(connection.execute(query).tuples())))

    def state(self) -> StreamState:
        """Return how far the stream is in batches."""
        with self._database.read() as connection:
            return self._load(connection)[0]

    def waiting_since(self) -> dt.datetime | None:
        """Return when the oldest row that waits was first seen; None if none waits."""
        with self._database.read() as connection:
            return self._load(connection)[1]

    def save_sweep(self, was: StreamState, swept: StreamState) -> None:
        """Remember how far a sweep has come since the state `was`, unless another has come further meanwhile."""
        if (was.swept_from, was.swept_to) == (swept.swept_from, swept.swept_to):
            return
        with self._database.write() as connection:
            lock_task(connection, self._task)
            state, since = self._load(connection)
            if (state.swept_from, state.swept_to) == (was.swept_from, was.swept_to):
                moved = replace(state, swept_from=swept.swept_from, swept_to=swept.swept_to)
                self._save(connection, moved, since)

    def find_unbatched(self, rows: Sequence[StreamRow]) -> list[StreamRow]:
        """Return the rows that are in no microbatch, each once, in their order."""
        with self._database.read() as connection:
            return self._leave_out_batched(connection, rows, set())

    def form(
        self,
        late: Sequence[StreamRow],
        fresh: Sequence[StreamRow],
        *,
        max_records: int,
        max_age_s: float,
        now: dt.datetime,
    ) -> tuple[str | None, Sequence[StreamRow], Sequence[StreamRow]]:
        """Form the next microbatch of the first rows, if `max_records` wait or one has for `max_age_s`.

        Rows that came late go first and don't move the position, as the last of the `fresh` ones does. Membership,
        batch and position are written in one transaction, in which nobody else forms batches of the task.
        Returns the batch, or None, and the rows of both kinds that still wait. Those that a batch leaves over begin to
        wait anew.
        """
        with self._database.write() as connection:
            lock_task(connection, self._task)
            state, since = was = self._load(connection)
            known: set[tuple[str, str]] = set()
            first, late = self._take(connection, late, max_records, known)
            then, fresh = self._take(connection, fresh, max_records - len(first), known)
            count = len(first) + len(then)
            since = since or now
            is_due = count >= max_records or (now - since).total_seconds() >= max_age_s
            if not count or not is_due:
                since = since if count else None
                if was != (state, since):
                    self._save(connection, state, since)
                return None, [*first, *late], [*then, *fresh]
            batch = self._add_batch(connection, [*first, *then], now)
            position = then[-1].place if then else state.position
            self._save(connection, replace(state, position=position), now if late or fresh else None)
        return batch, late, fresh

    def _load(self, connection: sa.Connection) -> tuple[StreamState, dt.datetime | None]:
        query = sa.select(streams.c.position, streams.c.waiting_since).where(streams.c.task == self._task)
        row = connection.execute(query).one_or_none()
        return (StreamState(), None) if row is None else (from_document(row.position), row.waiting_since)

    def _save(self, connection: sa.Connection, state: StreamState, since: dt.datetime | None) -> None:
        values = {"position": to_document(state), "waiting_since": since}
        of_task = streams.c.task == self._task
        if not connection.execute(sa.update(streams).where(of_task).values(**values)).rowcount:
            connection.execute(sa.insert(streams).values(task=self._task, **values))

    def _take(
        self, connection: sa.Connection, rows: Sequence[StreamRow], count: int, known: set[tuple[str, str]]
    ) -> tuple[list[StreamRow], Sequence[StreamRow]]:
        """Return the first `count` rows that are in no microbatch, for another may have formed one, and the rest."""
        taken: list[StreamRow] = []
        seen = 0
        while seen < len(rows) and len(taken) < count:
            part = rows[seen : seen + count - len(taken)]
            taken += self._leave_out_batched(connection, part, known)
            seen += len(part)
        return taken, rows[seen:]

    def _leave_out_batched(
        self, connection: sa.Connection, rows: Sequence[StreamRow], known: set[tuple[str, str]]
    ) -> list[StreamRow]:
        """Return the rows that are neither in a microbatch nor `known`, and add them all to these."""
        c = microbatch_items.c
        for chunk in in_chunks({row.item_id for row in rows}):
            query = sa.select(c.item_id, c.cursor).where(c.task == self._task, c.item_id.in_(chunk))
            known.update(connection.execute(query).tuples())
        new: list[StreamRow] = []
        for row in rows:
            if row.identity not in known:
                known.add(row.identity)
                new.append(row)
        return new

    def _add_batch(self, connection: sa.Connection, rows: Sequence[StreamRow], now: dt.datetime) -> str:
        last = connection.scalar(sa.select(sa.func.max(microbatches.c.seq)).where(microbatches.c.task == self._task))
        seq = (last or 0) + 1
        batch = check_key(f"{now.astimezone(dt.UTC):%Y%m%d}-{seq:06d}", "microbatch")
        connection.execute(
            sa.insert(microbatches).values(
                task=self._task, batch=batch, seq=seq, records=len({row.item_id for row in rows}), formed_at=now
            )
        )
        members = [
            {"task": self._task, "item_id": i, "cursor": cursor, "batch": batch}
            for i, cursor in (row.identity for row in rows)
        ]
        connection.execute(sa.insert(microbatch_items), members)
        return batch
