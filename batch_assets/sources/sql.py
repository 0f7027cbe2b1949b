"""A SQL table or view, of any database that SQLAlchemy speaks to, as a stream of rows by a cursor column."""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self, cast

import polars as pl
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from batch_assets.core.canonical import digest_text
from batch_assets.core.cursors import Cursor, Place, StreamRow, is_cursor
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.settings import read_variable
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, SourceBatch, SourceFields
from batch_assets.sources.registry import register_source
from batch_assets.sources.sql_table import UNDECLARED, SqlTable, find_table, has_surrogate, replace_surrogates, to_text
from batch_assets.sources.values import MAX_VALUE_BYTES, check_limit, clean_values, has_control, is_amount

_SCAN_CHUNK = 1000
_READ_CHUNK = 250
"""Ids in one query: with two values for an id where the column may hold any type, 500 at most are bound."""
_CONNECT_TIMEOUT_S = 10
_BUSY_TIMEOUT_S = 60
_MARK = "\x1f"
"""Begins what stands for an id that can't be one, and parts it from the reason."""
MAX_ID_BYTES = 1000
MAX_RECORDS = 100_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile("pass|pwd|token|secret", re.IGNORECASE)
"""In the name of an option that holds one."""
_OPTION = re.compile(r"(\w+)\s*=")
"""Of a list of options that is the value of another, as that of `odbc_connect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSource:
    """Rows of a table or view (`name` or `schema.name`), in microbatches of `max_records`, or fewer after `max_age_s`.

    The database is named by the environment variable `url_env`, or by `url`, which may hold no password; a relative
    SQLite file is taken from the task's folder. `key` is the column of the record's id and has to be unique.
    `cursor` is a column that grows when a row is added or changed: a number, a time or text. A changed row comes
    again in a later batch. A row whose cursor is NULL is never batched; forming counts those.

    `lookback` says by how much (seconds of a time, else units of a number) a row's cursor may be behind one that was
    seen before, as it is where transactions commit in another order than they began. 0: late rows with an equal
    cursor are seen, those with a smaller one are not. The lookback should cover the longest writing transaction; each
    forming reads that much again, or the next part of it if it is many rows.

    `fields` are the columns to read; None takes all but those of bytes. A row with a value of more than
    `max_value_bytes` bytes in a field that a prompt uses is set aside. docs/input.md has all rules.
    """

    table: str
    cursor: str
    key: str = ITEM_ID
    url_env: str = ""
    url: str = ""
    fields: tuple[str, ...] | None = None
    max_records: int = 1000
    max_age_s: float = 300.0
    lookback: float = 0.0
    max_value_bytes: int = MAX_VALUE_BYTES
    folder: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what can't work, before anything is read."""
        problems = [
            (not self.table.strip(), "table: it is empty"),
            (bool(self.url) == bool(self.url_env), "give one of url_env and url"),
            (bool(self.url_env) and not _VARIABLE.fullmatch(self.url_env), "url_env: not the name of a variable"),
            (not self.key or self.key == SOURCE_LINE, f"key: a column, other than {SOURCE_LINE!r}"),
            (not self.cursor, "cursor: it is empty"),
            (
                type(self.max_records) is not int or not 1 <= self.max_records <= MAX_RECORDS,
                f"max_records: 1 to {MAX_RECORDS}",
            ),
            (not is_amount(self.max_age_s), "max_age_s: seconds, 0 or more"),
            (not is_amount(self.lookback), "lookback: 0 or more"),
        ]
        for is_wrong, words in problems:
            if is_wrong:
                raise ConfigError(f"source table {self.table!r}: {words}")
        check_limit(self.max_value_bytes, f"source table {self.table!r}")
        if self.url and _has_password(_parse(self.url, "url")):
            raise ConfigError(f"source table {self.table!r}: url: no password here: name a variable by url_env")

    @property
    def place(self) -> str:
        """Where the rows are, for a person to read; no secret."""
        return f"table {self.table!r} of {self._database}"

    def bind(self, folder: Path) -> Self:
        """Take a relative SQLite file from `folder`. Raises ConfigError if the database isn't named as it should be."""
        bound = replace(self, folder=folder)
        bound._find_url()
        return bound

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns that are read, the id among them. Raises SourceError."""
        with self._open() as (_, table):
            return tuple(dict.fromkeys([self.key, *self._pick(table, ())]))

    def scan(self, after: Place | None, until: Place | None = None) -> Generator[Sequence[StreamRow], None, None]:
        """Yield in chunks the rows after a place, up to and with another, by cursor and then by id.

        An id that can't be one stands there under another name, and is set aside with the reason when it is read.
        Raises SourceError.
        """
        with self._open() as (connection, table):
            key, cursor = table.column(self.key), table.column(self.cursor)
            query = sa.select(key, cursor).where(key.is_not(None), cursor.is_not(None)).order_by(cursor, key)
            if after is not None:
                query = query.where(cursor >= after.cursor)
                if (bound := self._bind_key(table, after.key)) is not None:
                    query = query.where(sa.or_(cursor > after.cursor, key > bound))
            if until is not None:
                bound = self._bind_key(table, until.key)
                query = query.where(cursor <= until.cursor if bound is not None else cursor < until.cursor)
                if bound is not None:
                    query = query.where(sa.or_(cursor < until.cursor, key <= bound))
            rows = connection.execution_options(yield_per=_SCAN_CHUNK).execute(query)
            for chunk in rows.partitions():
                yield [self._to_row(table, *row) for row in chunk]

    def count_unseen(self) -> Mapping[str, int]:
        """Return by column how many rows have no id or no cursor."""
        with self._open() as (connection, table):
            found: dict[str, int] = {}
            for name in dict.fromkeys((self.key, self.cursor)):
                column = table.column(name)
                if name in table.nullable:
                    query = sa.select(sa.func.count()).select_from(table.clause).where(column.is_(None))
                    found[name] = int(connection.scalar(query) or 0)
            return found

    def read_items(self, item_ids: Sequence[str], fields: Sequence[str]) -> SourceBatch:
        """Read rows by id, as they are now; `source_line` is the place in `item_ids`, from 1.

        An id that no row has (any more), or several, is set aside; so is a row with a field that is no text, or too
        much of it. Raises SourceError if `fields` aren't there.
        """
        with self._open() as (connection, table):
            names = self._pick(table, fields)
            found: dict[str, list[Sequence[object]]] = {}
            for start in range(0, len(item_ids), _READ_CHUNK):
                wanted = set(item_ids[start : start + _READ_CHUNK])
                for item_id, row in self._read_chunk(connection, table, wanted, names):
                    found.setdefault(item_id, []).append(row)
        kinds = [table.types[name] for name in names]
        lines: list[int] = []
        values: list[list[str | None]] = []
        malformed: list[tuple[int, str]] = []
        cleaned: list[tuple[int, str]] = []
        for line, item_id in enumerate(item_ids, start=1):
            read = self._to_texts(item_id, found.get(item_id, ()), names, kinds, fields)
            if isinstance(read, str):
                malformed.append((line, read))
                continue
            for n, text in enumerate(read):
                if text is not None and has_surrogate(text):  # of a field that no prompt uses
                    read[n] = replace_surrogates(text)
                    cleaned.append((line, f"{names[n]}: not UTF-8 text: its other bytes made question marks"))
            lines.append(line)
            values.append(read)
        ids = [item_ids[line - 1] for line in lines]
        data = {name: pl.Series([row[n] for row in values], dtype=pl.String) for n, name in enumerate(names)}
        frame = pl.DataFrame(
            {ITEM_ID: pl.Series(ids, dtype=pl.String), SOURCE_LINE: pl.Series(lines, dtype=pl.Int64), **data}
        )
        batch = SourceBatch(frame=frame, malformed=malformed, cleaned=cleaned)
        return clean_values(batch, fields, self.max_value_bytes)

    @property
    def _database(self) -> str:
        return f"the database in {self.url_env}" if self.url_env else self.url

    def _pick(self, table: SqlTable, fields: Sequence[str]) -> list[str]:
        """Return the columns to read beside `item_id`, in the table's order; all of `fields` are among them."""
        for name in (self.key, self.cursor, *fields, *(self.fields or ())):
            table.column(name)
        if self.fields is None:
            picked = {n for n in table.types if n in fields or not (table.is_binary(n) or n == self.key)}
        else:
            absent = [f for f in fields if f not in self.fields and f != self.key]
            if absent:
                raise SourceError(
                    f"{table.place}: {', '.join(absent)}: a prompt uses it and the source's `fields` don't"
                )
            picked = {n for n in self.fields if n in fields or n != self.key}
        if ITEM_ID in picked and self.key != ITEM_ID:
            raise SourceError(
                f"{table.place}: the id is column {self.key!r}, so no other may be called {ITEM_ID!r}: leave it out by "
                "the source's `fields`"
            )
        if SOURCE_LINE in fields:
            raise SourceError(f"{table.place}: {SOURCE_LINE!r} is the place of a row in its batch, so no field is")
        return [n for n in table.types if n in picked and n not in (ITEM_ID, SOURCE_LINE)]

    def _to_row(self, table: SqlTable, key: object, cursor: object) -> StreamRow:
        if not is_cursor(cursor) or (isinstance(cursor, str) and (has_surrogate(cursor) or "\0" in cursor)):
            raise SourceError(
                f"{table.place}: cursor {self.cursor!r}: a number, a time or text is wanted, found "
                f"{cursor if isinstance(cursor, float | Decimal) else type(cursor).__name__} in the row {key!r}"
            )
        item_id = self._name_id(key)
        if item_id.startswith(_MARK):
            return StreamRow(item_id, cast("Cursor", cursor))
        # A dynamic column orders a number and its text apart; of a typed one the text says all.
        order = key if table.is_dynamic and isinstance(key, int | float) else item_id
        return StreamRow(item_id, cast("Cursor", cursor), order)

    def _bind_key(self, table: SqlTable, key: int | float | str | None) -> object | None:
        if table.is_dynamic or not isinstance(key, str):
            return key
        return next(iter(table.to_values(self.key, key)), None)

    def _name_id(self, key: object) -> str:
        """Return a row's id as text, or what stands for one that can't be an id: a mark, a hash, the reason."""
        text = to_text(key, UNDECLARED) or ""
        reason = _find_fault(text)
        return _MARK.join(("", digest_text(text), reason)) if reason else text

    def _read_chunk(
        self, connection: sa.Connection, table: SqlTable, wanted: set[str], names: Sequence[str]
    ) -> Iterable[tuple[str, Sequence[object]]]:
        ids = [i for i in wanted if not i.startswith(_MARK)]
        values = [v for i in ids for v in table.to_values(self.key, i)]
        if not values:
            return
        key = table.column(self.key)
        query = sa.select(key, *(table.column(n) for n in names)).where(key.in_(values))
        for row in connection.execute(query):
            item_id = self._name_id(row[0])
            if item_id in wanted:
                yield item_id, row[1:]

    def _to_texts(
        self,
        item_id: str,
        rows: Sequence[Sequence[object]],
        names: Sequence[str],
        kinds: Sequence[sa.types.TypeEngine[Any]],
        fields: Sequence[str],
    ) -> list[str | None] | str:
        """Return the fields of the one row with an id, or the reason why there are none."""
        if item_id.startswith(_MARK):
            return f"{self.key}: {item_id.rpartition(_MARK)[2]}"
        if len(rows) != 1:
            if rows:
                return f"{self.key}: the id {item_id!r} comes {len(rows)} times"
            return f"{self.key}: no row has the id {item_id!r} any more"
        texts: list[str | None] = []
        for name, kind, value in zip(names, kinds, rows[0], strict=True):
            text = to_text(value, kind)
            if text is not None and name in fields and has_surrogate(text):
                return f"{name}: not UTF-8 text, in the row with the id {item_id!r}"
            texts.append(text)
        return texts

    def _find_url(self) -> URL:
        url = _parse(read_variable(self.url_env), self.url_env) if self.url_env else _parse(self.url, "url")
        if url.get_backend_name() == "postgresql" and "+" not in url.drivername:
            # SQLAlchemy 2.1 takes psycopg 3 by default; Dagster brings psycopg2.
            url = url.set(drivername="postgresql+psycopg2")
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ConfigError(f"source table {self.table!r}: {self._database} names no file")
            if self.folder is not None and not url.database.startswith("file:"):
                url = url.set(database=str(self.folder / Path(url.database).expanduser()))
        return url

    @contextmanager
    def _open(self) -> Generator[tuple[sa.Connection, SqlTable], None, None]:
        """Yield a connection and the table that is read there. What goes wrong with them is a SourceError."""
        url = self._find_url()
        database = self._database
        engine = _make_engine(url, database)
        try:
            with engine.connect() as connection:
                if url.get_backend_name() == "postgresql":
                    connection.execution_options(postgresql_readonly=True)
                yield connection, find_table(connection, self.table, database)
        except DBAPIError as e:
            why = " ".join(str(e.orig).split())
            raise SourceError(f"{self.place}: can't be read: {why}") from e
        except (SQLAlchemyError, ArithmeticError, ValueError) as e:  # the last two: values that Python has no word for
            raise SourceError(f"{self.place}: can't be read: {type(e).__name__}: {e}") from e
        finally:
            engine.dispose()


