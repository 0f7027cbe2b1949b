"""The store: whether it opens, which schema it has, what is in it. Opened for reading alone, and never made."""

import datetime as dt
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

import batch_assets.store
from batch_assets.cli.probes.findings import Finding, Level, count, find_existing, first_line, format_size
from batch_assets.core.errors import StoreError
from batch_assets.settings import Settings
from batch_assets.store.database import VERSION_TABLE, describe_url, now, parse_url
from batch_assets.store.tables import batches, partitions, results

STATEMENT_S = 3
CLOCK_WARN_S, CLOCK_WRONG_S = 2.0, 30.0
"""Between us and PostgreSQL: leases of 90 s go by the clocks of their hosts."""
_SHARED_VERSION_TABLE = "alembic_version"
_MIGRATIONS = Path(batch_assets.store.__file__).parent / "migrations"


@contextmanager
def open_for_reading(settings: Settings) -> Generator[sa.Connection | None, None, None]:
    """Yield a connection that can't write, or None where the store isn't made yet. StoreError where it doesn't open.

    A SQLite file that nobody has open is read as one that can't change, so that no file is made beside it.
    """
    url = parse_url(settings.store_url)
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not path.exists():
            yield None
            return
        is_quiet = not path.with_name(f"{path.name}-wal").exists()
        place = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_quiet else ''}"
        engine = sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(place, uri=True, timeout=STATEMENT_S), poolclass=sa.NullPool
        )
    else:
        options = f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_S * 1000}"
        engine = sa.create_engine(url, connect_args={"options": options}, poolclass=sa.NullPool, hide_parameters=True)
    try:
        connection = engine.connect()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")  # the first read opens the file
    except DBAPIError as e:
        raise StoreError(f"{describe_url(settings.store_url)} can't be opened: {str(e.orig).strip()}") from e
    with connection:
        yield connection


def probe_store(settings: Settings) -> Iterator[Finding]:
    """Yield where the store is, and the state of its schema, content and clock."""
    place = describe_url(settings.store_url)
    try:
        with open_for_reading(settings) as connection:
            if connection is None:
                yield _probe_new(settings, place)
                return
            yield Finding(about="store", says=place + _measure(settings))
            revision = find_revision(connection)
            yield probe_revision(revision)
            if revision is not None:
                yield _count(connection)
            if connection.dialect.name == "postgresql":
                there = connection.scalar(sa.select(sa.func.clock_timestamp()))
                yield probe_clocks(now(), there)
    except StoreError as e:
        mend = (
            "start the server, or correct BATCH_ASSETS_DB_URL and BATCH_ASSETS_DB_PASSWORD"
            if settings.is_postgresql
            else "correct BATCH_ASSETS_DB_URL, or give yourself the right to read that file"
        )
        yield Finding(about="store", says=str(e), level=Level.WRONG, mend=mend)
    except DBAPIError as e:
        yield Finding(about="store", says=f"{place}: {first_line(e.orig or e)}", level=Level.WRONG)


def find_revision(connection: sa.Connection) -> str | None:
    """Return the revision of our schema, or None where there is none; stores of old keep it in another table."""
    inspector = sa.inspect(connection)
    known = {r.revision for r in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()}
    for table in (VERSION_TABLE, _SHARED_VERSION_TABLE):
        if inspector.has_table(table) and inspector.has_table(results.name):
            version = sa.column("version_num", sa.String)
            found = list(connection.scalars(sa.select(version).select_from(sa.table(table))))
            if found:
                return next((revision for revision in found if revision in known), found[0])
    return None


def probe_revision(revision: str | None) -> Finding:
    """Return how a schema stands to the one that this version writes."""
    script = ScriptDirectory(str(_MIGRATIONS))
    head = script.get_current_head()
    if revision is None:
        return Finding(about="store", says="no schema yet: made at the first run")
    if revision == head:
        return Finding(about="store", says=f"schema {revision}, current")
    if revision in {r.revision for r in script.walk_revisions()}:
        return Finding(about="store", says=f"schema {revision}: the next run brings it to {head}")
    return Finding(
        about="store",
        says=f"schema {revision} is newer than this version of batch_assets knows: {head}",
        level=Level.WRONG,
        mend="pip install --upgrade batch-assets",
    )


def probe_clocks(here: dt.datetime, there: dt.datetime | None) -> Finding:
    """Return whether this host's clock and the server's agree."""
    apart_s = 0.0 if there is None else abs((here - there).total_seconds())
    level = Level.WRONG if apart_s > CLOCK_WRONG_S else Level.WARN if apart_s > CLOCK_WARN_S else Level.OK
    mend = "" if level is Level.OK else "timedatectl set-ntp true, on both hosts"
    return Finding(about="store", says=f"its clock is {apart_s:.1f} s from ours", level=level, mend=mend)


def _probe_new(settings: Settings, place: str) -> Finding:
    path = Path(parse_url(settings.store_url).database or "")
    folder = find_existing(path.parent)
    if os.access(folder, os.W_OK):
        return Finding(about="store", says=f"{place}: made at the first run")
    return Finding(
        about="store",
        says=f"{place}: not there, and {folder} can't be written",
        level=Level.WRONG,
        mend="name another folder by BATCH_ASSETS_HOME",
    )


def _measure(settings: Settings) -> str:
    if settings.is_postgresql:
        return ""
    return f", {format_size(Path(parse_url(settings.store_url).database or '').stat().st_size)}"


def _count(connection: sa.Connection) -> Finding:
    words: list[str] = []
    for table, one, many in (
        (results, "result", "results"),
        (batches, "batch", "batches"),
        (partitions, "finished partition", "finished partitions"),
    ):
        words.append(count(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0, one, many))
    return Finding(about="store", says=", ".join(words))
