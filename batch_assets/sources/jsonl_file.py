"""JSON Lines: an object per line. A line that is none is set aside; numbers keep their digits."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from batch_assets.core.canonical import canonical_json
from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.text_file import read_text


def read_jsonl_header(path: Path) -> tuple[str, ...] | None:
    """Return the keys of the first readable line, or None where there is none."""
    with path.open(encoding="utf-8-sig", errors="replace") as f:
        for line in f:
            found = _parse_line(line)
            if isinstance(found, dict):
                return tuple(found)
    return None


def read_jsonl(path: Path, fields: Sequence[str]) -> SourceBatch:
    """Read a JSON Lines file. An object without one of `fields` is an error; null is a value.

    Text stays as it is, null is null, and anything else becomes its canonical JSON text.
    """
    rows: list[dict[str, str | None]] = []
    numbers: list[int] = []
    malformed: list[tuple[int, str]] = []
    # Not splitlines(): that also splits at U+2028 and the like, which JSON allows inside a string.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        found = _parse_line(line)
        if isinstance(found, str):
            malformed.append((number, found))
            continue
        missing = [f for f in fields if f not in found]
        if missing:
            raise SourceError(f"{path}: line {number}: no field {', '.join(map(repr, missing))}")
        rows.append({k: _as_text(v) for k, v in found.items() if k != SOURCE_LINE})
        numbers.append(number)
    columns = dict.fromkeys(k for row in rows for k in row) or dict.fromkeys(fields)
    data = {c: pl.Series(c, [row.get(c) for row in rows], dtype=pl.String) for c in columns}
    return SourceBatch(
        frame=pl.DataFrame({**data, SOURCE_LINE: pl.Series(numbers, dtype=pl.Int64)}), malformed=malformed
    )


def _parse_line(line: str) -> dict[str, Any] | str:
    """Return the object on a line, or the reason why it is none."""
    try:
        value: object = json.loads(line, parse_float=_Literal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        return f"not JSON: {e}"
    if not isinstance(value, dict):
        return f"expected an object, found {type(value).__name__}"
    found = cast("dict[str, Any]", value)
    if any(_has_surrogate(s) for s in (line, *found, *(v for v in found.values() if isinstance(v, str)))):
        return "an unpaired surrogate, which is no text"
    return found


class _Literal(float):
    """A float that remembers how it was written."""

    def __new__(cls, text: str) -> "_Literal":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, _Literal):
        return value.text
    return canonical_json(value)


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
