"""What becomes of a frame on its way into an export."""

import csv
import io
from pathlib import Path

import polars as pl
import pytest
from factories import make_task
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, create_model

from batch_assets.cli.exporter import (
    Exported,
    Survey,
    describe,
    describe_rows,
    fit_columns,
    neutralise_formulas,
    result_columns,
)
from batch_assets.core.errors import NotReadyError
from batch_assets.core.partition_keys import PartitionKey

COLUMNS = {"item_id": pl.String(), "out_label": pl.String(), "out_score": pl.Int64()}


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "=cmd|' /C calc'!A0", "\uff1d1+1", "\uff201"]
)
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(text: str) -> None:
    assert neutralise_formulas(pl.DataFrame({"a": [text]}))["a"].to_list() == ["'" + text]


@pytest.mark.parametrize("text", ["a=1", "'=1", "", " -1", "1-1", "ä", None])
def test_other_text_stays_as_it_is(text: str | None) -> None:
    frame = pl.DataFrame({"a": [text]}, schema={"a": pl.String})
    assert neutralise_formulas(frame)["a"].to_list() == [text]


@pytest.mark.parametrize("text", ['"=1+1"', '"=1', '","=1', 'x",=1', "x\n=1", "x\r\n=1,=2", "'\"=1"])
def test_no_quote_or_line_end_in_a_text_makes_a_cell_of_its_own(text: str) -> None:
    written = neutralise_formulas(pl.DataFrame({"a": [text], "b": ["y"]})).write_csv()
    assert list(csv.reader(io.StringIO(written, newline=""))) == [["a", "b"], [text, "y"]]


def test_no_column_begins_as_a_formula(tmp_path: Path) -> None:
    output = create_model("Odd", **{"a": (str, Field(alias="=1+1")), "b": (str, ...)})  # type: ignore[call-overload]
    assert not [name for name in result_columns(make_task(tmp_path, output=output)) if not name[0].isalpha()]


def test_each_column_of_text_keeps_its_own_name() -> None:
    frame = pl.DataFrame({"a": ["=1", "x"], "n": [1, 2], "b": ["y", "@2"]})
    assert neutralise_formulas(frame).to_dict(as_series=False) == {"a": ["'=1", "x"], "n": [1, 2], "b": ["y", "'@2"]}


def test_numbers_are_no_formulas() -> None:
    frame = pl.DataFrame({"n": [-1, None], "x": [-0.5, 1.0], "b": [True, False]})
    assert neutralise_formulas(frame).equals(frame)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), min_size=1))
def test_no_cell_of_a_csv_begins_as_a_formula_and_none_is_changed_otherwise(texts: list[str]) -> None:
    written = neutralise_formulas(pl.DataFrame({"a": texts, "n": 1})).write_csv()
    cells = [row[0] for row in csv.reader(io.StringIO(written, newline=""))][1:]
    assert [c.removeprefix("'") for c in cells] == [t.removeprefix("'") for t in texts]
    assert not [c for c in cells if c[:1] in "=+-@\t\r\n" and c]


def test_a_frame_of_an_earlier_output_model_gets_the_columns_of_the_present_one() -> None:
    old = pl.DataFrame({"item_id": ["1"], "out_gone": ["x"], "out_score": [2.0]})
    fitted = fit_columns(old, COLUMNS, "b1|v1--m1")
    assert fitted.schema == pl.Schema(COLUMNS)
    assert fitted.rows() == [("1", None, 2)]


def test_a_frame_that_doesnt_fit_is_named() -> None:
    with pytest.raises(NotReadyError, match=r"b1\|v1--m1: .*earlier output model"):
        fit_columns(pl.DataFrame({"item_id": ["1"], "out_score": ["high"]}), COLUMNS, "b1|v1--m1")


def test_what_is_wrong_is_told_with_counts_names_and_the_command_that_mends_it() -> None:
    keys = tuple(PartitionKey(f"b{n}", "v1--m1") for n in range(12))
    survey = Survey(found=keys[8:], missing=keys[:7], outdated=keys[9:11], lost=keys[7:8])
    assert describe("t", survey) == [
        "7 of 12 partitions have no results yet: b0|v1--m1, b1|v1--m1, b2|v1--m1, b3|v1--m1, b4|v1--m1 and 2 more: "
        "batch-assets run t",
        "2 of 12 partitions are out of date: b9|v1--m1, b10|v1--m1: batch-assets run t",
        "1 of 12 partitions are done and their frames are gone: b7|v1--m1: materialize their validated_results again "
        "in the web UI",
    ]
    assert not survey.is_whole
    assert describe("t", Survey(found=keys)) == []


def test_rows_left_out_and_changes_meanwhile_are_told() -> None:
    assert describe_rows(Exported(path="x")) == []
    told = describe_rows(Exported(path="x", left_out=3, has_changed=True))
    assert [line.split()[0] for line in told] == ["3", "the"]
