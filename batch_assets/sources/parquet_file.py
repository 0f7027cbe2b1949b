"""Parquet: every column cast to text; nested ones become JSON."""

from pathlib import Path

import polars as pl

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch


def read_parquet_header(path: Path) -> tuple[str, ...] | None:
    """Return the column names of a Parquet file."""
    return tuple(_open(path).collect_schema().names())


def read_parquet(path: Path) -> SourceBatch:
    """Read a Parquet file; `source_line` is the row's number, from 1."""
    frame = _open(path).collect()
    columns = [_as_text(name, dtype) for name, dtype in frame.schema.items() if name != SOURCE_LINE]
    numbers = pl.int_range(1, frame.height + 1, dtype=pl.Int64, eager=True).alias(SOURCE_LINE)
    return SourceBatch(frame=frame.select(columns).with_columns(numbers), malformed=[])


def _open(path: Path) -> pl.LazyFrame:
    try:
        found = pl.scan_parquet(path)
        found.collect_schema()
    except pl.exceptions.PolarsError as e:
        raise SourceError(f"{path}: not a Parquet file: {e}") from e
    return found


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Struct):
        return pl.col(name).struct.json_encode()
    if isinstance(dtype, pl.List | pl.Array):
        return pl.struct(pl.col(name)).struct.json_encode().str.strip_prefix(f'{{"{name}":').str.strip_suffix("}")
    return pl.col(name).cast(pl.String)
