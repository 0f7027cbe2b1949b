"""JSON Lines: an object per line. A line that is none is set aside; numbers keep their digits."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import polars as pl

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.text_file import UTF8, open_text, read_text

HEADER_LINES, HEADER_CHARACTERS = 1000, 1_000_000


def read_jsonl_header(path: Path, encoding: str = UTF8) -> tuple[str, ...] | None:
    """Return the keys that the first lines have, or None if there is no readable one. Raises SourceError.

    Looks at HEADER_LINES objects or HEADER_CHARACTERS, whichever is first: an object may leave out what others have.
    """
    keys: dict[str, None] = {}
    objects = characters = 0
    with open_text(path, encoding, newline="\n") as f:
        for line in f:
            found = _parse_line(line)
            if isinstance(found, dict):
                keys.update(dict.fromkeys(found))
                objects += 1
            characters += len(line)
            if objects and (objects >= HEADER_LINES or characters >= HEADER_CHARACTERS):
                break
    return tuple(keys) if objects else None


def read_jsonl(path: Path, fields: Sequence[str], *, key: str | None = None, encoding: str = UTF8) -> SourceBatch:
    """Read a JSON Lines file. An object without one of `fields` is set aside; null is a value.

    Text stays as it is, null is null, a number stays as it is written, and anything else becomes JSON text. `key` is
    the column of the id, which is null if it is missing. Raises SourceError if every object lacks a field.
    """
    rows: list[dict[str, str | None]] = []
    numbers: list[int] = []
    malformed: list[tuple[int, str]] = []
    lacking: list[tuple[int, str]] = []
    # Not splitlines(): that also splits at U+2028 and the like, which JSON allows inside a string.
    lines = deque(read_text(path, encoding).split("\n"))
    for number in range(1, len(lines) + 1):
        line = lines.popleft()  # freed as it is read: else the file would be in memory once more
        if not line.strip():
            continue
        found = _parse_line(line)
        if isinstance(found, str):
            malformed.append((number, found))
            continue
        missing = [f for f in fields if f not in found]
        if missing:
            lacking.append((number, f"no field {', '.join(map(repr, missing))}"))
            continue
        rows.append({k: v for k, v in found.items() if k != SOURCE_LINE})
        numbers.append(number)
    if lacking and not rows:
        raise SourceError(f"{path}: line {lacking[0][0]}: {lacking[0][1]}; no other line has it either")
    columns = dict.fromkeys(k for row in rows for k in row) or dict.fromkeys([*([key] if key else []), *fields])
    data = {c: pl.Series(c, [row.get(c) for row in rows], dtype=pl.String) for c in columns}
    return SourceBatch(
        frame=pl.DataFrame({**data, SOURCE_LINE: pl.Series(numbers, dtype=pl.Int64)}),
        malformed=sorted([*malformed, *lacking]),
    )


def _parse_line(line: str) -> dict[str, str | None] | str:
    """Return the object on a line, every value as text or None, or the reason why there is none."""
    try:
        value: object = json.loads(
            line,
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_doubled_keys,
        )
        if not isinstance(value, dict):
            return f"expected an object, found {_name(value)}"
        found = {k: _as_text(v) for k, v in cast("dict[str, object]", value).items()}
    except (ValueError, RecursionError) as e:
        return f"not JSON: {e}"
    if any(_has_surrogate(s) for s in (*found, *found.values()) if s):
        return "an unpaired surrogate, which is no text"
    return found


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it is written: no digit is lost, and none is too many."""

    text: str


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    """Return compact JSON with sorted keys, strings and numbers as they are written."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        pairs = sorted(cast("dict[str, object]", value).items())
        return "{" + ",".join([f"{json.dumps(k, ensure_ascii=False)}:{_as_json(v)}" for k, v in pairs]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_as_json(v) for v in cast("list[object]", value)]) + "]"
    return json.dumps(value, ensure_ascii=False)


def _name(value: object) -> str:
    return "a number" if isinstance(value, _Number) else type(value).__name__


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _refuse_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        doubled = next(k for k, _ in pairs if k in seen or seen.add(k))
        raise ValueError(f"the key {doubled!r} comes twice")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
