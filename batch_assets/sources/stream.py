"""Microbatches of a stream: how they are formed, and how they are read as any other batch is."""

import datetime as dt
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from batch_assets.core.cursors import Place, StreamRow, StreamState, step_back
from batch_assets.core.errors import SourceError
from batch_assets.sources.base import BatchRef, SourceBatch, StreamSource

SWEEP_ROWS = 50_000
"""Rows behind the position that one forming looks at again, about a second's work."""


class BatchList(Protocol):
    """Which microbatches a task has, and what is in them."""

    def batches(self) -> Sequence[tuple[str, int, dt.datetime]]:
        """Return all microbatches in the order of their forming: key, records, when."""
        ...

    def items(self, batch: str) -> Sequence[str]:
        """Return the ids in a microbatch, always in the same order; empty if there is no such batch."""
        ...


class BatchLog(Protocol):
    """The store's side of forming microbatches."""

    def state(self) -> StreamState:
        """Return how far the stream is in batches."""
        ...

    def find_unbatched(self, rows: Sequence[StreamRow]) -> Sequence[StreamRow]:
        """Return the rows that are in no microbatch, each once, in their order."""
        ...

    def form(
        self,
        late: Sequence[StreamRow],
        fresh: Sequence[StreamRow],
        *,
        max_records: int,
        max_age_s: float,
        now: dt.datetime,
    ) -> tuple[str | None, Sequence[StreamRow], Sequence[StreamRow]]:
        """Form the next microbatch of the first rows, whole or not at all, if it is full or its time has come.

        Returns its key, or None, and the rows of both kinds that still wait. Only `fresh` ones move the position.
        """
        ...

    def save_sweep(self, was: StreamState, swept: StreamState) -> None:
        """Remember how far a sweep has come since the state `was`, unless another has come further meanwhile."""
        ...

    def waiting_since(self) -> dt.datetime | None:
        """Return when the oldest row that waits was first seen; None if none waits."""
        ...


@dataclass(frozen=True, slots=True)
class Microbatched:
    """A stream as a source of batches, which are those that were formed of it."""

    stream: StreamSource
    log: BatchList

    def bind(self, folder: Path) -> Self:
        """Take relative places from `folder`."""
        return replace(self, stream=self.stream.bind(folder))

    def list_batches(self) -> list[BatchRef]:
        """Return the microbatches in the order of their forming. Their stamp stays: none is read again by itself."""
        return [
            BatchRef(batch=batch, locator=f"{self.stream.place}: {records} rows", change_token=formed_at.isoformat())
            for batch, records, formed_at in self.log.batches()
        ]

    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the stream's fields."""
        return self.stream.columns()

    def read(self, ref: BatchRef, fields: Sequence[str]) -> SourceBatch:
        """Read the rows of a microbatch as they are now. Raises SourceError."""
        item_ids = self.log.items(ref.batch)
        if not item_ids:
            raise SourceError(f"{self.stream.place}: no microbatch {ref.batch!r} was formed")
        return self.stream.read_items(item_ids, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormReport:
    """What one forming did. `waiting` counts the rows seen that are in no batch; `is_capped`: there may be more.

    `oldest_wait_s` is since the oldest of them was first seen; `unseen` counts by column the rows that can never be
    batched, since it is NULL.
    """

    formed: tuple[str, ...] = ()
    waiting: int = 0
    is_capped: bool = False
    oldest_wait_s: float = 0.0
    unseen: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        """Say it in a line."""
        formed = _count(len(self.formed), "batch", "batches") + " formed"
        named = f" ({', '.join(self.formed)})" if self.formed else ""
        at_least = "at least " if self.is_capped else ""
        waits = "waits" if self.waiting == 1 else "wait"
        oldest = f", the oldest for {self.oldest_wait_s:.0f} s" if self.waiting else ""
        words = [f"{formed}{named}", f"{at_least}{_count(self.waiting, 'row', 'rows')} {waits}{oldest}"]
        words += [
            f"WARNING: {_count(n, 'row', 'rows')} can't be batched: {column} is NULL"
            for column, n in self.unseen.items()
        ]
        return "; ".join(words)


def form_batches(stream: StreamSource, log: BatchLog, *, now: dt.datetime, max_batches: int) -> FormReport:
    """Form up to `max_batches` microbatches of the rows that are in none, one transaction for each.

    It may be killed at any point and run at several places at once: no row is lost, none is batched twice. Raises
    SourceError if the stream can't be read, ConfigError if its lookback has no meaning for its cursor.
    """
    cap = max_batches * stream.max_records
    state = log.state()
    late, swept = _sweep(stream, log, state, cap)
    fresh: Sequence[StreamRow] = _find_new(log, stream.scan(state.position), cap)
    is_capped = len(late) > cap or len(fresh) > cap
    formed: list[str] = []
    while len(formed) < max_batches:
        batch, late, fresh = log.form(late, fresh, max_records=stream.max_records, max_age_s=stream.max_age_s, now=now)
        if batch is None:
            break
        formed.append(batch)
    if not late:  # else the next call has to find them again
        log.save_sweep(state, swept)
    since = log.waiting_since()
    return FormReport(
        formed=tuple(formed),
        waiting=len(late) + len(fresh),
        is_capped=is_capped,
        oldest_wait_s=max(0.0, (now - since).total_seconds()) if since else 0.0,
        unseen={column: n for column, n in stream.count_unseen().items() if n},
    )


def _sweep(
    stream: StreamSource, log: BatchLog, state: StreamState, cap: int
) -> tuple[Sequence[StreamRow], StreamState]:
    """Find rows that came behind the position, in the next part of the lookback; return them and how far that is.

    A new sweep looks back from where the last one began, so that no row can slip through while one is under way.
    """
    if state.position is None:
        return [], state
    start, began_at = state.swept_to, state.swept_from
    if start is None or began_at is None:
        last = state.position.cursor if began_at is None else began_at
        start, began_at = Place(step_back(last, stream.lookback)), state.position.cursor
    late: list[StreamRow] = []
    seen = 0
    reached: Place | None = None
    with closing(stream.scan(start, state.position)) as chunks:
        for chunk in chunks:
            late += log.find_unbatched(chunk)
            seen += len(chunk)
            reached = next((row.place for row in reversed(chunk) if row.key is not None), reached)
            if seen >= SWEEP_ROWS or len(late) > cap:
                break
        else:
            reached = None
    return late, replace(state, swept_from=began_at, swept_to=reached)


def _find_new(log: BatchLog, rows: Generator[Sequence[StreamRow], None, None], cap: int) -> list[StreamRow]:
    """Return rows that are in no microbatch, of as few as give more than `cap`."""
    found: list[StreamRow] = []
    with closing(rows) as chunks:
        for chunk in chunks:
            found += log.find_unbatched(chunk)
            if len(found) > cap:
                break
    return found


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
