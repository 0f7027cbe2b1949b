"""Cursor values: what orders the rows of a stream. Kept as text, and given back with their type."""

import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

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
class Place:
    """A place in a stream's order, by cursor and then by id: after the row with `key`.

    `key` is the id as its database orders it; None: before all rows with that cursor.
    """

    cursor: Cursor
    key: int | float | str | None = None


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A row's id, and the cursor value that it has now. `key` is as in Place, and doesn't tell rows apart."""

    item_id: str
    cursor: Cursor
    key: int | float | str | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[str, str]:
        """The id and the cursor as text: what is batched once."""
        return self.item_id, write_cursor(self.cursor)

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.cursor, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """How far a stream is in batches. All None: nothing is.

    `position`: up to here rows were taken in their order. Behind it rows may come late, so that what lies a lookback
    behind is swept again and again, in parts if it is much: `swept_to` is where the next part begins, None if no
    sweep is under way; `swept_from` is the cursor of the position at which this sweep (or else the last) began.
    """

    position: Place | None = None
    swept_from: Cursor | None = None
    swept_to: Place | None = None


def is_cursor(value: object) -> bool:
    """Say whether a value can order rows: a number, a time or text; no truth value, NaN or infinity.

    No row comes after one with an infinite cursor: all later ones would go unseen.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, Cursor) and not isinstance(value, bool)


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


def to_document(state: StreamState) -> dict[str, Any] | None:
    """Return a state as JSON, each value with its type; None for the first."""
    if state == StreamState():
        return None
    return {
        "position": _write_place(state.position),
        "swept_from": _write_value(state.swept_from),
        "swept_to": _write_place(state.swept_to),
    }


def from_document(document: Mapping[str, Any] | None) -> StreamState:
    """Read what `to_document` wrote. Raises StoreError for anything else."""
    if document is None:
        return StreamState()
    try:
        return StreamState(
            position=_read_place(document["position"]),
            swept_from=_read_value(document["swept_from"]),
            swept_to=_read_place(document["swept_to"]),
        )
    except (KeyError, TypeError, ArithmeticError, ValueError) as e:
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


def _write_value(value: Cursor | None) -> dict[str, str] | None:
    if value is None:
        return None
    kind = next(k for k, (cls, _) in _CODECS.items() if isinstance(value, cls))
    return {"type": kind, "value": write_cursor(value)}


def _read_value(document: Mapping[str, str] | None) -> Any:
    return None if document is None else _CODECS[document["type"]][1](document["value"])


def _write_place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else {"cursor": _write_value(place.cursor), "key": _write_value(place.key)}


def _read_place(document: Mapping[str, Any] | None) -> Place | None:
    return None if document is None else Place(_read_value(document["cursor"]), _read_value(document["key"]))


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
