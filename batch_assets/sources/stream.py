"""Microbatches of a stream: how they are formed, and how they are read as any other batch is."""

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from batch_assets.core.cursors import Cursor, StreamRow
from batch_assets.core.errors import SourceError
from batch_assets.sources.base import BatchRef, SourceBatch, StreamSource


class BatchList(Protocol):
    """Which microbatches a task has, and what is in them."""

    def batches(self) -> Sequence[tuple[str, int, dt.datetime]]:
        """Return all microbatches in the order of their forming: key, records, when."""
        ...

    def items(self, batch: str) -> Sequence[str]:
        """Return the ids in a microbatch, always in the same order; empty where there is no such batch."""
        ...


class BatchLog(Protocol):
    """The store's side of forming microbatches."""

    def position(self) -> Cursor | None:
        """Return the cursor value up to which rows are in batches, or None before the first."""
        ...

    def find_unbatched(self, rows: Sequence[StreamRow]) -> Sequence[StreamRow]:
        """Return the rows that are in no microbatch, each once, in their order."""
        ...

    def form(
        self, rows: Sequence[StreamRow], *, max_records: int, max_age_s: float, now: dt.datetime
    ) -> tuple[str | None, Sequence[StreamRow]]:
        """Form the next microbatch of the first `rows`, whole or not at all, if it is full or its time has come.

        Returns its key, or None, and the rows that still wait.
        """
        ...

    def waiting_since(self) -> dt.datetime | None:
        """Return when the oldest row that waits was first seen; None where none waits."""
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
            BatchRef(batch=batch, locator=f"{self.stream.place}: {records} rows", stamp=formed_at.isoformat())
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

    formed: Sequence[str] = ()
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
    SourceError where the stream can't be read.
    """
    cap = max_batches * stream.max_records
    waiting: list[StreamRow] = []
    with closing(stream.scan(log.position())) as chunks:
        for chunk in chunks:
            waiting += log.find_unbatched(chunk)
            if len(waiting) > cap:
                break
    is_capped = len(waiting) > cap
    rest: Sequence[StreamRow] = waiting
    formed: list[str] = []
    while len(formed) < max_batches:
        batch, rest = log.form(rest, max_records=stream.max_records, max_age_s=stream.max_age_s, now=now)
        if batch is None:
            break
        formed.append(batch)
    since = log.waiting_since()
    return FormReport(
        formed=formed,
        waiting=len(rest),
        is_capped=is_capped,
        oldest_wait_s=max(0.0, (now - since).total_seconds()) if since else 0.0,
        unseen={column: n for column, n in stream.count_unseen().items() if n},
    )


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
