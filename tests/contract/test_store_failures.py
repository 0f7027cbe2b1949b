"""How often a partition failed since it last succeeded. On SQLite and PostgreSQL."""

from batch_assets.core.steps import Step
from batch_assets.store.database import Database, now
from batch_assets.store.failures import (
    Failing,
    clear_failures,
    count_failure,
    excuse_failures,
    load_failing,
    record_failure_reason,
    reset_failures,
)


def count(
    database: Database, partition: str = "b1|v", wanted: str = "w1", run_id: str = "r1", **fields: object
) -> None:
    step = fields.get("step", Step.OUTPUTS)
    with database.write() as connection:
        count_failure(connection, "t", step, partition, wanted, run_id, fields.get("error"))


def load(database: Database, task: str = "t") -> dict[tuple[Step, str], Failing]:
    with database.read() as connection:
        return load_failing(connection, task)


def counts(database: Database) -> dict[str, int]:
    return {partition: f.failures for (_, partition), f in load(database).items()}


def test_failures_of_the_same_thing_add_up_and_tell_of_the_last(database: Database) -> None:
    before = now()
    for run_id in ("r1", "r2", "r3"):
        count(database, run_id=run_id, error=f"by {run_id}")
    (found,) = load(database).values()
    assert (found.step, found.partition, found.wanted) == (Step.OUTPUTS, "b1|v", "w1")
    assert (found.failures, found.run_id, found.error) == (3, "r3", "by r3")
    assert before <= found.failed_at <= now()


def test_something_else_wanted_starts_anew(database: Database) -> None:
    count(database)
    count(database)
    count(database, wanted="w2")
    assert counts(database) == {"b1|v": 1}


def test_steps_partitions_and_tasks_are_counted_apart(database: Database) -> None:
    count(database)
    count(database, step=Step.RESULTS)
    count(database, partition="b2|v")
    assert sorted(load(database)) == [(Step.OUTPUTS, "b1|v"), (Step.OUTPUTS, "b2|v"), (Step.RESULTS, "b1|v")]
    assert load(database, "another") == {}


def test_a_success_forgets_its_own_step_alone(database: Database) -> None:
    count(database)
    count(database, step=Step.RESULTS)
    count(database, partition="b2|v")
    with database.write() as connection:
        clear_failures(connection, "t", Step.OUTPUTS, ["b1|v"])
    assert sorted(load(database)) == [(Step.OUTPUTS, "b2|v"), (Step.RESULTS, "b1|v")]


def test_a_run_tells_why_its_own_starts_failed(database: Database) -> None:
    count(database, run_id="mine")
    count(database, partition="b2|v", run_id="another")
    with database.write() as connection:
        record_failure_reason(connection, Step.OUTPUTS, "mine", "it broke")
    assert {p: f.error for (_, p), f in load(database).items()} == {"b1|v": "it broke", "b2|v": None}


def test_an_excused_start_is_taken_back(database: Database) -> None:
    count(database, run_id="earlier")
    count(database, run_id="mine")
    count(database, partition="b2|v", run_id="mine")
    count(database, partition="b3|v", run_id="another")
    with database.write() as connection:
        excuse_failures(connection, Step.OUTPUTS, "mine")
    assert counts(database) == {"b1|v": 1, "b3|v": 1}


def test_a_person_resets_all_or_some(database: Database) -> None:
    for partition in ("b1|v", "b2|v", "b3|v"):
        count(database, partition=partition)
    with database.write() as connection:
        assert reset_failures(connection, "t", ["b2|v", "never failed"]) == 1
    assert sorted(counts(database)) == ["b1|v", "b3|v"]
    with database.write() as connection:
        assert reset_failures(connection, "another") == 0
        assert reset_failures(connection, "t") == 2
    assert load(database) == {}
