"""Opens the store: the connection's settings for each database, migrations, and the one way to write."""

import datetime as dt
import json
import logging
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from batch_assets.core.errors import BatchAssetsError, ConfigError, StoreError, StoreGone
from batch_assets.store.tables import results

_log = logging.getLogger(__name__)

Connection = sa.Connection
"""What `read()` and `write()` yield. Whoever passes one on needs no more of SQLAlchemy than this name."""

DATABASE_RETURNS_S = 3600.0
"""How long a run waits for a database that went away."""
_LOCK = 7244103
"""The first half of our advisory locks on PostgreSQL; SQLite needs none, since BEGIN IMMEDIATE admits one writer."""
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE, SHARED_VERSION_TABLE = "batch_assets_version", "alembic_version"
"""Where our schema's revision stands, and where it stood before: Dagster keeps its own there, in the same database."""
SQLITE_BUSY_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5
_PG_DISK_FULL = "53100"
_SQLITE_FAULTS = {
    sqlite3.SQLITE_FULL: "the store's disk is full: make room there",
    sqlite3.SQLITE_IOERR: "the store's disk can't be read or written: it is full, over a limit, or broken",
    sqlite3.SQLITE_READONLY: "the store's file can't be written: see who owns it, and whether the disk is read-only",
    sqlite3.SQLITE_CANTOPEN: "the store's file can't be opened: its folder is gone, or somebody else's",
    sqlite3.SQLITE_CORRUPT: "the store's file is damaged: put a copy back",
    sqlite3.SQLITE_NOTADB: "the store's file is damaged: put a copy back",
    sqlite3.SQLITE_BUSY: f"another process has kept the store locked for {SQLITE_BUSY_TIMEOUT_S} s",
}


def now() -> dt.datetime:
    """Return the moment, in UTC."""
    return dt.datetime.now(dt.UTC)


def find_moment(connection: sa.Connection) -> dt.datetime:
    """Return the moment by the database's own clock: one for all hosts. SQLite's clock is this host's."""
    if connection.dialect.name != "postgresql":
        return now()
    found: dt.datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return found.astimezone(dt.UTC)


class Database:
    """A migrated store. `read()` and `write()` hand out connections in a transaction; write() commits at its end."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._file = self._find_file()

    @contextmanager
    def read(self) -> Generator[sa.Connection, None, None]:
        """Yield a connection that sees one state of the store, whatever others write meanwhile."""
        is_sqlite = self.engine.dialect.name == "sqlite"  # SQLite's readers always do
        level = {} if is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self.engine.connect().execution_options(**level) as connection:
            yield connection

    @contextmanager
    def write(self) -> Generator[sa.Connection, None, None]:
        """Yield a connection that writes, in one transaction. On SQLite it holds the only write lock from the start.

        Raises StoreError if the store can take nothing in: its disk is full, can't be written, or is somebody's.
        Raises StoreGone if its file is gone: SQLite would go on writing into what nobody finds any more.
        """
        if self._find_file() != self._file:
            raise StoreGone(f"the store's file {self.engine.url.database} is gone, or another has taken its place")
        try:
            with self.engine.connect().execution_options(is_writer=True) as connection, connection.begin():
                yield connection
        except DBAPIError as e:
            if why := find_fault(e):
                raise StoreError(f"{why}; what was committed before is kept") from e
            raise

    def _find_file(self) -> tuple[int, int] | None:
        """Return what tells SQLite's file from any other; None if there is none, as on PostgreSQL."""
        if self.engine.dialect.name != "sqlite" or not self.engine.url.database:
            return None
        try:
            state = Path(self.engine.url.database).stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def lock_task(connection: sa.Connection, task: str) -> None:
    """Let nobody else pass here for the same task until the caller's transaction has ended."""
    if connection.dialect.name == "postgresql":
        lock = sa.text("SELECT pg_advisory_xact_lock(:lock, hashtext(:task))")
        connection.execute(lock, {"lock": _LOCK, "task": task})


