"""A read that takes its time keeps nothing waiting: answers are taken in, requests leave, a stop gives all back."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from factories import (
    GOOD,
    Hang,
    ScriptedEngine,
    load_open_claims,
    load_rows,
    load_statuses,
    make_ids,
    make_inputs,
    make_records,
    make_runner,
    make_task,
)

from batch_assets.core.errors import EngineDead
from batch_assets.core.records import Record
from batch_assets.run.engine_restarts import run_with_restarts
from batch_assets.run.loop import Observer, Runner
from batch_assets.run.partition_run import PartitionInputs, Progress, Tally
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.leases import load_live

LONGEST_S = 20.0
"""A test that waits so long has failed."""


class Gate:
    """A read that begins, and ends only when the test lets it."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(LONGEST_S), "nothing went on while the read was under way"


def slow_down(inputs: PartitionInputs, gate: Gate) -> PartitionInputs:
    """Return the inputs with a read that stops at the gate after its first chunk."""

    def read() -> Iterator[Sequence[Record]]:
        first, *others = inputs.read()
        yield first
        gate.pass_through()
        yield from others

    return replace(inputs, read=read)


def test_answers_are_committed_and_requests_leave_while_a_chunk_is_read(database: Database, tmp_path: Path) -> None:
    gate, engine = Gate(), ScriptedEngine()
    inputs = slow_down(make_inputs(make_task(tmp_path), "b1", make_records(make_ids(6)), chunk=3), gate)

    def observe(_progress: Progress) -> None:
        if len(load_rows(database)) == 3:
            gate.may_end.set()

    runner = make_runner(database, engine, max_in_flight=1, patience_s=0.0, observer=observe)
    list(run_in_thread(runner, [inputs]))
    assert list(load_statuses(database).values()) == ["ok"] * 6
    assert len(engine.asked) == 6


def test_a_partition_is_finished_while_the_next_is_looked_for(database: Database, tmp_path: Path) -> None:
    gate, task = Gate(), make_task(tmp_path)

    def find_all() -> Iterator[PartitionInputs]:
        yield make_inputs(task, "b1", make_records(["1"]))
        gate.pass_through()
        yield make_inputs(task, "b2", make_records(["2"]))

    finished: list[str] = []
    for outcome in run_in_thread(make_runner(database, ScriptedEngine(), patience_s=0.0), find_all()):
        finished.append(outcome.inputs.batch)
        gate.may_end.set()
    assert finished == ["b1", "b2"]


def test_a_run_that_is_cancelled_while_it_reads_gives_all_back_at_once(database: Database, tmp_path: Path) -> None:
    gate, engine = Gate(), ScriptedEngine(default=Hang())
    inputs = slow_down(make_inputs(make_task(tmp_path), "b1", make_records(make_ids(4)), chunk=2), gate)
    runner = make_runner(database, engine, patience_s=0.0)

    async def run() -> None:
        async for _outcome in runner.run([inputs]):
            pass

    async def cancel() -> None:
        running = asyncio.create_task(run())
        while not (gate.has_begun.is_set() and engine.in_flight == 2):
            await asyncio.sleep(0.01)
        running.cancel()
        while find_live(database):
            await asyncio.sleep(0.01)
        assert load_open_claims(database) == []
        assert not running.done(), "the read is under way still"
        gate.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(cancel(), LONGEST_S))


def find_live(database: Database) -> bool:
    with database.read() as connection:
        return bool(load_live(connection, "t"))


def test_an_engine_that_dies_while_partitions_are_looked_for_is_restarted_and_gets_them(
    database: Database, tmp_path: Path
) -> None:
    gate, task = Gate(), make_task(tmp_path)

    class Dying(ScriptedEngine):
        async def close(self) -> None:
            await super().close()
            gate.may_end.set()

    def find_all() -> Iterator[PartitionInputs]:
        yield make_inputs(task, "b1", make_records(["1"]))
        gate.pass_through()
        time.sleep(0.2)  # a runner that didn't wait for this would find the iterator busy
        yield make_inputs(task, "b2", make_records(["2"]))

    engine = Dying({"text of 1": [EngineDead("gone", took_requests_down=True), GOOD]})

    def make(observer: Observer, _tally: Tally) -> Runner:
        return make_runner(database, engine, patience_s=0.0, observer=observer, run_id="run")

    outcomes = run_with_restarts(
        make, find_all(), is_restartable=True, tally=Tally(), observer=lambda _p: None, log=lambda _line: None
    )
    assert [o.inputs.batch for o in outcomes] == ["b1", "b2"]
    assert load_statuses(database) == {"1": "ok", "2": "ok"}


def test_a_read_that_fails_stops_the_run_with_its_error(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(2)), chunk=1)
    engine = ScriptedEngine(default=Hang())
    asked = threading.Event()
    engine.on_request = lambda _text: asked.set()

    def read() -> Iterator[Sequence[Record]]:
        yield next(iter(inputs.read()))
        assert asked.wait(LONGEST_S)
        raise OSError("the frame can't be read")

    runner = make_runner(database, engine, patience_s=0.0)
    with pytest.raises(OSError, match="can't be read"):
        list(run_in_thread(runner, [replace(inputs, read=read)]))
    assert load_open_claims(database) == []
    assert not find_live(database)
