"""Tables for SQL sources, and streams that lie in memory."""

import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import polars as pl
import sqlalchemy as sa

from batch_assets.core.cursors import Cursor, Place, StreamRow
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, SourceBatch
from batch_assets.sources.sql import SqlSource
from batch_assets.store.database import Database
from batch_assets.store.microbatches import MicrobatchLog
from batch_assets.store.tables import microbatch_items

SOURCE_URL = "TEST_SOURCE_URL"


@contextmanager
def open_tables(url: str) -> Generator[sa.Connection]:
    """Yield a connection to a source's database; what is written there is committed at the end."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection, connection.begin():
        yield connection


def make_table(
    url: str, rows: Iterable[tuple[Any, ...]] = (), *columns: sa.Column[Any], name: str = "tickets"
) -> sa.Table:
    """Make a table of `columns`, or of item_id, text and an integer cursor `version`, with rows in it."""
    made = columns or (
        sa.Column("item_id", sa.Text, primary_key=True),
        sa.Column("text", sa.Text),
        sa.Column("version", sa.BigInteger),
    )
    table = sa.Table(name, sa.MetaData(), *made)
    with open_tables(url) as connection:
        table.create(connection)
    add_rows(url, table, rows)
    return table


def add_rows(url: str, table: sa.Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows to a table, in one transaction."""
    values = [dict(zip(table.c.keys(), row, strict=True)) for row in rows]
    if values:
        with open_tables(url) as connection:
            connection.execute(sa.insert(table), values)


def execute(url: str, *statements: str | sa.Executable) -> None:
    """Run statements in a source's database."""
    with open_tables(url) as connection:
        for statement in statements:
            connection.execute(sa.text(statement) if isinstance(statement, str) else statement)


def make_sql_source(url: str, **fields: Any) -> SqlSource:
    """Return a source on the table that `make_table` makes by default. A URL with a password goes by a variable."""
    where = {"url": url}
    if url.startswith("postgresql") and sa.make_url(url).password:
        os.environ[SOURCE_URL] = url
        where = {"url_env": SOURCE_URL}
    return SqlSource(**{"table": "tickets", "cursor": "version", **where, **fields})


class ListStream:
    """A stream of rows in a list, which a test changes; read in chunks of `chunk`."""

    def __init__(
        self,
        *rows: tuple[str, Cursor],
        max_records: int = 3,
        max_age_s: float = 60.0,
        lookback: float = 0.0,
        chunk: int = 2,
    ) -> None:
        self.rows: list[StreamRow] = []
        self.add(*rows)
        self.lookback = lookback
        self.chunk = chunk
        self.max_records = max_records
        self.max_age_s = max_age_s
        self.place = "a list"
        self.nulls: Mapping[str, int] = {}

    def add(self, *rows: tuple[str, Cursor]) -> None:
        self.rows += [StreamRow(item_id, cursor, item_id) for item_id, cursor in rows]

    def bind(self, folder: Path) -> Self:
        return self

    def columns(self) -> tuple[str, ...] | None:
        return (ITEM_ID,)

    def scan(self, after: Place | None, until: Place | None = None) -> Generator[Sequence[StreamRow], None, None]:
        def stands(row: StreamRow, place: Place) -> bool:
            """Say whether a row is at or before a place."""
            key = "" if place.key is None else place.key
            return (row.cursor, row.item_id) <= (place.cursor, key)

        found = [r for r in self.rows if (not after or not stands(r, after)) and (not until or stands(r, until))]
        found.sort(key=lambda row: (row.cursor, row.item_id))
        for start in range(0, len(found), self.chunk):
            yield found[start : start + self.chunk]

    def count_unseen(self) -> Mapping[str, int]:
        return self.nulls

    def read_items(self, item_ids: Sequence[str], fields: Sequence[str]) -> SourceBatch:
        frame = pl.DataFrame({ITEM_ID: list(item_ids), SOURCE_LINE: range(1, len(item_ids) + 1)})
        return SourceBatch(frame=frame, malformed=[])


def load_batches(database: Database, task: str = "t") -> dict[str, list[str]]:
    """Return what is in each microbatch, in the order of their forming."""
    log = MicrobatchLog(database, task)
    return {batch: log.items(batch) for batch, _, _ in log.batches()}


def count_batched(database: Database, task: str = "t") -> Counter[tuple[str, str]]:
    """Return how often each row, an id with its cursor, is in a microbatch."""
    c = microbatch_items.c
    with database.read() as connection:
        query = sa.select(c.item_id, c.cursor).where(c.task == task)
        return Counter(connection.execute(query).tuples())