def open_database(url: str) -> Database:
    """Open the store at a SQLAlchemy URL and bring its schema up to date.

    Raises ConfigError for a URL that can't be used, StoreError if the database refuses or is newer than we are.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigError("BATCH_ASSETS_DB_URL: the store must outlive the process: name a file, not :memory:")
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"the store at {url} can't be opened: its folder can't be made: {e.strerror}") from e
        engine = sa.create_engine(
            parsed,
            json_serializer=_dump_json,
            hide_parameters=True,
            json_deserializer=_load_json,
            connect_args={"timeout": SQLITE_BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        _tune_sqlite(engine)
    else:
        engine = sa.create_engine(
            parsed,
            json_serializer=_dump_json,
            hide_parameters=True,
            json_deserializer=_load_json,
            pool_pre_ping=True,
            executemany_mode="values_plus_batch",
        )
    try:
        _migrate(engine)
    except DBAPIError as e:
        engine.dispose()
        raise StoreError(_format_refusal(parsed, e)) from e
    return Database(engine)


def find_refusal(url: str) -> str:
    """Say why a PostgreSQL store takes no connection now; empty if it takes one. SQLite is always there."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return ""
    engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    try:
        engine.connect().close()
    except DBAPIError as e:
        return _format_refusal(parsed, e)
    return ""


def wait_for_database(url: str, limit_s: float = DATABASE_RETURNS_S) -> None:
    """Wait, with growing pauses, until the database takes connections; StoreError if it doesn't come back in time.

    Said on stderr alone: Dagster's log lies in that database.
    """
    give_up_at, pause_s = time.monotonic() + limit_s, 0.5
    while why := find_refusal(url):
        if time.monotonic() >= give_up_at:
            raise StoreError(why)
        _log.warning("waiting for the database: %s", why)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 15.0)


def is_connection_lost(error: BaseException | None) -> bool:
    """Say whether an error, or what caused it, is that the database's server is away: it went, or isn't back yet.

    Its own errors carry a code; that of a server that shuts down or starts up is 57P, of a broken connection 08.
    """
    while error is not None:
        if isinstance(error, BatchAssetsError) and not isinstance(error, StoreError):
            return False  # such as a source's own database
        if isinstance(error, DBAPIError) and not isinstance(error.orig, sqlite3.Error):
            code = getattr(error.orig, "pgcode", None)
            is_away = isinstance(error, OperationalError) and (code is None or code.startswith(("08", "57P")))
            if error.connection_invalidated or is_away:
                return True
        error = error.__cause__
    return False


def find_fault(error: BaseException) -> str:
    """Say in plain words, by the database's own code, why it takes nothing in; empty for errors of other kinds."""
    if not isinstance(error, DBAPIError):
        return ""
    if not isinstance(error.orig, sqlite3.Error):
        is_full = getattr(error.orig, "pgcode", None) == _PG_DISK_FULL
        return "the disk of the store's PostgreSQL is full: make room there" if is_full else ""
    fault = _SQLITE_FAULTS.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF)  # the rest says more, such as where
    return f"{fault} (SQLite: {error.orig})" if fault else ""


def describe_url(url: str) -> str:
    """Return what a person may see of a store's URL: its kind, place and user, never a password."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return f"SQLite, {parsed.database}"
    return f"PostgreSQL, {_show(parsed)}"


def list_url_secrets(url: str) -> list[str]:
    """Return what nobody may see of a store's URL: its passwords; the whole of what is no URL."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return [url]
    asked = parsed.query.get("password", "")
    return [secret for secret in (parsed.password or "", *([asked] if isinstance(asked, str) else asked)) if secret]


def _show(url: URL) -> str:
    where = {k: v for k, v in url.query.items() if k in ("host", "port")}  # a password may be among the others
    return url.set(drivername="postgresql", query=where).render_as_string(hide_password=True)


