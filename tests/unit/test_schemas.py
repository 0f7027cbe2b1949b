"""The contracts of the stored frames: what they take, and what they refuse."""

import datetime as dt
import enum
import random
from typing import Any, Literal

import pandera.errors
import polars as pl
import pytest
from pydantic import BaseModel, Field

from batch_assets.engines.fake import make_value
from batch_assets.pipeline.frame_schemas import (
    OUTPUT_PREFIX,
    answer_columns,
    source_records_schema,
    validated_results_schema,
)


class Colour(enum.StrEnum):
    RED = "red"


class Inner(BaseModel):
    a: int


class Answer(BaseModel):
    label: Literal["a", "b"]
    count: int
    share: float
    urgent: bool
    maybe: int | None
    colour: Colour
    inner: Inner
    many: list[str]
    either: int | str
    named: str = Field(alias="the_name")


NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def test_an_answers_fields_become_typed_columns_by_their_names_in_the_schema() -> None:
    assert answer_columns(Answer) == {
        "out_label": pl.String,
        "out_count": pl.Int64,
        "out_share": pl.Float64,
        "out_urgent": pl.Boolean,
        "out_maybe": pl.Int64,
        "out_colour": pl.String,
        "out_inner": pl.String,
        "out_many": pl.String,
        "out_either": pl.String,
        "out_the_name": pl.String,
    }


def make_results(**changed: Any) -> pl.DataFrame:
    row = {
        "item_id": "1",
        "batch": "b",
        "prompt_ver": "v1",
        "model_id": "m",
        "out_a": 1,
        "attempts": 1,
        "is_reused": False,
        "is_fallback": False,
        "updated_at": NOW,
        **changed,
    }
    return pl.DataFrame([row], schema_overrides={"updated_at": pl.Datetime("us", "UTC")})


def test_a_frame_of_results_is_taken_and_may_have_nulls_in_answers_alone() -> None:
    schema = validated_results_schema(Inner)
    schema.validate(make_results())
    schema.validate(make_results(out_a=None).cast({"out_a": pl.Int64}))


@pytest.mark.parametrize(
    "changed",
    [{"item_id": " "}, {"item_id": None}, {"attempts": -1}, {"out_a": "1"}, {"more": 1}, {"is_reused": None}],
)
def test_a_frame_of_results_that_breaks_the_contract_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        validated_results_schema(Inner).validate(make_results(**changed))


def test_a_doubled_record_is_refused() -> None:
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        validated_results_schema(Inner).validate(pl.concat([make_results(), make_results()]))


def make_source(**changed: Any) -> pl.DataFrame:
    row = {"item_id": "1", "source_line": 2, "text": "a", "more": "b", **changed}
    return pl.DataFrame([row], schema_overrides={"source_line": pl.Int64})


def test_a_frame_of_records_is_taken_with_columns_that_no_prompt_uses() -> None:
    schema = source_records_schema(("text",))
    schema.validate(make_source())
    schema.validate(make_source(text=None).cast({"text": pl.String}))


@pytest.mark.parametrize("changed", [{"item_id": ""}, {"item_id": "\n"}, {"source_line": 0}, {"text": 1}])
def test_a_frame_of_records_that_breaks_the_contract_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        source_records_schema(("text",)).validate(make_source(**changed))


def test_a_frame_of_records_without_a_field_that_a_prompt_uses_is_refused() -> None:
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        source_records_schema(("text", "lang")).validate(make_source())


def test_every_answer_that_can_be_made_up_fits_its_columns() -> None:
    schema = Answer.model_json_schema()
    for seed in range(20):
        answer: Any = make_value(schema, schema, random.Random(seed))
        values = {OUTPUT_PREFIX + k: str(v) if isinstance(v, dict | list) else v for k, v in answer.items()}
        frame = pl.DataFrame([values], schema=answer_columns(Answer), orient="row")
        assert frame.columns == list(values)
        assert [n for n in frame.columns if frame[n].null_count() and values[n] is not None] == []