@register_source("table")
class TableFields(SourceFields):
    """`source:` of a SQL table or view."""

    table: str
    cursor: str
    url_env: str = ""
    url: str = ""
    key: str = ITEM_ID
    fields: tuple[str, ...] | None = None
    max_records: int = 1000
    max_age_s: float = 300.0
    lookback: float = 0.0
    max_value_bytes: int = MAX_VALUE_BYTES

    def build(self) -> SqlSource:
        """Return the source."""
        return SqlSource(**self.model_dump())


def _make_engine(url: URL, database: str) -> sa.Engine:
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        if url.database and not url.database.startswith("file:") and not Path(url.database).is_file():
            raise SourceError(f"{database}: no file {url.database}")  # else SQLite would make an empty one
        arguments["timeout"] = _BUSY_TIMEOUT_S
    elif url.drivername == "postgresql+psycopg2" and "connect_timeout" not in url.query:
        arguments["connect_timeout"] = _CONNECT_TIMEOUT_S
    try:
        engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True, connect_args=arguments)
    except (NoSuchModuleError, ImportError) as e:
        raise ConfigError(f"{database}: no driver for {url.drivername} is installed: {e}") from e
    except (ArgumentError, ValueError, TypeError):  # its words may hold a password
        raise ConfigError(f"{database}: an option in the URL, behind its '?', has a value that can't be") from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _keep_bytes)
    return engine


def _keep_bytes(connection: Any, _record: object) -> None:
    """Let one text that isn't UTF-8 cost its row and no other."""
    connection.text_factory = _decode


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _parse(url: str, name: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # its words may hold a password
        raise ConfigError(f"{name}: not a SQLAlchemy URL, such as postgresql://user@host/name") from None


def _has_password(url: URL) -> bool:
    names = [*url.query, *(name for value in url.query.values() for name in _OPTION.findall(str(value)))]
    return bool(url.password) or any(_SECRET.search(name) for name in names)


def _find_fault(item_id: str) -> str | None:
    if not item_id.strip():
        return "the id is blank"
    if has_surrogate(item_id):
        return "the id is not UTF-8 text"
    if len(item_id.encode()) > MAX_ID_BYTES:
        return f"the id is longer than {MAX_ID_BYTES} bytes"
    return "a control character in the id" if has_control(item_id) else None
