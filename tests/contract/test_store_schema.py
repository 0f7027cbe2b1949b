"""Opening a store: migrations, wrong URLs, moments, and what a transaction sees. On SQLite and PostgreSQL."""

import datetime as dt
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from factories import run_at_once

from batch_assets.core.errors import ConfigError, StoreError
from batch_assets.store.database import VERSION_TABLE, Database, describe_url, now, open_database, parse_url
from batch_assets.store.results import VariantKey, load_history, own_rows
from batch_assets.store.tables import leases, metadata, partitions, results


def test_the_migrations_make_exactly_the_tables_of_the_metadata(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "target_metadata": metadata,
                "version_table": VERSION_TABLE,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_the_migrations_make_the_checks_and_comments_of_the_metadata(database: Database) -> None:
    # compare_metadata is blind to CHECK constraints.
    inspector = sa.inspect(database.engine)
    for table in metadata.sorted_tables:
        wanted = {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}
        assert {c["name"] for c in inspector.get_check_constraints(table.name)} == wanted
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key]
        if database.engine.dialect.name == "postgresql":
            comments = {c["name"]: c["comment"] for c in inspector.get_columns(table.name)}
            assert comments == {c.name: c.comment for c in table.columns}


def test_opening_a_store_again_changes_nothing_and_keeps_its_rows(empty_store_url: str) -> None:
    first = open_database(empty_store_url)
    _insert_lease(first, "b1", now())
    first.close()
    second = open_database(empty_store_url)
    with second.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == ["b1"]
    second.close()


def make_old_store(url: str, *, revision: str = "head") -> None:
    """Leave a store as earlier versions did: with its revision where Dagster keeps its own."""
    upgrade = command.upgrade
    with mock.patch.object(command, "upgrade", lambda config, _head: upgrade(config, revision)):
        opened = open_database(url)
    _insert_lease(opened, "b1", now())
    with opened.write() as connection:
        connection.exec_driver_sql(f"CREATE TABLE alembic_version AS SELECT * FROM {VERSION_TABLE}")
        connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
    opened.close()


@pytest.mark.parametrize("revision", ["head", "0001", "0002", "0003"])
def test_a_store_of_an_earlier_version_is_taken_over_with_its_rows(empty_store_url: str, revision: str) -> None:
    make_old_store(empty_store_url, revision=revision)
    opened = open_database(empty_store_url)
    with opened.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == ["b1"]
    assert sorted(sa.inspect(opened.engine).get_table_names()) == sorted([*metadata.tables, VERSION_TABLE])
    assert sorted(sa.inspect(opened.engine).get_view_names()) == ["current_results", "quarantine"]
    opened.close()


def test_attempts_and_rows_of_before_the_ladder_are_first_steps_and_own_rows(empty_store_url: str) -> None:
    make_old_store(empty_store_url, revision="0002")
    engine = sa.create_engine(parse_url(empty_store_url))
    old = sa.MetaData()
    old.reflect(engine, only=["llm_attempts", "llm_batch_results"])
    who = {"task": "t", "item_id": "1", "prompt_ver": "v1", "model_id": "m1", "batch": "b1", "run_id": "r"}
    attempt = {"request_key": "k" * 24, "attempt": 1, "is_alone": False, "parameters": {}, "started_at": now()}
    specs = dict.fromkeys(("input_hash", "request_spec", "accept_spec"), "h" * 24)
    row = {"status": "ok", "payload": {"label": "a"}, "attempts": 1, "updated_at": now(), **specs}
    with engine.begin() as connection:
        connection.execute(sa.insert(old.tables["llm_attempts"]).values(attempt_id="a1", **who, **attempt))
        connection.execute(sa.insert(old.tables["llm_batch_results"]).values(**who, **row))
    engine.dispose()
    opened = open_database(empty_store_url)
    key = VariantKey(task="t", prompt_ver="v1", model_id="m1")
    with opened.read() as connection:
        (past,) = load_history(connection, key, ["1"])["1"]
        assert connection.scalars(sa.select(results.c.item_id).where(*own_rows(key))).all() == ["1"]
    assert (past.base_key, past.request_key, past.ladder_step) == ("k" * 24, "k" * 24, 0)
    opened.close()


