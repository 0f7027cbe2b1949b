"""Frames: one Parquet file per partition, there as a whole or not at all."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pytest
import sqlalchemy as sa
from factories import run_at_once

from batch_assets.core.errors import ConfigError, NotReadyError, StoreError
from batch_assets.store.frames import FIRST_BLOCK_ROWS, MAX_BLOCK_BYTES, FrameStore, cut, write_whole


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


def read_texts(store: FrameStore) -> list[list[str]]:
    return [block["text"].to_list() for block in store.read_blocks("t", "kind", "b1")]


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 3000])
def test_blocks_have_all_rows_in_their_order(tmp_path: Path, count: int) -> None:
    store = FrameStore(tmp_path)
    assert read_texts(store) == [], "none was written"
    texts = [f"{n} {'x' * (n % 7)}" for n in range(count)]
    store.write(pl.DataFrame({"text": texts}, schema={"text": pl.String}), "t", "kind", "b1")
    assert [t for block in read_texts(store) for t in block] == texts


def test_blocks_of_long_records_hold_few_of_them(tmp_path: Path) -> None:
    store = FrameStore(tmp_path)
    store.write(pl.DataFrame({"text": [f"{n:04d}" + "x" * 200_000 for n in range(600)]}), "t", "kind", "b1")
    first, *later = read_texts(store)
    assert len(first) == FIRST_BLOCK_ROWS
    assert max(map(len, later)) * 200_000 <= MAX_BLOCK_BYTES
    assert [t[:4] for block in (first, *later) for t in block] == [f"{n:04d}" for n in range(600)]


def test_blocks_are_of_one_frame_even_if_another_takes_its_place(tmp_path: Path) -> None:
    store = FrameStore(tmp_path)
    old = [f"old {n}" for n in range(2000)]
    store.write(pl.DataFrame({"text": old}), "t", "kind", "b1")
    blocks = store.read_blocks("t", "kind", "b1")
    seen = next(blocks)["text"].to_list()
    store.write(pl.DataFrame({"text": ["new"]}), "t", "kind", "b1")
    seen += [t for block in blocks for t in block["text"]]
    assert seen == old


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1] * 7, [3, 3, 1]),
        ([5, 5, 5], [2, 1]),
        ([50, 1, 1, 50, 1], [1, 2, 1, 1]),
        ([None, None, None, None], [3, 1]),
    ],
)
def test_a_frame_is_cut_by_rows_and_by_bytes(sizes: list[int | None], expected: list[int]) -> None:
    texts = [None if n is None else "x" * n for n in sizes]
    frame = pl.DataFrame({"n": range(len(texts)), "text": texts}, schema={"n": pl.Int64, "text": pl.String})
    parts = list(cut(frame, 3, 10))
    assert [p.height for p in parts] == expected
    assert [n for p in parts for n in p["n"]] == list(range(len(texts)))


def iterate_blocks(*sizes: int) -> Iterator[pl.DataFrame]:
    start = 0
    for size in sizes:
        yield pl.DataFrame({"n": range(start, start + size)}, schema={"n": pl.Int64})
        start += size


@pytest.mark.parametrize("sizes", [(), (1,), (500, 500, 7), (3, 0, 3)])
def test_a_frame_that_comes_in_blocks_is_there_once_it_is_put(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    store = FrameStore(tmp_path)
    store.write(pl.DataFrame({"n": [-1]}), "t", "kind", "b1")
    for is_put in (False, True):
        with store.stage(iterate_blocks(*sizes), {"n": pl.Int64}, "t", "kind", "b1") as staged:
            assert staged.scan().collect()["n"].to_list() == list(range(sum(sizes)))
            if is_put:
                staged.put()
                assert staged.scan().collect().height == sum(sizes)
        frame = store.read("t", "kind", "b1")
        assert frame is not None
        assert (frame["n"].to_list(), frame.schema) == (list(range(sum(sizes))) if is_put else [-1], {"n": pl.Int64})
        assert [p.name for p in (tmp_path / "t" / "kind").iterdir()] == ["b1.parquet"]


@pytest.mark.parametrize(
    "error",
    [
        NotReadyError("not yet"),
        StoreError("full"),
        KeyboardInterrupt(),
        OSError("a source's own"),
        pl.exceptions.ComputeError("ours"),
        sa.exc.OperationalError("SELECT 1", {}, Exception("gone")),
    ],
)
def test_what_the_blocks_raise_comes_out_as_itself_and_leaves_the_old_frame(
    tmp_path: Path, error: BaseException
) -> None:
    def break_off() -> Iterator[pl.DataFrame]:
        yield from iterate_blocks(500, 500)
        raise error

    store = FrameStore(tmp_path)
    store.write(pl.DataFrame({"n": [-1]}), "t", "kind", "b1")
    with pytest.raises(type(error)) as raised, store.stage(break_off(), {"n": pl.Int64}, "t", "kind", "b1"):
        raise AssertionError
    assert raised.value is error
    frame = store.read("t", "kind", "b1")
    assert frame is not None
    assert frame["n"].to_list() == [-1]
    assert [p.name for p in (tmp_path / "t" / "kind").iterdir()] == ["b1.parquet"]


def test_blocks_are_made_in_the_callers_thread(tmp_path: Path) -> None:
    seen: list[threading.Thread] = []

    def look() -> Iterator[pl.DataFrame]:
        seen.append(threading.current_thread())
        yield from iterate_blocks(1)

    with FrameStore(tmp_path).stage(look(), {"n": pl.Int64}, "t", "kind", "b1"):
        assert seen == [threading.current_thread()]
