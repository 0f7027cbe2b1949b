"""Cursor values: what orders the rows of a stream. Kept as text, and given back with their type."""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from batch_assets.core.errors import ConfigError, StoreError

Cursor = int | float | Decimal | dt.datetime | dt.date | str
_CODECS: dict[str, tuple[type, Callable[[str], Cursor]]] = {
    "integer": (int, int),
    "float": (float, float),
    "decimal": (Decimal, Decimal),
    "time": (dt.datetime, dt.datetime.fromisoformat),  # before date, whose subclass it is
    "date": (dt.date, dt.date.fromisoformat),
    "text": (str, str),
}


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A row's identity: its id, and the cursor value that it has now."""

    item_id: str
    cursor: Cursor

    @property
    def key(self) -> tuple[str, str]:
        """The id and the cursor as text: what is batched once."""
        return self.item_id, write_cursor(self.cursor)


def is_cursor(value: object) -> bool:
    """Say whether a value can order rows: a number, a time or text; no truth value, and not NaN."""
    return isinstance(value, Cursor) and not isinstance(value, bool) and value == value


def write_cursor(cursor: Cursor) -> str:
    """Return the one text of a cursor value; a time with a zone is written in UTC."""
    match cursor:
        case dt.datetime():
            moment = cursor.astimezone(dt.UTC) if cursor.tzinfo else cursor
            return moment.isoformat(timespec="microseconds")
        case dt.date():
            return cursor.isoformat()
        case _:
            return str(cursor)


def to_document(cursor: Cursor) -> dict[str, str]:
    """Return a cursor with its type, to be kept as JSON."""
    kind = next(k for k, (cls, _) in _CODECS.items() if isinstance(cursor, cls))
    return {"type": kind, "value": write_cursor(cursor)}


def from_document(document: Mapping[str, str]) -> Cursor:
    """Read what `to_document` wrote. Raises StoreError for anything else."""
    try:
        return _CODECS[document["type"]][1](document["value"])
    except (KeyError, ArithmeticError, ValueError) as e:
        raise StoreError(f"the position of a stream can't be read: {dict(document)}") from e


def step_back(cursor: Cursor, lookback: float) -> Cursor:
    """Return a cursor value that is `lookback` (seconds of a time, else units of a number) before, or a bit more.

    A text that begins as ISO 8601 is a time too, as SQLite keeps them. Raises ConfigError for any other text.
    """
    if not lookback:
        return cursor
    match cursor:
        case dt.datetime():
            return _subtract(cursor, lookback)
        case dt.date():
            return _subtract(dt.datetime.combine(cursor, dt.time()), lookback).date()
        case str():
            return _step_text_back(cursor, lookback)
        case Decimal():
            return cursor - Decimal(str(lookback))
        case int():
            return cursor - int(-(-lookback // 1))
        case float():
            return cursor - lookback


def later_of(position: Cursor | None, cursor: Cursor) -> Cursor:
    """Return the greater of two cursor values; the second where they can't be compared here.

    How texts are ordered, only their database knows. A position that is too low costs time, and no row.
    """
    if position is None or isinstance(cursor, str) or isinstance(position, str):
        return cursor
    try:
        return max(position, cursor)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    except TypeError:  # the column's type was changed
        return cursor


def _subtract(moment: dt.datetime, seconds: float) -> dt.datetime:
    try:
        return moment - dt.timedelta(seconds=seconds)
    except OverflowError:
        return dt.datetime.min.replace(tzinfo=moment.tzinfo)


def _step_text_back(text: str, lookback: float) -> str:
    """Return the earlier time as text of the same form, cut to whole seconds, so that it sorts before its equals."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError(f"lookback: a cursor of text must be a time as ISO 8601 has it, not {text!r}") from e
    separator = text[10] if len(text) > 10 else " "
    whole = _subtract(moment.replace(tzinfo=None), lookback).replace(microsecond=0)
    return whole.isoformat(sep=separator, timespec="seconds") if len(text) > 10 else whole.date().isoformat()
