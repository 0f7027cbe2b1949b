"""The pandera contract of every stored frame. What a contract refuses, no asset passes on."""

import pandera.polars as pa
import polars as pl
from pydantic import BaseModel

OUTPUT_PREFIX = "out_"


def source_records_schema(fields: tuple[str, ...]) -> pa.DataFrameSchema:
    """Return the contract of a `source_records` frame: one row per record; the task's fields are there, as text."""
    return pa.DataFrameSchema(
        {
            "item_id": pa.Column(pl.String, [pa.Check.str_matches(r"\S")], unique=True),
            "source_line": pa.Column(pl.Int64, [pa.Check.ge(1)]),
            **{f: pa.Column(pl.String, nullable=True) for f in fields},
        },
        strict=False,
    )


def validated_results_schema(output: type[BaseModel]) -> pa.DataFrameSchema:
    """Return the contract of a `validated_results` frame: one row per `ok` result, the answer's fields as columns.

    `is_fallback` marks answers of the task's fallback model, which `model_id` names, to records quarantined here.
    """
    return pa.DataFrameSchema(
        {
            "item_id": pa.Column(pl.String, [pa.Check.str_matches(r"\S")], unique=True),
            "batch": pa.Column(pl.String),
            "prompt_ver": pa.Column(pl.String),
            "model_id": pa.Column(pl.String),
            **{name: pa.Column(dtype, nullable=True) for name, dtype in answer_columns(output).items()},
            "attempts": pa.Column(pl.Int64, [pa.Check.ge(0)]),
            "is_reused": pa.Column(pl.Boolean),
            "is_fallback": pa.Column(pl.Boolean),
            "updated_at": pa.Column(pl.Datetime("us", "UTC")),
        },
        strict=True,
        ordered=True,
    )


def answer_columns(output: type[BaseModel]) -> dict[str, type[pl.DataType]]:
    """Return the columns that an answer becomes, `out_<field>`: text, integer, number, boolean; else JSON text."""
    schema = output.model_json_schema()
    properties: dict[str, dict[str, object]] = schema.get("properties", {})
    return {OUTPUT_PREFIX + name: _dtype(spec) for name, spec in properties.items()}


def _dtype(spec: dict[str, object]) -> type[pl.DataType]:
    options = spec.get("anyOf")
    if isinstance(options, list):
        kinds = [o for o in options if isinstance(o, dict) and o.get("type") != "null"]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return _dtype(kinds[0]) if len(kinds) == 1 else pl.String  # pyright: ignore[reportUnknownArgumentType]
    match spec.get("type"):
        case "integer":
            return pl.Int64
        case "number":
            return pl.Float64
        case "boolean":
            return pl.Boolean
        case _:
            return pl.String
