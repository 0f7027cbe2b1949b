"""Parquet: every column cast to text; nested ones become JSON, and bytes are text if a prompt wants them."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch

# Polars panics over some damaged files and nested types, and a panic is no `Exception`.
_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_COLUMN = "v"
"""What a column is called while it is read: polars takes names such as `*` or `^a$` for patterns of names."""


def read_parquet_header(path: Path) -> tuple[str, ...] | None:
    """Return the column names of a Parquet file."""
    try:
        return tuple(pl.scan_parquet(path, glob=False).collect_schema().names())
    except _ERRORS as e:
        raise SourceError(f"{path}: not a Parquet file, or a damaged one: {e}") from e


def read_parquet(path: Path, fields: Sequence[str]) -> SourceBatch:
    """Read a Parquet file; `source_line` is the row's number, from 1.

    A column of bytes is read only if it is one of `fields`; a row in which it isn't UTF-8 is set aside.
    """
    read_parquet_header(path)
    try:
        frame = pl.scan_parquet(path, glob=False).collect()
    except _ERRORS as e:
        raise SourceError(f"{path}: a damaged Parquet file: {e}") from e
    columns: dict[str, pl.Series] = {}
    malformed = dict[int, str]()
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Binary):
            if name in fields:
                columns[name] = _decode(frame[name], malformed)
        elif name != SOURCE_LINE:
            try:
                columns[name] = frame[name].alias(_COLUMN).to_frame().select(_as_text(dtype).alias(_COLUMN))[_COLUMN]
            except _ERRORS as e:
                raise SourceError(f"{path}: column {name!r}: {dtype} can't be read as text: {e}") from e
    columns[SOURCE_LINE] = pl.int_range(1, frame.height + 1, dtype=pl.Int64, eager=True)
    read = pl.DataFrame(columns)
    if malformed:
        read = read.filter(~pl.col(SOURCE_LINE).is_in(list(malformed)))
    return SourceBatch(frame=read, malformed=sorted(malformed.items()))


def _decode(column: pl.Series, malformed: dict[int, str]) -> pl.Series:
    texts: list[str | None] = []
    for line, data in enumerate(column, start=1):
        try:
            texts.append(None if data is None else bytes(data).decode("utf-8"))
        except UnicodeDecodeError:
            texts.append(None)
            malformed.setdefault(line, f"{column.name}: not UTF-8 text")
    return pl.Series(column.name, texts, dtype=pl.String)


def _as_text(dtype: pl.DataType) -> pl.Expr:
    column = pl.col(_COLUMN)
    if isinstance(dtype, pl.Struct):
        text = column.struct.json_encode()
    elif isinstance(dtype, pl.List | pl.Array):
        # Only a struct can be written as JSON, so the column becomes its one field, whose name is then cut off.
        text = pl.struct(column.alias("v")).struct.json_encode().str.strip_prefix('{"v":').str.strip_suffix("}")
    elif isinstance(dtype, pl.Duration):
        return column.dt.to_string("iso")
    else:
        return column.cast(pl.String)
    return pl.when(column.is_not_null()).then(text)
