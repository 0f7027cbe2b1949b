"""Frames: one Parquet file per partition under the home folder, there as a whole or not at all."""

import os
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import polars as pl
from polars.exceptions import PolarsError

from batch_assets.core.errors import StoreError
from batch_assets.core.names import check_key

MAX_BLOCK_ROWS, FIRST_BLOCK_ROWS = 20_000, 500
MAX_BLOCK_BYTES = 16 * 2**20
"""What `read_blocks` holds at a time, and a row group of the file: a frame may be larger than the memory."""


class FrameStore:
    """Frames by task, kind and partition. Keys are checked, so that no name leaves the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, task: str, kind: str, *keys: str) -> Path:
        """Return where a frame lies, `<task>/<kind>/<key>[/<key>].parquet`."""
        for key in keys:
            check_key(key, "partition key")
        *folders, name = keys
        return self._folder.joinpath(task, kind, *folders, f"{name}.parquet")

    def write(self, frame: pl.DataFrame, task: str, kind: str, *keys: str) -> Path:
        """Write a frame in place of the one before: temporary name, fsync, rename.

        Raises StoreError if the file can't be written; the previous frame stays.
        """
        with self.prepare(frame, task, kind, *keys) as staged:
            return staged.put()

    @contextmanager
    def prepare(self, frame: pl.DataFrame, task: str, kind: str, *keys: str) -> Generator["StagedFrame"]:
        """Write a frame beside its place; `put` then moves it there, else it is gone at the end.

        Raises StoreError if the file can't be written.
        """
        rows = _rows_within(MAX_BLOCK_BYTES, frame)
        path = self.path(task, kind, *keys)
        with _write_beside(path, lambda file: frame.write_parquet(file, row_group_size=rows)) as staged:
            yield staged

    @contextmanager
    def stage(
        self, blocks: Iterable[pl.DataFrame], schema: Mapping[str, Any], task: str, kind: str, *keys: str
    ) -> Generator["StagedFrame"]:
        """Do the same with a frame that comes block by block, in files of their own at first.

        Memory holds a few blocks. Raises StoreError if a file can't be written, and what `blocks` raises as it is.
        """
        path = self.path(task, kind, *keys)
        with ExitStack() as stack:
            with _refuse_in_our_words(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                parts = stack.enter_context(TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
            files: list[Path] = []
            for block in chain([pl.DataFrame(schema=dict(schema))], blocks):
                files.append(Path(parts, f"{len(files):08d}.parquet"))
                with _refuse_in_our_words(path):
                    block.write_parquet(files[-1])
            together = pl.scan_parquet(files, glob=False)
            staged = stack.enter_context(
                _write_beside(path, lambda file: together.sink_parquet(file, row_group_size=FIRST_BLOCK_ROWS))
            )
            for file in files:
                file.unlink()
            yield staged

    def read(self, task: str, kind: str, *keys: str) -> pl.DataFrame | None:
        """Return a frame, or None if none was written."""
        path = self.path(task, kind, *keys)
        return pl.read_parquet(path, glob=False) if path.exists() else None

    def read_blocks(self, task: str, kind: str, *keys: str) -> Iterator[pl.DataFrame]:
        """Yield a frame's rows in order, in blocks of about MAX_BLOCK_BYTES of text; none if none was written.

        A block is as long as the one before lets expect, so that only a sudden change of sizes makes a larger one.
        They are of one frame, even if another is written in its place meanwhile.
        """
        path = self.path(task, kind, *keys)
        if not path.exists():
            return
        with path.open("rb") as file:
            same = f"/proc/self/fd/{file.fileno()}"  # the path may come to name another file; this one stays
            offset, rows = 0, FIRST_BLOCK_ROWS
            while (block := pl.scan_parquet(same, glob=False).slice(offset, rows).collect()).height:
                yield block
                offset += block.height
                rows = _rows_within(MAX_BLOCK_BYTES, block)


@dataclass(slots=True, kw_only=True)
class StagedFrame:
    """A frame that is written as a whole, beside its place until `put` moves it there."""

    temporary: Path
    path: Path
    is_put: bool = False

    def scan(self) -> pl.LazyFrame:
        """Return its rows."""
        return pl.scan_parquet(self.path if self.is_put else self.temporary, glob=False)

    def put(self) -> Path:
        """Move it into its place; return that. Raises StoreError if the disk refuses."""
        with _refuse_in_our_words(self.path):
            self.temporary.replace(self.path)
            self.is_put = True
            _sync_folder(self.path.parent)
        return self.path


def cut(frame: pl.DataFrame, max_rows: int, max_bytes: int) -> Iterator[pl.DataFrame]:
    """Yield a frame's rows in order, so many and so many bytes of text at a time, and at least one row."""
    for part in frame.iter_slices(max_rows):
        start = held = 0
        for n, size in enumerate(_measure_rows(part)):
            if held + size > max_bytes and n > start:
                yield part.slice(start, n - start)
                start, held = n, 0
            held += size
        yield part.slice(start)


def _measure_rows(frame: pl.DataFrame) -> list[int]:
    """Return the bytes of text in each row."""
    texts = [pl.col(name).str.len_bytes().fill_null(0) for name, kind in frame.schema.items() if kind == pl.String]
    sizes = frame.select(pl.sum_horizontal(*texts).alias("bytes")) if texts else None
    return [0] * frame.height if sizes is None else sizes["bytes"].to_list()


def _rows_within(max_bytes: int, frame: pl.DataFrame) -> int:
    """Return how many rows like these come to `max_bytes`: at least 1, at most MAX_BLOCK_ROWS."""
    row_bytes = frame.estimated_size() / max(1, frame.height)
    return max(1, min(MAX_BLOCK_ROWS, int(max_bytes / max(1.0, row_bytes))))


@contextmanager
def _refuse_in_our_words(path: Path) -> Generator[None]:
    """Turn what a disk refuses into StoreError, which names the file that was to be written."""
    try:
        yield
    except (OSError, PolarsError) as e:  # polars wraps what the file raises
        raise StoreError(f"{path} can't be written: {e}; the file before, if there was one, stays") from e


@contextmanager
def _write_beside(path: Path, write: Callable[[BinaryIO], object]) -> Generator[StagedFrame]:
    """Write a file as a whole, to the disk, under a name of its own, which is gone at the end unless it was put."""
    temporary = _name_temporary(path)
    try:
        with _refuse_in_our_words(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        yield StagedFrame(temporary=temporary, path=path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that appears whole or not at all, and outlives a power cut once this has returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _name_temporary(path)
    try:
        with temporary.open("wb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _name_temporary(path: Path) -> Path:
    # A home may be shared by hosts, whose pids are alike.
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder outlive a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
