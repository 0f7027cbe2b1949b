"""Frames: one Parquet file per partition, there as a whole or not at all."""

from functools import partial
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pytest
from factories import run_at_once

from batch_assets.core.errors import ConfigError
from batch_assets.store.frames import FrameStore, write_whole


def test_a_frame_comes_back_with_its_types(tmp_path: Path) -> None:
    store = FrameStore(tmp_path)
    frame = pl.DataFrame({"item_id": ["1", "2"], "n": [1, None]}, schema={"item_id": pl.String, "n": pl.Int64})
    assert store.read("t", "validated_results", "b1", "v1--m1") is None
    path = store.write(frame, "t", "validated_results", "b1", "v1--m1")
    assert path == tmp_path / "t" / "validated_results" / "b1" / "v1--m1.parquet"
    found = store.read("t", "validated_results", "b1", "v1--m1")
    assert found is not None
    assert found.equals(frame)
    assert found.schema == frame.schema


@pytest.mark.parametrize("key", ["2026-11-01", "a=b", "x.y"])
def test_a_key_is_a_file_name_and_never_a_pattern(tmp_path: Path, key: str) -> None:
    store = FrameStore(tmp_path)
    store.write(pl.DataFrame({"n": [1]}), "t", "kind", key)
    assert store.read("t", "kind", key) is not None


@pytest.mark.parametrize("key", ["../up", "/etc", "a/b", "", ".", "..", "a\x00"])
def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError):
        FrameStore(tmp_path).path("t", "kind", key)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "frame.parquet"
    write_whole(path, lambda f: f.write(b"old"))

    def fail(f: BinaryIO) -> None:
        f.write(b"new, but not all of i")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["frame.parquet"]


def test_threads_that_write_the_same_file_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    path = tmp_path / "frame.parquet"

    def write(n: int) -> None:
        for _ in range(20):
            write_whole(path, lambda f: [f.write(bytes([n]) * 1000) for _ in range(10)])

    assert run_at_once(*(partial(write, n) for n in range(4))) == []
    assert len(set(path.read_bytes())) == 1
    assert path.stat().st_size == 10_000
    assert [p.name for p in tmp_path.iterdir()] == ["frame.parquet"]
