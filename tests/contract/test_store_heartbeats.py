"""Heartbeats: of a run on another host they alone tell whether it lives. On SQLite and PostgreSQL."""

import datetime as dt
import os
import time
from typing import Any

import pytest
import sqlalchemy as sa

from batch_assets.store.database import Database, find_moment, open_database
from batch_assets.store.heartbeats import DOUBT_S, FORGOTTEN_AFTER, SILENT_S, Heartbeat, doubt_silent, keep_heartbeat
from batch_assets.store.tables import runs


def load_runs(database: Database) -> dict[str, sa.RowMapping]:
    with database.read() as connection:
        return {row["run_id"]: row for row in connection.execute(sa.select(runs)).mappings()}


def age(database: Database, column: str, seconds: float) -> None:
    """Make a moment of all heartbeats so old, by the database's clock."""
    with database.write() as connection:
        moment = find_moment(connection) - dt.timedelta(seconds=seconds)
        connection.execute(sa.update(runs).values({column: moment}))


def test_a_run_that_gives_signs_of_life_is_alive_and_one_without_a_heartbeat_is_not_judged(database: Database) -> None:
    Heartbeat(database, "r1").beat()
    assert doubt_silent(database, ["r1", "of the version before"]) == {"r1": False}
    assert load_runs(database)["r1"]["pid"] == os.getpid()
    assert load_runs(database)["r1"]["doubted_at"] is None


def test_a_silent_run_is_doubted_first_and_dead_if_it_stays_silent(database: Database) -> None:
    Heartbeat(database, "r1").beat()
    age(database, "beat_at", SILENT_S + 1)
    assert doubt_silent(database, ["r1"]) == {"r1": False}
    assert doubt_silent(database, ["r1"]) == {"r1": False}, "it had no time to give a sign"
    age(database, "doubted_at", DOUBT_S + 1)
    assert doubt_silent(database, ["r1"]) == {"r1": True}


def test_a_sign_of_life_takes_the_doubt_away_for_good(database: Database) -> None:
    """As after an outage of the database: nobody could give a sign, and whoever looks first sees all runs silent."""
    Heartbeat(database, "r1").beat()
    age(database, "beat_at", 3600)
    doubt_silent(database, ["r1"])
    age(database, "doubted_at", 3600)
    Heartbeat(database, "r1").beat()
    assert doubt_silent(database, ["r1"]) == {"r1": False}
    age(database, "beat_at", SILENT_S + 1)
    assert doubt_silent(database, ["r1"]) == {"r1": False}, "a new silence is doubted anew"


def test_only_the_runs_that_are_asked_for_are_doubted(database: Database) -> None:
    for run_id in ("r1", "r2"):
        Heartbeat(database, run_id).beat()
    age(database, "beat_at", SILENT_S + 1)
    assert doubt_silent(database, []) == {}
    assert doubt_silent(database, ["r2"]) == {"r2": False}
    assert {i: row["doubted_at"] is not None for i, row in load_runs(database).items()} == {"r1": False, "r2": True}


def test_a_run_has_a_heartbeat_as_long_as_its_block_and_none_after(database: Database) -> None:
    with keep_heartbeat(database, "r1", every_s=0.01):
        first = load_runs(database)["r1"]["beat_at"]
        give_up_at = time.monotonic() + 60
        while load_runs(database)["r1"]["beat_at"] == first:
            assert time.monotonic() < give_up_at, "no second sign of life"
            time.sleep(0.01)
    assert load_runs(database) == {}


def test_the_end_of_a_process_leaves_the_heartbeat_that_another_process_gives_for_the_same_run(
    database: Database,
) -> None:
    with keep_heartbeat(database, "r1"), database.write() as connection:
        connection.execute(sa.update(runs).values(pid=1, host="elsewhere"))
    assert list(load_runs(database)) == ["r1"]


def test_a_store_that_takes_nothing_in_stops_no_run(empty_store_url: str) -> None:
    opened, done = open_database(empty_store_url), []
    with keep_heartbeat(opened, "r1", every_s=0.01):
        with opened.write() as connection:
            connection.execute(sa.text("ALTER TABLE llm_runs RENAME TO away"))
        time.sleep(0.1)  # some signs that nobody takes
        done.append("the run's work")
        with opened.write() as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO llm_runs"))
            connection.execute(sa.delete(runs))
        give_up_at = time.monotonic() + 60
        while not load_runs(opened):
            assert time.monotonic() < give_up_at, "the heartbeat goes on when the store is there again"
            time.sleep(0.01)
    assert done
    opened.close()


def test_what_killed_runs_have_left_is_removed_after_a_week(database: Database) -> None:
    Heartbeat(database, "killed").beat()
    age(database, "beat_at", FORGOTTEN_AFTER.total_seconds() - 60)
    Heartbeat(database, "r1").beat()
    assert set(load_runs(database)) == {"killed", "r1"}
    age(database, "beat_at", FORGOTTEN_AFTER.total_seconds() + 60)
    Heartbeat(database, "r2").beat()
    assert set(load_runs(database)) == {"r2"}


def test_the_moment_is_the_databases_own(database: Database) -> None:
    function: Any = sa.func.clock_timestamp() if database.engine.dialect.name == "postgresql" else None
    with database.read() as connection:
        before = connection.scalar(sa.select(function)) if function is not None else dt.datetime.now(dt.UTC)
        found = find_moment(connection)
        after = connection.scalar(sa.select(function)) if function is not None else dt.datetime.now(dt.UTC)
    assert before <= found <= after
    assert found.tzinfo is dt.UTC


def test_an_interrupted_run_asks_nothing_more_of_the_store(database: Database) -> None:
    with pytest.raises(KeyboardInterrupt), keep_heartbeat(database, "mine"):
        raise KeyboardInterrupt
    assert set(load_runs(database)) == {"mine"}, "its row is left to be forgotten"