def test_four_processes_that_take_over_an_old_store_at_once_all_succeed(empty_store_url: str) -> None:
    make_old_store(empty_store_url, revision="0001")
    assert run_at_once(*[lambda: open_database(empty_store_url).close()] * 4) == []
    opened = open_database(empty_store_url)
    with opened.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == ["b1"]
    opened.close()


def test_the_revision_of_another_application_in_the_same_database_is_left_alone(empty_store_url: str) -> None:
    engine = sa.create_engine(parse_url(empty_store_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0001')")
    for _ in range(2):
        opened = open_database(empty_store_url)
        with opened.read() as connection:
            assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == ["0001"]
        opened.close()
    engine.dispose()


def test_of_the_shared_version_table_our_own_row_alone_is_taken(empty_store_url: str) -> None:
    make_old_store(empty_store_url)
    engine = sa.create_engine(parse_url(empty_store_url))
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('16e3655b4d9b')")  # as Dagster's look
    opened = open_database(empty_store_url)
    with opened.read() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == ["16e3655b4d9b"]
        assert connection.scalars(sa.select(leases.c.batch)).all() == ["b1"]
    opened.close()
    engine.dispose()


def test_two_processes_that_open_a_new_store_at_once_both_succeed(empty_store_url: str) -> None:
    code = (
        "import sys; from batch_assets.store.database import open_database\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()\n"
        "open_database(sys.argv[1]).close()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_store_url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    opened = open_database(empty_store_url)
    assert sorted(sa.inspect(opened.engine).get_table_names()) == sorted([*metadata.tables, VERSION_TABLE])
    opened.close()


def test_threads_that_open_a_new_store_at_once_all_succeed(empty_store_url: str) -> None:
    assert run_at_once(*[lambda: open_database(empty_store_url).close()] * 4) == []


def test_a_schema_newer_than_the_code_is_refused_and_left_alone(empty_store_url: str) -> None:
    opened = open_database(empty_store_url)
    with opened.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match="9999, newer than this version"):
        open_database(empty_store_url)
    with opened.read() as connection:
        assert connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")) == "9999"
    opened.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "store.db",
        "not a url",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://user@host/name",
        "foo://host/name",
        "postgresql://user@host:port/name",
        "postgresql://user@host",
    ],
)
def test_a_wrong_url_is_a_config_error_that_names_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="BATCH_ASSETS_DB_URL"):
        open_database(url)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
def test_the_driver_in_a_sqlite_url_doesnt_matter(scheme: str, tmp_path: Path) -> None:
    open_database(f"{scheme}:///{tmp_path / 'store.db'}").close()


def test_a_file_that_is_no_database_is_a_store_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("this is a text file, and long enough to be looked at as a database header would be " * 20)
    with pytest.raises(StoreError, match=r"store\.db"):
        open_database(f"sqlite:///{path}")


def test_a_folder_that_cant_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/home/store\.db"):
        open_database(f"sqlite:///{tmp_path / 'file' / 'home' / 'store.db'}")


def test_a_postgresql_server_that_isnt_there_is_a_store_error_without_the_password() -> None:
    with pytest.raises(StoreError) as refused:
        open_database("postgresql://user:secret@127.0.0.1:1/name")
    assert "127.0.0.1:1/name" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("wrong", "why"), [("database", "does not exist"), ("user", "does not exist")])
def test_what_a_postgresql_server_refuses_is_a_store_error_that_names_the_setting(
    store_url: str, wrong: str, why: str
) -> None:
    change = {"database": {"database": "nowhere"}, "user": {"username": "nobody_here", "password": "secret"}}[wrong]
    url = parse_url(store_url).set(**change).render_as_string(hide_password=False)
    with pytest.raises(StoreError, match=f"^BATCH_ASSETS_DB_URL: the store at .*{why}") as refused:
        open_database(url)
    assert "secret" not in str(refused.value)
    assert ("BATCH_ASSETS_DB_PASSWORD" in str(refused.value)) == (wrong == "database")


