"""A dead engine that is started again: nothing lost, nothing twice, deaths counted, and an end to it."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from factories import (
    GOOD,
    Hang,
    ScriptedEngine,
    load_open_claims,
    load_statuses,
    load_tries,
    make_ids,
    make_inputs,
    make_records,
    make_task,
)

from batch_assets.core.errors import EngineDead
from batch_assets.run.engine_restarts import MAX_RESTARTS, run_with_restarts
from batch_assets.run.loop import Observer, Runner, RunnerOptions
from batch_assets.run.partition_run import PartitionInputs, PartitionOutcome, Progress, Tally
from batch_assets.store.database import Database

DEATH = EngineDead("the engine is gone", took_requests_down=True)
LOSS = EngineDead("the server can't be reached")


class Restarts:
    """Drives an engine through its restarts, and keeps what is said meanwhile. All runners are of one run."""

    def __init__(self, database: Database, engine: ScriptedEngine, *, max_in_flight: int = 4, total: int = 0) -> None:
        self.log: list[str] = []
        self.progress: list[Progress] = []
        self.tally = Tally()
        self.outcomes: list[PartitionOutcome] = []
        self._database, self._engine, self._total = database, engine, total
        self._options = RunnerOptions(max_in_flight=max_in_flight, group_s=0.0)

    def start(
        self, all_inputs: Iterator[PartitionInputs] | list[PartitionInputs], *, is_restartable: bool = True
    ) -> Generator[PartitionOutcome]:
        def make(observer: Observer, tally: Tally) -> Runner:
            return Runner(
                self._database, self._engine, self._options,
                run_id="run", total=self._total, tally=tally, observer=observer,
            )  # fmt: skip

        return run_with_restarts(
            make, all_inputs,
            is_restartable=is_restartable, tally=self.tally, observer=self.progress.append, log=self.log.append,
        )  # fmt: skip

    def run(
        self, all_inputs: Iterator[PartitionInputs] | list[PartitionInputs], *, is_restartable: bool = True
    ) -> None:
        self.outcomes.extend(self.start(all_inputs, is_restartable=is_restartable))

    @property
    def batches(self) -> list[str]:
        return [o.inputs.batch for o in self.outcomes]


def test_without_a_death_nothing_is_restarted(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(5)))
    engine = ScriptedEngine()
    restarts = Restarts(database, engine)
    restarts.run([inputs])
    assert (restarts.batches, restarts.log, engine.opened, engine.closed) == (["b1"], [], 1, 1)


def test_after_a_death_the_rest_is_done_and_each_partition_is_yielded_once(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    records = {b: make_records(make_ids(6, prefix=b)) for b in ("b1", "b2", "b3", "b4")}
    engine = ScriptedEngine({"text of b30002": [DEATH, GOOD]}, latency_s=0.001)
    restarts = Restarts(database, engine)
    restarts.run(make_inputs(task, b, r) for b, r in records.items())
    assert sorted(restarts.batches) == ["b1", "b2", "b3", "b4"]
    assert (engine.opened, engine.closed) == (2, 2)
    assert set(load_statuses(database).values()) == {"ok"}
    assert len(load_statuses(database)) == 24
    assert len(engine.asked) <= 24 + 4, "no more is asked again than was in flight"
    assert restarts.log == ["the engine is gone; starting the engine again (1 of 4 restarts)"]


def test_what_was_in_flight_at_the_death_is_a_death_to_the_next_runner(database: Database, tmp_path: Path) -> None:
    # Twice in company: from the third time on it is sent alone.
    engine = ScriptedEngine({"text of r0003": [DEATH, DEATH, GOOD]}, latency_s=0.001)
    restarts = Restarts(database, engine)
    restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(12)))])
    assert [t["is_alone"] for t in load_tries(database, "r0003")] == [False, False, True]
    assert load_open_claims(database).count("r0003") == 2
    assert set(load_statuses(database).values()) == {"ok"}


def test_a_record_that_kills_the_engine_is_found_in_one_drive(database: Database, tmp_path: Path) -> None:
    # Alone in its batch, so that nothing is settled between its deaths: as many restarts as there are at most.
    engine = ScriptedEngine({"text of r0000": DEATH})
    restarts = Restarts(database, engine)
    restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(1)))])
    assert load_statuses(database) == {"r0000": "error/kills_engine"}
    assert len(restarts.log) == MAX_RESTARTS
    assert restarts.batches == ["b1"]


def test_several_such_records_are_found_too(database: Database, tmp_path: Path) -> None:
    script = {f"text of r{n:04d}": DEATH for n in (0, 1, 7)}
    engine = ScriptedEngine(script, latency_s=0.001)
    restarts = Restarts(database, engine)
    restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(12)))])
    statuses = load_statuses(database)
    assert {i for i, s in statuses.items() if s == "error/kills_engine"} == {"r0000", "r0001", "r0007"}
    assert len(statuses) == 12


def test_an_engine_that_dies_whatever_it_is_asked_is_given_up(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(40)))
    restarts = Restarts(database, ScriptedEngine(default=DEATH))
    with pytest.raises(EngineDead, match="died 5 times with no record settled in between.*the engine is gone") as error:
        restarts.run([inputs])
    assert error.value.took_requests_down
    assert restarts.log[-1] == "the engine is gone; starting the engine again (4 of 4 restarts)"
    assert (restarts.outcomes, load_statuses(database)) == ([], {})


def test_deaths_with_answers_between_them_are_not_added_up(database: Database, tmp_path: Path) -> None:
    # An engine that dies at every eighth request, more often than it may die in a row.
    engine = ScriptedEngine(latency_s=0.001)

    def die_now_and_then(_text: str) -> None:
        if len(engine.asked) % 8 == 0:
            raise DEATH

    engine.on_request = die_now_and_then
    restarts = Restarts(database, engine, max_in_flight=1)
    restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(60)))])
    assert set(load_statuses(database).values()) == {"ok"}
    assert len(restarts.log) > MAX_RESTARTS
    assert set(restarts.log) == {"the engine is gone; starting the engine again (1 of 4 restarts)"}


def test_an_engine_that_is_not_restartable_is_not_restarted(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine({"text of r0001": DEATH})
    restarts = Restarts(database, engine)
    with pytest.raises(EngineDead, match="^the engine is gone$"):
        restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(3)))], is_restartable=False)
    assert (engine.opened, restarts.log) == (1, [])


def test_an_engine_that_is_lost_without_a_request_to_blame_is_not_restarted(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine({"text of r0001": LOSS})
    restarts = Restarts(database, engine)
    with pytest.raises(EngineDead, match="^the server can't be reached$"):
        restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(3)))])
    assert (engine.opened, restarts.log) == (1, [])


def test_progress_goes_on_over_a_restart(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine({"text of r0009": [DEATH, GOOD]}, latency_s=0.001)
    restarts = Restarts(database, engine, total=20, max_in_flight=1)
    restarts.run([make_inputs(make_task(tmp_path), "b1", make_records(make_ids(20)))])
    done = [p.done for p in restarts.progress]
    assert done == sorted(done)
    assert (done[-1], restarts.progress[-1].total, restarts.progress[-1].tally.ok) == (20, 20, 20)
    assert [p.is_starting for p in restarts.progress].count(True) == 2


def test_works_are_read_once_and_no_earlier_than_needed(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    read: list[str] = []

    def make_works() -> Iterator[PartitionInputs]:
        for batch in ("b1", "b2", "b3"):
            read.append(batch)
            yield make_inputs(task, batch, make_records(make_ids(3, prefix=batch)))

    engine = ScriptedEngine({"text of b10000": [DEATH, GOOD]})
    read_at_death: list[str] = []
    engine.on_request = lambda text: read_at_death.extend(read) if engine.asked == [text] else None
    restarts = Restarts(database, engine, max_in_flight=1)
    restarts.run(make_works())
    assert read_at_death == ["b1"]
    assert read == ["b1", "b2", "b3"]
    assert sorted(restarts.batches) == read
    assert set(load_statuses(database).values()) == {"ok"}


def test_a_caller_that_stops_in_the_middle_stops_the_runner(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    engine = ScriptedEngine({"text of b10000": [DEATH, GOOD], "text of b40000": Hang()}, latency_s=0.002)
    all_inputs = [make_inputs(task, b, make_records(make_ids(5, prefix=b))) for b in ("b1", "b2", "b3", "b4")]

    outcomes = Restarts(database, engine, max_in_flight=1).start(all_inputs)
    with contextlib.closing(outcomes):
        assert next(outcomes).inputs.batch == "b1"
    assert engine.closed == engine.opened == 2
    assert len(load_statuses(database)) < 20
