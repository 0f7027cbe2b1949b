"""What every source offers: its batches, its columns, and one batch as a frame of text."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import polars as pl
from pydantic import ConfigDict

from batch_assets.core.canonical import DIGEST_HEX_DIGITS, canonical_json
from batch_assets.core.cursors import Place, StreamRow
from batch_assets.core.entries import Entry

ITEM_ID = "item_id"
SOURCE_LINE = "source_line"
HASHED_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """A batch that a source offers. `change_token` changes when its content may have; telling is cheap, reading is not.

    To read no half-written one, wait until it was left alone for `settle_s` seconds since `changed_at`
    (seconds since 1970; None if a batch is whole from the beginning).
    """

    batch: str
    locator: str
    change_token: str
    changed_at: float | None = None
    settle_s: float = 0.0

    def is_settled(self, at: float) -> bool:
        """Say whether nobody seems to be writing it. A time in the future, from another clock, is no recent one."""
        return self.changed_at is None or abs(at - self.changed_at) >= self.settle_s


@dataclass(frozen=True, kw_only=True)  # no slots: the hash is kept
class SourceBatch:
    """A batch as it was read.

    `frame`: one row per record; `item_id` and all other columns are text, `source_line` is the line (or row) in the
    source, from 1. `malformed`: the lines that were set aside, with the reason. `cleaned`: the lines of which a value
    was cleaned, with what was done; they are records all the same.
    """

    frame: pl.DataFrame
    malformed: Sequence[tuple[int, str]]
    cleaned: Sequence[tuple[int, str]] = ()

    @cached_property
    def source_hash(self) -> str:
        """24 hex digits over all rows, and the set-aside lines with their numbers.

        Where a record stands in the file doesn't matter.
        """
        rows = self.frame.drop(SOURCE_LINE).sort(ITEM_ID)
        content = hashlib.sha256()
        for part in rows.iter_slices(HASHED_ROWS):  # the same as of the whole, in less memory
            content.update(part.write_ndjson().encode("utf-8", "surrogatepass"))
        content.update(canonical_json([list(m) for m in self.malformed]).encode("utf-8", "surrogatepass"))
        return content.hexdigest()[:DIGEST_HEX_DIGITS]


class Source(Protocol):
    """Where a task's records come from."""

    def bind(self, folder: Path) -> Self:
        """Return the source with its relative places taken from the task's folder."""
        ...

    def list_batches(self) -> list[BatchRef]:
        """Return all batches, in the order in which they are to be read; the later one owns a repeated id."""
        ...

    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the fields, or None while there is nothing to tell them from."""
        ...

    def read(self, ref: BatchRef, fields: Sequence[str]) -> SourceBatch:
        """Read one batch that must have `fields`. Raises SourceError, naming file, line and field."""
        ...


@runtime_checkable
class StreamSource(Protocol):
    """Where records come from that know no batches: rows by a cursor, of which microbatches are formed.

    A microbatch is full at `max_records`, and closed with fewer when the oldest row has waited `max_age_s`.
    """

    @property
    def max_records(self) -> int:
        """Records in a full microbatch."""
        ...

    @property
    def max_age_s(self) -> float:
        """Seconds that a row may wait for others."""
        ...

    @property
    def lookback(self) -> float:
        """By how much (seconds of a time, else units of a number) a row's cursor may be behind one seen before."""
        ...

    @property
    def place(self) -> str:
        """Where the rows are, for a person to read; no secret."""
        ...

    def bind(self, folder: Path) -> Self:
        """Return the source with its relative places taken from `folder`, the task's. Raises ConfigError."""
        ...

    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the fields. Raises SourceError if they can't be told."""
        ...

    def scan(self, after: Place | None, until: Place | None = None) -> Generator[Sequence[StreamRow], None, None]:
        """Yield in chunks the rows after a place, up to and with another, by cursor and then by id.

        To be closed, like a file, by who doesn't read it to its end. Raises SourceError.
        """
        ...

    def count_unseen(self) -> Mapping[str, int]:
        """Return by column how many rows `scan` never yields, since they have no id or no cursor."""
        ...

    def read_items(self, item_ids: Sequence[str], fields: Sequence[str]) -> SourceBatch:
        """Read rows by id, as they are now; `source_line` is the place in `item_ids`, from 1.

        An id that no row has (any more), or several, is set aside. Raises SourceError if `fields` aren't there.
        """
        ...


class SourceFields(Entry, ABC):
    """What `source:` of a task in YAML may say of one kind of source, and how the source is made of it.

    `register_source` gives a shipped one its name; another is named by its dotted name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    def build(self) -> Source | StreamSource:
        """Return the source, not yet bound to a folder. Raises ConfigError."""
