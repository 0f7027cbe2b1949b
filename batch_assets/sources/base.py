"""What every source offers: its batches, its columns, and one batch as a frame of text."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import polars as pl

from batch_assets.core.canonical import DIGEST_HEX_DIGITS, canonical_json

ITEM_ID = "item_id"
SOURCE_LINE = "source_line"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """A batch that a source offers. `stamp` changes when its content may have; telling is cheap, reading is not."""

    batch: str
    locator: str
    stamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """A batch as it was read.

    `frame`: one row per record; `item_id` and all other columns are text, `source_line` is the line (or row) in the
    source, from 1. `malformed`: the lines that were set aside, with the reason.
    """

    frame: pl.DataFrame
    malformed: Sequence[tuple[int, str]]

    @property
    def source_hash(self) -> str:
        """24 hex digits over all rows, and the set-aside lines with their numbers.

        Where a record stands in the file doesn't matter.
        """
        rows = self.frame.drop(SOURCE_LINE).sort(ITEM_ID)
        content = hashlib.sha256(rows.write_ndjson().encode("utf-8", "surrogatepass"))
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