def _format_refusal(url: URL, error: DBAPIError) -> str:
    why = str(error.orig).strip()
    if url.get_backend_name() == "sqlite":
        return f"the store at {url.render_as_string()} can't be opened: {why}"
    hint = "" if url.password else "; BATCH_ASSETS_DB_PASSWORD gives a password, if the server wants one"
    return f"BATCH_ASSETS_DB_URL: the store at {_show(url)} can't be opened: {why}{hint}"


def _dump_json(value: object) -> str:
    """Write JSON columns readably: a person who looks with SQL sees letters, not escapes."""
    return json.dumps(value, ensure_ascii=False)


def _read_integer(digits: str) -> int | float:
    """Read an integer. JSONB writes 1e23 without its exponent; no answer holds an integer of more than 64 bits."""
    return int(digits) if len(digits.lstrip("-")) < 20 else float(digits)


_load_json = json.JSONDecoder(parse_int=_read_integer).decode
"""Reads JSON columns. Made once: json.loads would make a decoder for each value."""


def parse_url(url: str) -> URL:
    """Read a store's URL and name the driver that is installed. ConfigError says what is wrong with it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as e:  # ValueError: a port that is no number
        raise ConfigError("BATCH_ASSETS_DB_URL: not a SQLAlchemy URL, such as postgresql://user@host/name") from e
    if parsed.get_backend_name() == "postgresql":
        # SQLAlchemy 2.1 takes psycopg 3 by default; Dagster brings psycopg2, and one driver is enough.
        if not parsed.database:
            raise ConfigError("BATCH_ASSETS_DB_URL: no database is named: postgresql://user@host/name")
        patience = {} if "connect_timeout" in parsed.query else {"connect_timeout": str(CONNECT_TIMEOUT_S)}
        return parsed.set(drivername="postgresql+psycopg2").update_query_dict(patience)
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError(f"BATCH_ASSETS_DB_URL: {parsed.get_backend_name()}: the store is SQLite or PostgreSQL")
    return parsed.set(drivername="sqlite")


def _tune_sqlite(engine: sa.Engine) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # we say BEGIN ourselves, so that a writer can say IMMEDIATE
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY", "cache_size=-65536"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        is_writer = connection.get_execution_options().get("is_writer", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _migrate(engine: sa.Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    known = {r.revision for r in script.walk_revisions()}
    with engine.connect() as connection:
        current = _track_version(connection).get_current_revision()
    if current == script.get_current_head():
        return
    if current is not None and current not in known:
        raise StoreError(f"the store's schema is {current}, newer than this version of batch_assets knows: upgrade it")
    with engine.connect().execution_options(is_writer=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # Two processes at once: one waits.
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock, 0)"), {"lock": _LOCK})
        _take_over_version(connection, script, known)
        config.attributes["connection"] = connection
        config.attributes["version_table"] = VERSION_TABLE
        command.upgrade(config, "head")


def _track_version(connection: sa.Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})


def _take_over_version(connection: sa.Connection, script: ScriptDirectory, known: set[str]) -> None:
    """Move our revision out of the table that Dagster would read it from; Dagster's own stays there."""
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE) or not inspector.has_table(SHARED_VERSION_TABLE):
        return
    if not inspector.has_table(results.name):
        return  # somebody else's database: the revision there isn't ours, whatever it is called
    shared = sa.table(SHARED_VERSION_TABLE, sa.column("version_num", sa.String))
    found = [r for r in connection.scalars(sa.select(shared.c.version_num)) if r in known]
    if found:
        _track_version(connection).stamp(script, found[0])
        connection.execute(sa.delete(shared).where(shared.c.version_num.in_(found)))
    if not connection.scalar(sa.select(sa.func.count()).select_from(shared)):
        connection.execute(sa.DDL(f"DROP TABLE {SHARED_VERSION_TABLE}"))
