"""A table or view of any database, as it is found there: names checked and quoted, values bound, all read as text."""

import datetime as dt
import json
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import SAWarning
from sqlalchemy.sql import quoted_name

from batch_assets.core.errors import SourceError

_SHOWN = 20
UNDECLARED = sa.types.NullType()
_FROM_TEXT: Mapping[type, Callable[[str], object]] = {
    int: int,
    float: float,
    Decimal: Decimal,
    uuid.UUID: uuid.UUID,
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
}


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table or view that is there. `types` are those of its columns; `nullable`: the columns that may be NULL.

    `is_dynamic`: a column may hold values of any type, as SQLite's do.
    """

    clause: sa.TableClause
    types: Mapping[str, sa.types.TypeEngine[Any]]
    nullable: frozenset[str]
    is_dynamic: bool
    place: str

    def column(self, name: str) -> sa.ColumnClause[Any]:
        """Return a column. SourceError lists those there are."""
        if name not in self.types:
            raise SourceError(f"{self.place}: no column {name!r}; it has {_list(self.types)}")
        return self.clause.c[name]

    def is_binary(self, name: str) -> bool:
        """Say whether a column is declared to hold bytes."""
        return _python_type(self.types[name]) is bytes

    def to_values(self, name: str, text: str) -> list[object]:
        """Return the values of a column that are written as `text`: one, or of a dynamic column up to two."""
        if self.is_dynamic:
            return [text, *(n for n in (_read(int, text), _read(float, text)) if n is not None and str(n) == text)]
        value = _read(_FROM_TEXT.get(_python_type(self.types[name]), str), text)
        return [] if value is None else [value]


def find_table(connection: sa.Connection, name: str, place: str) -> SqlTable:
    """Find a table or view by `name` or `schema.name`. SourceError lists those there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # of types that SQLAlchemy doesn't know
        return _find_table(sa.inspect(connection), name, place)


def _find_table(inspector: sa.Inspector, name: str, place: str) -> SqlTable:
    schema, table = None, name
    if not inspector.has_table(name):
        schema, _, table = name.rpartition(".")
        if not schema or schema not in inspector.get_schema_names() or not inspector.has_table(table, schema):
            there = sorted({*inspector.get_table_names(), *inspector.get_view_names()})
            raise SourceError(f"{place}: no table or view {name!r}; there are {_list(there) or 'none'}")
    found = inspector.get_columns(table, schema)
    is_dynamic = inspector.dialect.name == "sqlite"
    types = {c["name"]: c["type"] for c in found}
    # SQLAlchemy doesn't know every reserved word; where unquoted names are not turned to capitals, quotes do no harm.
    is_quoted = None if inspector.dialect.requires_name_normalize else True
    names = {n: quoted_name(n, is_quoted) for n in types}
    # SQLite's values are taken as they are: what is declared there as a time may be text of any form.
    columns: list[sa.ColumnClause[Any]] = [
        sa.column(names[n]) if is_dynamic else sa.column(names[n], t) for n, t in types.items()
    ]
    return SqlTable(
        clause=sa.table(
            quoted_name(table, is_quoted), *columns, schema=quoted_name(schema, is_quoted) if schema else None
        ),
        types=types,
        nullable=frozenset(c["name"] for c in found if c.get("nullable", True)),
        is_dynamic=is_dynamic,
        place=f"{place}, table {name!r}",
    )


def to_text(value: object, kind: sa.types.TypeEngine[Any]) -> str | None:
    """Return a value as text, NULL as None; a time with a zone is written in UTC. What isn't UTF-8 becomes surrogates.

    `kind` is the column's declared type: SQLite keeps truth values as 0 and 1, and times as text.
    """
    match value:
        case None:
            return None
        case str():
            return _write_time(value) if isinstance(kind, sa.DateTime) else value
        case bool():
            return "true" if value else "false"
        case int():
            return ("false", "true")[value] if isinstance(kind, sa.Boolean) and value in (0, 1) else str(value)
        case dt.datetime():
            return (value.astimezone(dt.UTC) if value.tzinfo else value).isoformat()
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return str(pl.Series([value]).dt.to_string("iso")[0])
        case Decimal():
            return f"{value:f}"
        case bytes() | bytearray() | memoryview():
            return bytes(cast("bytes", value)).decode("utf-8", "surrogateescape")
        case dict() | list() | tuple():
            return json.dumps(
                cast("object", value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str
            )
        case _:
            return str(value)


def has_surrogate(text: str) -> bool:
    """Say whether there are bytes in a text that weren't UTF-8."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def replace_surrogates(text: str) -> str:
    """Return a text with a question mark for each byte that wasn't UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _write_time(text: str) -> str:
    moment = _read(dt.datetime.fromisoformat, text)
    return text if moment is None else to_text(moment, UNDECLARED) or text


def _python_type(kind: sa.types.TypeEngine[Any]) -> type:
    try:
        return kind.python_type
    except NotImplementedError:
        return str


def _read(read: Callable[[str], object], text: str) -> object | None:
    try:
        return read(text)
    except (ValueError, ArithmeticError):
        return None


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown}, …" if len(names) > _SHOWN else shown
