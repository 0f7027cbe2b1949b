"""Frames: one Parquet file per partition under the home folder, there as a whole or not at all."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import polars as pl
from polars.exceptions import PolarsError

from batch_assets.core.errors import StoreError
from batch_assets.core.names import check_key


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

        StoreError where the disk takes it not; the frame before is then as it was.
        """
        path = self.path(task, kind, *keys)
        try:
            write_whole(path, frame.write_parquet)
        except (OSError, PolarsError) as e:  # polars wraps what the file raises
            raise StoreError(f"{path} can't be written: {e}; the file before, if there was one, is as it was") from e
        return path

    def read(self, task: str, kind: str, *keys: str) -> pl.DataFrame | None:
        """Return a frame, or None where none was written."""
        path = self.path(task, kind, *keys)
        return pl.read_parquet(path, glob=False) if path.exists() else None


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that appears whole or not at all, and outlives a power cut once this has returned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
