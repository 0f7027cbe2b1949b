"""Parquet: every column becomes text, null stays null, and a file that is none is a SourceError."""

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE
from batch_assets.sources.parquet_file import read_parquet, read_parquet_header

DAY = dt.datetime(2026, 11, 1, 9, 30)


def read_column(folder: Path, values: Any, name: str = "v") -> list[str | None]:
    """Return what becomes of one column."""
    path = folder / "x.parquet"
    pl.DataFrame({name: values}).write_parquet(path)
    frame = read_parquet(path, [name]).frame
    assert frame.schema == {name: pl.String, SOURCE_LINE: pl.Int64}
    return frame[name].to_list()


COLUMNS: dict[str, tuple[Any, list[str | None]]] = {
    "text": (["007", "", None], ["007", "", None]),
    "integers": ([2**62, -1, None], ["4611686018427387904", "-1", None]),
    "unsigned": (pl.Series([2**64 - 1, None], dtype=pl.UInt64), ["18446744073709551615", None]),
    "floats": ([0.1, 1e22, None], ["0.1", "1e+22", None]),
    "booleans": ([True, None], ["true", None]),
    "dates": ([DAY.date(), None], ["2026-11-01", None]),
    "moments": ([DAY, None], ["2026-11-01 09:30:00.000000", None]),
    "durations": ([dt.timedelta(seconds=90), None], ["PT1M30S", None]),
    "decimals": ([decimal.Decimal("1.10"), None], ["1.10", None]),
    "categories": (pl.Series(["a", None], dtype=pl.Categorical), ["a", None]),
    "nulls": (pl.Series([None, None], dtype=pl.Null), [None, None]),
    "utf8 bytes": (["é".encode(), None], ["é", None]),
    "lists": ([[1, None], [], None], ["[1,null]", "[]", None]),
    "lists of text": ([['"ж"'], None], ['["\\"ж\\""]', None]),
    "lists of objects": ([[{"a": 1}], [], None], ['[{"a":1}]', "[]", None]),
    "arrays": (pl.Series([[1, 2], None], dtype=pl.Array(pl.Int64, 2)), ["[1,2]", None]),
    "objects": ([{"a": 1, "b": "x"}, {"a": None, "b": None}, None], ['{"a":1,"b":"x"}', '{"a":null,"b":null}', None]),
}


@pytest.mark.parametrize(("values", "texts"), COLUMNS.values(), ids=COLUMNS)
def test_a_column_becomes_text(tmp_path: Path, values: Any, texts: list[str | None]) -> None:
    assert read_column(tmp_path, values) == texts


@pytest.mark.parametrize("name", ['na"me', "имя", "a\\b", "v}", "{", "", " "])
def test_a_list_is_read_whatever_its_column_is_called(tmp_path: Path, name: str) -> None:
    assert read_column(tmp_path, [["x"], None], name) == ['["x"]', None]


def test_source_line_is_the_number_of_the_row_and_not_a_column_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({"id": ["a", "b"], SOURCE_LINE: ["x", "y"]}).write_parquet(path)
    assert read_parquet(path, []).frame.rows() == [("a", 1), ("b", 2)]


def test_a_file_without_rows_is_a_batch_without_records(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({"id": pl.Series([], dtype=pl.Int64), "tags": pl.Series([], dtype=pl.List(pl.Int64))}).write_parquet(
        path
    )
    assert read_parquet(path, []).frame.schema == {"id": pl.String, "tags": pl.String, SOURCE_LINE: pl.Int64}
    assert read_parquet_header(path) == ("id", "tags")


def test_a_path_is_never_taken_for_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "[x]*"
    folder.mkdir()
    pl.DataFrame({"id": ["a"]}).write_parquet(folder / "x.parquet")
    assert read_parquet(folder / "x.parquet", []).frame["id"].to_list() == ["a"]


def test_bytes_are_read_where_they_are_wanted_and_a_row_of_others_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({"id": ["a", "b", "c"], "v": ["é".encode(), b"\xff", None]}).write_parquet(path)
    batch = read_parquet(path, ["id", "v"])
    assert batch.frame.rows() == [("a", "é", 1), ("c", None, 3)]
    assert batch.malformed == [(2, "v: not UTF-8 text")]
    unwanted = read_parquet(path, ["id"])
    assert unwanted.frame.rows() == [("a", 1), ("b", 2), ("c", 3)]
    assert unwanted.malformed == []


def test_bytes_inside_lists_that_are_no_text_are_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x\.parquet: column 'v': .*can't be read as text"):
        read_column(tmp_path, [[b"\xff"]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet")


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda b: b"PAR1" + b + b"PAR1"))
def test_bytes_that_are_no_parquet_file_are_refused_by_name(folder: Path, data: bytes) -> None:
    path = folder / "any.parquet"
    path.write_bytes(data)
    for read in (lambda p: read_parquet(p, []), read_parquet_header):
        with pytest.raises(SourceError, match=r"any\.parquet: not a Parquet file"):
            read(path)


def test_a_damaged_file_is_a_batch_or_a_source_error(folder: Path) -> None:
    # With fixed seeds: some damage makes polars panic, and which does is up to its version.
    path = folder / "damaged.parquet"
    frame = pl.DataFrame({"id": [str(n) for n in range(50)], "tags": [[n] * (n % 3) for n in range(50)]})
    frame.write_parquet(path)
    whole = path.read_bytes()
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_parquet(path, [])
        except SourceError as e:
            refused += 1
            assert "damaged.parquet" in str(e)
    assert refused > 10
