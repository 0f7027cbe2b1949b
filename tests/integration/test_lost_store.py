"""A database that goes away in the middle of a step: the step begins again; any other error fails it."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import psycopg2
import psycopg2.errors
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, ProgrammingError

from batch_assets.core.errors import SourceError, StoreError
from batch_assets.dagster.lost_store import MAX_RETRIES, outlast_lost_store
from batch_assets.pipeline.platform import Platform, open_platform
from batch_assets.settings import Settings
from batch_assets.store import database as database_module
from batch_assets.store.database import find_refusal, is_connection_lost, open_database, wait_for_database


@dataclass
class Step:
    """An op that raises these errors, one in each try, and then succeeds."""

    platform: Platform
    errors: list[Exception]
    tries: list[int] = field(default_factory=list[int])

    def run(self) -> dg.ExecuteInProcessResult:
        @dg.op(out=dg.Out(dg.Nothing))
        def an_op(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
            with outlast_lost_store(context, self.platform):
                self.tries.append(context.retry_number)
                if self.errors:
                    raise self.errors.pop(0)
                yield dg.Output(None)

        @dg.job
        def a_job() -> None:
            an_op()

        return a_job.execute_in_process(raise_on_error=False)


def lost(orig: Exception | None = None) -> OperationalError:
    return OperationalError("SELECT 1", {}, orig or psycopg2.OperationalError("server closed the connection"))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    opened = open_platform(Settings(home=tmp_path, db_url=""))
    yield opened
    opened.database.close()


def test_a_step_that_lost_the_database_begins_again(platform: Platform) -> None:
    step = Step(platform, [lost(), lost()])
    assert step.run().success
    assert step.tries == [0, 1, 2]


def test_an_error_of_another_kind_fails_the_step_at_once(platform: Platform) -> None:
    step = Step(platform, [ValueError("no")])
    assert not step.run().success
    assert step.tries == [0]


def test_a_database_that_is_lost_time_and_again_fails_the_step_in_plain_words(platform: Platform) -> None:
    step = Step(platform, [lost() for _ in range(MAX_RETRIES + 2)])
    found = step.run()
    assert not found.success
    assert len(step.tries) == MAX_RETRIES + 1
    (failure,) = found.filter_events(lambda e: e.event_type is dg.DagsterEventType.STEP_FAILURE)
    error = failure.step_failure_data.error
    assert error is not None and error.cause is not None and error.cause.cls_name == "StoreError"
    assert "the database was lost 6 times" in error.cause.message


def test_what_counts_as_a_lost_database() -> None:
    def caused(error: Exception, by: Exception) -> Exception:
        error.__cause__ = by
        return error

    assert is_connection_lost(lost())
    assert is_connection_lost(lost(psycopg2.errors.AdminShutdown()))
    assert is_connection_lost(caused(RuntimeError("too many retries for DB connection"), lost())), "as Dagster tells"
    assert is_connection_lost(caused(StoreError("can't be opened"), lost()))
    assert not is_connection_lost(caused(SourceError("the source's own database"), lost()))
    assert not is_connection_lost(ProgrammingError("SELECT 1", {}, psycopg2.ProgrammingError("no such table")))
    assert not is_connection_lost(lost(sqlite3.OperationalError("database is locked")))
    assert not is_connection_lost(ValueError("no"))
    assert not is_connection_lost(None)


def test_a_server_that_ends_our_connection_counts_as_lost(pg_store: URL) -> None:
    database = open_database(pg_store.render_as_string(hide_password=False))
    try:
        with pytest.raises(sa.exc.DBAPIError) as found, database.write() as connection:
            me = connection.scalar(sa.text("SELECT pg_backend_pid()"))
            with database.write() as other:
                other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": me})
            connection.execute(sa.text("SELECT 1"))
        assert is_connection_lost(found.value)
        with database.write() as connection:
            assert connection.scalar(sa.text("SELECT 1")) == 1
    finally:
        database.close()


def test_a_store_that_takes_connections_is_told_from_one_that_does_not(store_url: str) -> None:
    assert find_refusal(store_url) == ""
    why = find_refusal("postgresql://somebody:s3cret@127.0.0.1:1/name")
    assert "can't be opened" in why and "refused" in why and "s3cret" not in why


def test_a_run_waits_until_the_database_answers(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = ["away", "away"]
    pauses: list[float] = []
    monkeypatch.setattr(database_module, "find_refusal", lambda url: refusals.pop() if refusals else find_refusal(url))
    monkeypatch.setattr("time.sleep", pauses.append)
    wait_for_database(sqlite_url)
    assert pauses == [0.5, 1.0]


def test_a_database_that_does_not_come_back_is_told_in_the_end() -> None:
    with pytest.raises(StoreError, match="can't be opened"):
        wait_for_database("postgresql://somebody@127.0.0.1:1/name", limit_s=0)