def test_a_server_that_never_answers_is_given_up_in_seconds() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)  # takes the connection, says nothing
        began = time.monotonic()
        with pytest.raises(StoreError, match="BATCH_ASSETS_DB_URL: .*timeout"):
            open_database(f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/name?connect_timeout=2")
    assert time.monotonic() - began < 30
    assert parse_url("postgresql://user@host/name").query["connect_timeout"] == "5"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////tmp/store.db", "SQLite, /tmp/store.db"),
        ("postgresql://user:secret@host:5433/name", "PostgreSQL, postgresql://user:***@host:5433/name"),
        ("postgresql://user@/name?host=/run/pg&password=secret", "PostgreSQL, postgresql://user@/name?host=/run/pg"),
    ],
)
def test_a_store_is_described_without_a_secret(url: str, shown: str) -> None:
    assert describe_url(url).replace("%2F", "/") == shown


@pytest.mark.parametrize("offset_h", [0, 5, -11])
def test_moments_come_back_aware_and_in_utc(database: Database, offset_h: int) -> None:
    local = dt.datetime(2026, 11, 1, 3, 4, 5, 678901, tzinfo=dt.timezone(dt.timedelta(hours=offset_h)))
    _insert_lease(database, "b1", local)
    with database.read() as connection:
        found = connection.scalar(sa.select(leases.c.expires_at))
    assert found == local
    assert found.tzinfo == dt.UTC
    assert found.isoformat() == local.astimezone(dt.UTC).isoformat()


def test_moments_are_compared_as_moments(database: Database) -> None:
    at = dt.datetime(2026, 11, 1, 12, 0, 0, tzinfo=dt.UTC)
    _insert_lease(database, "on_the_second", at)
    _insert_lease(database, "a_little_later", at + dt.timedelta(microseconds=1))
    _insert_lease(database, "elsewhere", at.astimezone(dt.timezone(dt.timedelta(hours=9))))
    with database.read() as connection:
        query = sa.select(leases.c.batch).where(leases.c.expires_at > at)
        assert connection.scalars(query).all() == ["a_little_later"]


def test_a_naive_moment_is_refused(database: Database) -> None:
    with pytest.raises(sa.exc.StatementError, match="without a time zone"):
        _insert_lease(database, "b1", dt.datetime(2026, 11, 1))


def test_a_reader_sees_one_state_of_the_store(database: Database) -> None:
    with database.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == []
        _insert_lease(database, "b1", now())
        assert connection.scalars(sa.select(leases.c.batch)).all() == []
    with database.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == ["b1"]


def test_a_writer_whose_block_fails_leaves_nothing(database: Database) -> None:
    with pytest.raises(RuntimeError), database.write() as connection:
        connection.execute(sa.insert(leases).values(**_lease("b1", now())))
        raise RuntimeError
    with database.read() as connection:
        assert connection.scalars(sa.select(leases.c.batch)).all() == []


def test_many_threads_write_without_losing_an_update(database: Database) -> None:
    values = {
        "task": "t", "batch": "b", "variant": "v", "fingerprint": "f", "content": "c", "parts": {},
        "run_id": "r", "finished_at": now(),
    }  # fmt: skip
    with database.write() as connection:
        connection.execute(sa.insert(partitions).values(counts={"n": 0}, **values))

    def add() -> None:
        for _ in range(10):
            with database.write() as connection:
                counts = connection.scalar(sa.select(partitions.c.counts).with_for_update())
                connection.execute(sa.update(partitions).values(counts={"n": counts["n"] + 1}))

    assert run_at_once(*[add] * 4) == []
    with database.read() as connection:
        assert connection.scalar(sa.select(partitions.c.counts)) == {"n": 40}


def _lease(batch: str, expires_at: dt.datetime) -> dict[str, object]:
    return {
        "task": "t", "batch": batch, "variant": "v", "run_id": "r", "host": "h", "pid": 1,
        "process_started": 1.0, "expires_at": expires_at,
    }  # fmt: skip


def _insert_lease(database: Database, batch: str, expires_at: dt.datetime) -> None:
    with database.write() as connection:
        connection.execute(sa.insert(leases).values(**_lease(batch, expires_at)))
