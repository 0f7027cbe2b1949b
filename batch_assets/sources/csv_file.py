"""CSV as RFC 4180 has it: quoted newlines, any one-character delimiter. Lines of another width are set aside."""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.text_file import read_text

_DELIMITERS = ",;\t|"


def read_csv_header(path: Path, delimiter: str | None) -> tuple[str, ...] | None:
    """Return the column names of a CSV file, or None where it is empty."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as f:
        first = f.readline()
    return tuple(_split_header(path, first, delimiter or _find_delimiter(first))) if first.strip() else None


def read_csv(path: Path, delimiter: str | None) -> SourceBatch:
    """Read a CSV file; a line with more or fewer fields than the header is set aside with its number."""
    text = read_text(path)
    lines = io.StringIO(text, newline="").readlines()
    if not lines or not lines[0].strip():
        raise SourceError(f"{path}: line 1: the file is empty; a CSV file begins with the names of its columns")
    delimiter = delimiter or _find_delimiter(lines[0])
    columns: list[str] = []
    kept: list[str] = []
    numbers: list[int] = []
    malformed: list[tuple[int, str]] = []
    for number, fields, raw in _split_rows(path, lines, delimiter):
        if not columns:
            columns = _check_columns(path, fields)
            kept.append(raw)
        elif not fields:
            continue  # an empty line is no record
        elif len(fields) != len(columns):
            malformed.append((number, f"{len(fields)} fields, the header has {len(columns)}"))
        else:
            numbers.append(number)
            kept.append(raw)
    return SourceBatch(frame=_parse(path, kept, columns, numbers, delimiter), malformed=malformed)


def _split_rows(path: Path, lines: list[str], delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield each row's first line number, its fields, and its raw text."""
    csv.field_size_limit(sys.maxsize)
    taken = 0
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            raise SourceError(f"{path}: line {taken + 1}: not CSV: {e}") from e
        yield taken + 1, fields, "".join(lines[taken : reader.line_num])
        taken = reader.line_num


def _parse(path: Path, kept: list[str], columns: list[str], numbers: list[int], delimiter: str) -> pl.DataFrame:
    if not numbers:
        empty = {c: pl.Series(c, [], dtype=pl.String) for c in columns}
        return pl.DataFrame({**empty, SOURCE_LINE: pl.Series([], dtype=pl.Int64)})
    try:
        frame = pl.read_csv("".join(kept).encode(), separator=delimiter, infer_schema=False, empty_string_is_null=False)
    except pl.exceptions.PolarsError as e:
        raise SourceError(f"{path}: not CSV: {e}") from e
    if frame.height != len(numbers):
        raise SourceError(
            f"{path}: quoting is ambiguous: {len(numbers)} records by one reading, {frame.height} by another; "
            "check for a quote that is not closed"
        )
    return frame.with_columns(pl.Series(SOURCE_LINE, numbers, dtype=pl.Int64))


def _find_delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _split_header(path: Path, line: str, delimiter: str) -> list[str]:
    return _check_columns(path, next(csv.reader([line], delimiter=delimiter)))


def _check_columns(path: Path, columns: list[str]) -> list[str]:
    if any(not c.strip() for c in columns) or len(set(columns)) != len(columns) or SOURCE_LINE in columns:
        raise SourceError(
            f"{path}: line 1: column names must be there, differ, and not be {SOURCE_LINE!r}: {', '.join(columns)}"
        )
    return columns
