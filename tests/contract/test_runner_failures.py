"""What the runner counts against a partition that it started and didn't finish. On SQLite and PostgreSQL."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from factories import BAD, ScriptedEngine, make_inputs, make_records, make_runner, make_task, run_partitions

from batch_assets.core.errors import EngineDead
from batch_assets.core.steps import Step
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.failures import Failing, count_failure, load_failing

P = "b1|v1--m1"


def load(database: Database) -> dict[str, Failing]:
    with database.read() as connection:
        return {partition: f for (_, partition), f in load_failing(connection, "t").items()}


def stop_by(database: Database, tmp_path: Path, error: BaseException, **options: object) -> Failing | None:
    task = make_task(tmp_path, max_attempts=1)
    engine = ScriptedEngine({"text of two": error})
    with contextlib.suppress(type(error)):
        run_partitions(database, engine, make_inputs(task, "b1", make_records(["one", "two"])), **options)
    return load(database).get(P)


def test_a_finished_partition_has_no_failures(database: Database, tmp_path: Path) -> None:
    with database.write() as connection:
        count_failure(connection, "t", Step.OUTPUTS, P, "an earlier fingerprint", "an earlier run", "it broke")
    run_partitions(database, ScriptedEngine(default=BAD), make_inputs(make_task(tmp_path), "b1", make_records(["one"])))
    assert load(database) == {}


def test_a_fault_counts_and_is_told(database: Database, tmp_path: Path) -> None:
    found = stop_by(database, tmp_path, ZeroDivisionError("what nobody foresaw"))
    assert found is not None
    assert (found.failures, found.error) == (1, "ZeroDivisionError: what nobody foresaw")
    found = stop_by(database, tmp_path, ZeroDivisionError("again"))
    assert found is not None
    assert (found.failures, found.error) == (2, "ZeroDivisionError: again")


@pytest.mark.parametrize("is_taken_down", [True, False])
def test_a_dead_engine_is_not_the_partitions_fault(database: Database, tmp_path: Path, is_taken_down: bool) -> None:
    assert stop_by(database, tmp_path, EngineDead("gone", took_requests_down=is_taken_down)) is None


def test_an_interruption_is_not_the_partitions_fault(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records([f"r{i}" for i in range(50)]))
    done = make_inputs(make_task(tmp_path), "b0", make_records(["first"]))
    outcomes = run_in_thread(make_runner(database, ScriptedEngine(latency_s=0.2), max_in_flight=1), [done, inputs])
    assert next(outcomes).inputs is done
    outcomes.close()
    assert load(database) == {}


def test_what_is_killed_has_failed_and_can_not_say_why(empty_store_url: str, tmp_path: Path) -> None:
    script = """
import os, sys, pathlib
sys.path.insert(0, sys.argv[1])
from factories import ScriptedEngine, make_records, make_task, make_inputs, run_partitions
from batch_assets.store.database import open_database
engine = ScriptedEngine()
engine.on_request = lambda _text: os._exit(9)
task = make_task(pathlib.Path(sys.argv[3]))
run_partitions(open_database(sys.argv[2]), engine, make_inputs(task, "b1", make_records(["one"])), run_id="killed")
"""
    folder = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, folder, empty_store_url, str(tmp_path)], env=os.environ, timeout=120, check=False
    )
    assert done.returncode == 9
    from batch_assets.store.database import open_database

    database = open_database(empty_store_url)
    found = load(database)[P]
    database.close()
    assert (found.failures, found.error, found.run_id) == (1, None, "killed")
