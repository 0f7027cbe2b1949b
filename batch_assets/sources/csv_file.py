"""CSV as RFC 4180 has it: quoted newlines, any one-character delimiter. Lines of another width are set aside."""

import csv
import io
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.text_file import UTF8, open_text, read_text

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"(?:[^"]|"")*(?:"|$)')


def read_csv_header(path: Path, delimiter: str | None, encoding: str = UTF8) -> tuple[str, ...] | None:
    """Return the column names of a CSV file, or None if it is empty. Raises SourceError."""
    with open_text(path, encoding, newline="") as f:
        first = f.readline()
        if not first.strip():
            return None
        rows = _split_rows(path, itertools.chain([first], f), delimiter or _find_delimiter(first), [])
        return next((tuple(_check_columns(path, fields)) for _, fields in rows), None)


def read_csv(path: Path, delimiter: str | None, encoding: str = UTF8) -> SourceBatch:
    """Read a CSV file; a line with more or fewer fields than the header, or with a stray quote, is set aside.

    Raises SourceError if a quote makes it impossible to tell one record from the next.
    """
    text = read_text(path, encoding)
    # A lone CR ends a line only if no LF does (old Mac files): elsewhere it would split a record unseen.
    lines = io.StringIO(text, newline="\n" if "\n" in text else "").readlines()
    if not lines or not lines[0].strip():
        raise SourceError(f"{path}: line 1: it is empty; a CSV file begins with the names of its columns")
    malformed: list[tuple[int, str]] = []
    rows = _split_rows(path, lines, delimiter or _find_delimiter(lines[0]), malformed)
    first = next(rows, None)
    if first is None or malformed:
        raise SourceError(f"{path}: line 1: the names of the columns can't be read: {malformed[0][1]}")
    columns = _check_columns(path, first[1])
    values: list[list[str]] = [[] for _ in columns]
    numbers: list[int] = []
    for number, fields in rows:
        if not fields:
            continue  # an empty line is no record
        if len(fields) != len(columns):
            malformed.append((number, f"{len(fields)} fields, the header has {len(columns)}"))
            continue
        numbers.append(number)
        for column, value in zip(values, fields, strict=True):
            column.append(value)
    data = {c: pl.Series(c, v, dtype=pl.String) for c, v in zip(columns, values, strict=True)}
    return SourceBatch(
        frame=pl.DataFrame({**data, SOURCE_LINE: pl.Series(numbers, dtype=pl.Int64)}), malformed=malformed
    )


def _split_rows(
    path: Path, lines: Iterable[str], delimiter: str, malformed: list[tuple[int, str]]
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line number and its fields; a line whose quotes are wrong goes to `malformed`.

    Quotes that are wrong over several lines raise SourceError: nobody can tell where those records begin and end.
    """
    csv.field_size_limit(sys.maxsize)
    taken = 0
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            if reader.line_num > taken + 1:
                raise SourceError(
                    f"{path}: lines {taken + 1} to {reader.line_num}: a quote that opens here is not closed, or not "
                    f"where its field ends: {e}"
                ) from e
            malformed.append((taken + 1, f"not CSV: {e}"))
        else:
            yield taken + 1, fields
        taken = reader.line_num


def _find_delimiter(header: str) -> str:
    return max(_DELIMITERS, key=_QUOTED.sub("", header).count)


def _check_columns(path: Path, columns: list[str]) -> list[str]:
    if any(not c.strip() for c in columns) or len(set(columns)) != len(columns) or SOURCE_LINE in columns:
        raise SourceError(
            f"{path}: line 1: column names must be there, differ, and not be {SOURCE_LINE!r}: {', '.join(columns)}"
        )
    return columns
