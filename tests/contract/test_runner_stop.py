"""A run that is stopped in the middle, partitions under way beside each other, and leases of others."""

import asyncio
import datetime as dt
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import psycopg2
import pytest
import sqlalchemy as sa
from factories import (
    BAD,
    GOOD,
    Answer,
    Hang,
    HookedDatabase,
    ScriptedEngine,
    load_open_claims,
    load_rows,
    load_statuses,
    load_tries,
    make_ids,
    make_inputs,
    make_records,
    make_runner,
    make_task,
    pass_later,
    run_partitions,
)

from batch_assets.core.completions import Completion
from batch_assets.core.errors import EngineDead, PartitionLeased
from batch_assets.core.requests import Request
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.run.sync_bridge import _Loop, end_runs, run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.failures import load_failing
from batch_assets.store.leases import LeaseBook, load_live
from batch_assets.store.partitions import load_partitions
from batch_assets.store.tables import leases


class Interrupted(BaseException):
    """What a signal handler raises, as Dagster's does when a run is terminated."""


@contextmanager
def interrupts() -> Iterator[None]:
    """Let SIGUSR1 raise Interrupted in the main thread, wherever it is."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def interrupt_once(is_time: Callable[[], bool], interrupt: Callable[[], object] = interrupt_main_thread) -> None:
    """Interrupt from a thread of its own, as soon as it is time."""

    def watch() -> None:
        give_up_at = time.monotonic() + 60
        while not is_time() and time.monotonic() < give_up_at:
            time.sleep(0.01)
        interrupt()

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set as soon as a run has been told to end."""
    event, end = threading.Event(), _Loop.end

    def tell(running: _Loop) -> None:
        cancel = running.cancel.result()
        running.cancel = Future()
        running.cancel.set_result(lambda: (cancel(), event.set()))
        end(running)

    monkeypatch.setattr(_Loop, "end", tell)
    return event


def find_live(database: Database) -> dict[tuple[str, str], str]:
    with database.read() as connection:
        return {key: live.run_id for key, live in load_live(connection, "t").items()}


def find_finished(database: Database) -> list[str]:
    with database.read() as connection:
        return sorted(batch for batch, _ in load_partitions(connection, "t"))


def has_rows(database: Database, count: int) -> bool:
    return len(load_rows(database)) == count


def find_outcomes(database: Database) -> dict[str, str | None]:
    return {t["item_id"]: t["outcome"] for t in load_tries(database)}


# Partitions beside each other


def test_partitions_finish_in_order_each_by_itself(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records(make_ids(4, f"b{n}r"))) for n in range(4)]
    seen: list[tuple[str, list[str]]] = []
    runner = make_runner(database, ScriptedEngine(latency_s=0.001), max_in_flight=3)
    for outcome in run_in_thread(runner, all_inputs):
        seen.append((outcome.inputs.batch, find_finished(database)))
        assert (outcome.inputs.batch, "v1--m1") not in find_live(database)
    assert [batch for batch, _ in seen] == ["b0", "b1", "b2", "b3"]
    assert all(batch in finished for batch, finished in seen)


def test_a_partition_that_is_done_doesnt_wait_for_a_slow_one_before_it(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    slow = make_inputs(task, "b1", make_records({"1": "slow"}))
    quick = make_inputs(task, "b2", make_records({"2": "quick"}))
    engine = ScriptedEngine({"slow": Hang()})
    order: list[str] = []
    for outcome in run_in_thread(make_runner(database, engine), [slow, quick]):
        order.append(outcome.inputs.batch)
        if outcome.inputs.batch == "b2":
            engine.release()
    assert order == ["b2", "b1"]


def test_variants_of_a_model_run_with_one_engine(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path, prompts=["v1", "v2"])
    records = make_records(["1", "2"])
    engine = ScriptedEngine()
    run_partitions(database, engine, *(make_inputs(task, "b1", records, variant) for variant in task.variants))
    assert engine.opened == 1
    assert len(engine.asked) == 4
    assert load_statuses(database, "v1") == load_statuses(database, "v2") == {"1": "ok", "2": "ok"}


def test_the_same_partition_listed_twice_is_done_once(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1", "2"]))
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs, inputs)
    assert len(engine.asked) == 2
    assert load_statuses(database) == {"1": "ok", "2": "ok"}
    assert find_live(database) == {}


# Leases of others


def test_a_partition_that_another_run_works_on_is_passed_over(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records([f"r{n}"])) for n in range(3)]
    LeaseBook(database, "other").acquire("t", "b1", "v1--m1")
    engine = ScriptedEngine()
    outcomes = {o.inputs.batch: o for o in run_partitions(database, engine, *all_inputs)}
    assert sorted(outcomes) == ["b0", "b1", "b2"]
    assert (outcomes["b1"].state, outcomes["b1"].tally.sent) == (None, 0)
    assert "run other works on it" in (outcomes["b1"].leased_by or "")
    assert outcomes["b0"].state is not None
    assert outcomes["b2"].state is not None
    assert engine.asked == ["text of r0", "text of r2"]
    assert find_live(database) == {("b1", "v1--m1"): "other"}


def test_a_run_whose_partitions_are_all_taken_says_so_and_opens_no_engine(database: Database, tmp_path: Path) -> None:
    LeaseBook(database, "other").acquire("t", "b1", "v1--m1")
    engine = ScriptedEngine()
    (outcome,) = run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert outcome.leased_by is not None
    assert engine.opened == 0


def test_leases_are_renewed_while_requests_are_in_flight(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine(default=Hang())
    renewed: list[bool] = []

    def find_expiry() -> dt.datetime:
        with database.read() as connection:
            return connection.scalars(sa.select(leases.c.expires_at)).one()

    def look(_text: str) -> None:
        before = find_expiry()

        def is_renewed() -> bool:
            renewed[:] = [find_expiry() > before]
            return renewed[0]

        interrupt_once(is_renewed, engine.release)

    engine.on_request = look
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1"]))
    run_partitions(database, engine, inputs, heartbeat_s=0.02)
    assert renewed == [True]


@pytest.mark.parametrize("taken", [pytest.param(1), 2])
def test_a_run_that_lost_a_lease_stops(database: Database, tmp_path: Path, taken: int) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records([f"r{n}"])) for n in (1, 2)]
    engine = ScriptedEngine(default=Hang())

    timers: list[threading.Timer] = []

    def steal(text: str) -> None:
        if text == "text of r2":
            with database.write() as connection:
                stolen = leases.c.batch.in_(["b1", "b2"][:taken])
                connection.execute(sa.update(leases).where(stolen).values(run_id="thief"))
            timers.append(threading.Timer(0.5, engine.release))
            timers[0].start()

    engine.on_request = steal
    try:
        with pytest.raises(PartitionLeased):
            run_partitions(database, engine, *all_inputs, heartbeat_s=0.02, longest_wait_s=0.05)
    finally:
        timers[0].cancel()
    assert load_open_claims(database) == []
    assert set(find_live(database).values()) == {"thief"}


def take_over(database: Database, new: PartitionInputs) -> None:
    """Do what a run on another host does once the lease here has run out: take it, and bring the partition up to date.

    It has the partition's newer prompt.
    """
    with database.write() as connection:
        connection.execute(sa.delete(leases))
    run_partitions(database, ScriptedEngine(default='{"label":"b","score":2}'), new, run_id="next")


def test_a_run_that_outlived_its_lease_writes_no_row_over_those_of_the_next(database: Database, tmp_path: Path) -> None:
    old = make_inputs(make_task(tmp_path / "old"), "b1", make_records(make_ids(6)))
    new = make_inputs(make_task(tmp_path / "new", prompts={"v1": "Newer: {{ text }}"}), "b1", make_records(make_ids(6)))
    engine = ScriptedEngine()
    taken = threading.Event()

    def sleep_too_long(text: str) -> None:
        if text == "text of r0003" and not taken.is_set():
            taken.set()
            take_over(database, new)

    engine.on_request = sleep_too_long
    with pytest.raises(PartitionLeased, match=r"another run took b1\|v1--m1 over: the lease had expired"):
        run_partitions(database, engine, old, max_in_flight=2)
    assert len(engine.asked) < 6, "it stops"
    assert {(r["payload"]["label"], r["run_id"]) for r in load_rows(database).values()} == {("b", "next")}
    with database.read() as connection:
        (state,) = load_partitions(connection, "t").values()
    assert state.fingerprint == new.fingerprint
    assert load_open_claims(database) == []


def test_a_run_that_outlived_its_lease_finishes_nothing(database: Database, tmp_path: Path) -> None:
    old = make_inputs(make_task(tmp_path / "old"), "b1", make_records(["1"]))
    new = make_inputs(make_task(tmp_path / "new", prompts={"v1": "Newer: {{ text }}"}), "b1", make_records(["1"]))
    engine = ScriptedEngine()
    engine.on_request = lambda _text: take_over(database, new)
    with pytest.raises(PartitionLeased, match="took b1"):
        run_partitions(database, engine, old)
    assert load_rows(database)["1"]["run_id"] == "next"
    with database.read() as connection:
        assert [s.fingerprint for s in load_partitions(connection, "t").values()] == [new.fingerprint]


def test_an_answer_that_came_too_late_is_kept_for_reuse(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1", "2"]))
    engine = ScriptedEngine()

    def lose(text: str) -> None:
        if text == "text of 1":
            with database.write() as connection:
                connection.execute(sa.delete(leases))

    engine.on_request = lose
    with pytest.raises(PartitionLeased):
        run_partitions(database, engine, inputs)
    again = ScriptedEngine()
    run_partitions(database, again, inputs)
    assert again.asked == []


# Stopped in the middle


def test_closing_the_generator_keeps_what_arrived_and_gives_the_rest_back(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    first = make_inputs(task, "b1", make_records({"1": "quick"}))
    second = make_inputs(task, "b2", make_records({"2": "quick too", "3": "slow", "4": "slow as well"}))
    engine = ScriptedEngine({"slow": Hang(), "slow as well": Hang()})
    outcomes = run_in_thread(make_runner(database, engine), [first, second])
    assert next(outcomes).inputs.batch == "b1"
    outcomes.close()  # type: ignore[attr-defined]
    assert find_finished(database) == ["b1"]
    assert find_outcomes(database) == {"1": "ok", "2": "ok", "3": "released", "4": "released"}
    assert load_statuses(database) == {"1": "ok", "2": "ok"}
    assert find_live(database) == {}
    assert (engine.closed, engine.in_flight) == (1, 0)
    engine = ScriptedEngine()
    run_partitions(database, engine, first, second)
    assert engine.asked == ["slow", "slow as well"]


def test_an_error_in_the_consumer_stops_the_run_in_the_same_way(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, "b1", make_records(["1"])), make_inputs(task, "b2", make_records({"2": "slow"}))]
    engine = ScriptedEngine({"slow": Hang()})

    def consume() -> None:
        for _ in run_in_thread(make_runner(database, engine), all_inputs):
            raise RuntimeError("a check broke")

    with pytest.raises(RuntimeError):
        consume()
    assert find_outcomes(database) == {"1": "ok", "2": "released"}
    assert find_live(database) == {}


def test_a_signal_while_the_run_waits_commits_and_releases(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(6)))
    engine = ScriptedEngine({f"text of r000{n}": Hang() for n in (1, 4)})
    is_waiting = partial(has_rows, database, 4)
    engine.on_request = lambda text: interrupt_once(is_waiting) if text == "text of r0005" else None
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(database, engine, inputs)
    outcomes = find_outcomes(database)
    assert [i for i, o in outcomes.items() if o == "released"] == ["r0001", "r0004"]
    assert [i for i, s in load_statuses(database).items() if s == "ok"] == ["r0000", "r0002", "r0003", "r0005"]
    assert find_live(database) == {}
    assert (engine.closed, engine.in_flight) == (1, 0)


def test_a_signal_that_strikes_inside_the_engine_stops_the_run(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1", "2"]))
    engine = ScriptedEngine()
    again = threading.Timer(20.0, interrupt_main_thread)  # an impatient operator, if the first wasn't heard
    heard = threading.Event()

    def strike(text: str) -> None:
        if text == "text of 2" and not heard.is_set():
            heard.set()
            again.start()
            raise Interrupted

    engine.on_request = strike
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(database, engine, inputs)
    assert not again.finished.is_set(), "it was heard"
    again.cancel()
    assert load_open_claims(database) == []


def test_a_signal_while_a_run_stops_by_itself_loses_no_answer_and_opens_no_death(
    sqlite_database: Database, tmp_path: Path, told: threading.Event
) -> None:
    # The engine is lost, and takes its time to give up what is in flight: that is when the operator stops the run.
    class Slow(ScriptedEngine):
        async def complete(self, request: Request) -> Completion:
            try:
                return await super().complete(request)
            except asyncio.CancelledError:
                interrupt_main_thread()
                await asyncio.to_thread(told.wait, 60)
                raise

    engine = Slow({"text of r0004": Hang(), "text of r0005": EngineDead("lost")})
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(sqlite_database, engine, make_inputs(make_task(tmp_path), "b1", make_records(make_ids(6))))
    outcomes = find_outcomes(sqlite_database)
    assert [outcomes[i] for i in make_ids(6)] == ["ok"] * 4 + ["released"] * 2
    assert find_live(sqlite_database) == {}


def test_a_signal_during_a_commit_leaves_no_claim_open(
    database: Database, tmp_path: Path, told: threading.Event
) -> None:
    # The claims are committed by another thread, and their requests never leave: that is no death.
    def strike(write: int) -> None:
        if write == 3:  # the first two take the lease and count the start
            interrupt_main_thread()
            told.wait(5)

    hooked = HookedDatabase(database, strike)
    engine = ScriptedEngine()
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(4)))
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(hooked, engine, inputs)
    assert engine.asked == []
    assert load_open_claims(database) == []
    assert find_live(database) == {}


def test_a_signal_while_a_lease_is_taken_leaves_none(database: Database, tmp_path: Path, told: threading.Event) -> None:
    def strike(write: int) -> None:
        if write == 1:
            interrupt_main_thread()
            told.wait(5)

    hooked = HookedDatabase(database, strike)
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(4)))
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(hooked, ScriptedEngine(), inputs)
    assert find_live(database) == {}


def test_ctrl_c_is_a_signal_like_any_other(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1", "2"]))
    engine = ScriptedEngine({"text of 2": Hang()})
    strike = partial(interrupt_once, partial(has_rows, database, 1), lambda: os.kill(os.getpid(), signal.SIGINT))
    engine.on_request = lambda text: strike() if text == "text of 2" else None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_partitions(database, engine, inputs)
    finally:
        signal.signal(signal.SIGINT, before)
    assert find_outcomes(database) == {"1": "ok", "2": "released"}
    assert find_live(database) == {}


def test_an_error_of_the_engine_that_nobody_knows_stops_the_run_and_blames_no_record(
    database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(4)))
    engine = ScriptedEngine({"text of r0000": GOOD, "text of r0002": KeyError("choices")}, default=Hang())
    with pytest.raises(KeyError):
        run_partitions(database, engine, inputs)
    assert find_outcomes(database)["r0000"] == "ok"
    assert load_open_claims(database) == []
    assert find_live(database) == {}


def explode(answer: Answer) -> str | None:
    """A rule with a fault in it."""
    if answer.score >= 9:
        raise OSError("the rule's list is not there")
    return None


def test_a_rule_that_raises_loses_no_answer_and_blames_no_record(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path, rules=[explode]), "b1", make_records(make_ids(4)))
    engine = ScriptedEngine({"text of r0001": '{"label":"a","score":9}'})
    with pytest.raises(OSError):
        run_partitions(database, engine, inputs)
    assert load_open_claims(database) == []
    assert find_live(database) == {}
    kept = {t["item_id"] for t in load_tries(database) if t["completion"]}
    assert kept >= {"r0000", "r0001"}


def test_a_rule_that_raises_for_every_answer_blames_no_record_and_holds_no_lease(
    database: Database, tmp_path: Path
) -> None:
    # All arrive at once: the first stops the run, and the others meet the same rule while it stops.
    inputs = make_inputs(make_task(tmp_path, rules=[explode]), "b1", make_records(make_ids(4)))
    with pytest.raises(OSError):
        run_partitions(database, ScriptedEngine(default='{"label":"a","score":9}'), inputs)
    assert load_open_claims(database) == []
    assert find_live(database) == {}
    assert len([t for t in load_tries(database) if t["completion"]]) == 4


# A store that fails


def test_a_store_error_loses_nothing_that_was_committed(database: Database, tmp_path: Path) -> None:
    def fail(write: int) -> None:
        if write >= 6:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("no space left on device"))

    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(40)))
    hooked = HookedDatabase(database, fail)
    with pytest.raises(sa.exc.OperationalError):
        run_partitions(hooked, ScriptedEngine(latency_s=0.001), inputs, max_in_flight=4, group_rows=4)
    committed = load_rows(database)
    assert 0 < len(committed) < 40
    with database.write() as connection:  # its process has ended
        connection.execute(sa.delete(leases))
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert {f"text of {i}" for i in committed}.isdisjoint(engine.asked)
    assert set(load_statuses(database).values()) == {"ok"}
    assert len(load_rows(database)) == 40


def test_a_store_error_that_passes_loses_no_answer_that_had_arrived(database: Database, tmp_path: Path) -> None:
    def fail_once(write: int) -> None:
        if write == 3:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection was closed"))

    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(12)))
    hooked = HookedDatabase(database, fail_once)
    engine = ScriptedEngine()
    with pytest.raises(sa.exc.OperationalError):
        run_partitions(hooked, engine, inputs, max_in_flight=4)
    assert load_open_claims(database) == []
    again = ScriptedEngine()
    run_partitions(database, again, inputs)
    assert len(engine.asked) + len(again.asked) == 12


def test_a_run_that_is_stopped_can_be_stopped_again_and_again_and_still_ends(
    database: Database, tmp_path: Path
) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records(make_ids(5, f"b{n}r"))) for n in range(3)]
    sent = 0
    for stop_at in (1, 2, 3, 4, 5, 99):
        engine = ScriptedEngine({"text of b1r0002": [pass_later(), GOOD], "text of b2r0001": BAD}, latency_s=0.001)

        def lose(_text: str, engine: ScriptedEngine = engine, stop_at: int = stop_at) -> None:
            if len(engine.asked) > stop_at:
                raise EngineDead("lost")

        engine.on_request = lose
        try:
            run_partitions(database, engine, *all_inputs, max_in_flight=2)
        except EngineDead:
            assert stop_at != 99
        sent += len(engine.asked)
        assert load_open_claims(database) == []
    assert find_finished(database) == ["b0", "b1", "b2"]
    statuses = load_statuses(database)
    assert statuses.pop("b2r0001") == "invalid/schema"
    assert len(statuses) == 14
    assert set(statuses.values()) == {"ok"}
    assert sent <= 15 + 6 * 2 + 1


def test_a_store_that_was_lost_is_no_failure_of_the_partition(database: Database, tmp_path: Path) -> None:
    def lose_once(write: int) -> None:
        if write == 4:
            raise sa.exc.OperationalError("COMMIT", {}, psycopg2.OperationalError("server closed the connection"))

    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(12)))
    with pytest.raises(sa.exc.OperationalError):
        run_partitions(HookedDatabase(database, lose_once), ScriptedEngine(), inputs, max_in_flight=4)
    with database.read() as connection:
        assert load_failing(connection, "t") == {}
    assert find_live(database) == {}


# Interrupted where nobody closes the generator


def test_what_nobody_closed_is_flushed_before_the_process_ends(database: Database, tmp_path: Path) -> None:
    all_inputs = [make_inputs(make_task(tmp_path), f"b{n}", make_records({f"{n}": f"text {n}"})) for n in (1, 2)]
    engine = ScriptedEngine({"text 2": Hang()})
    outcomes = run_in_thread(make_runner(database, engine), all_inputs)
    assert next(outcomes).inputs.batch == "b1"
    try:
        assert end_runs(), "all has ended"
        assert find_outcomes(database) == {"1": "ok", "2": "released"}
        assert find_live(database) == {}
        assert (engine.closed, engine.in_flight) == (1, 0)
        assert end_runs(), "and there is nothing more to end"
    finally:
        outcomes.close()


def test_a_second_signal_gives_up_waiting_for_a_store_that_is_stuck(
    database: Database, tmp_path: Path, told: threading.Event
) -> None:
    stuck, freed = threading.Event(), threading.Event()

    def get_stuck(write: int) -> None:
        if write == 3:
            stuck.set()
            freed.wait(60)

    def insist() -> None:
        stuck.wait(60)
        interrupt_main_thread()
        told.wait(60)
        interrupt_main_thread()

    hooked = HookedDatabase(database, get_stuck)
    impatient = threading.Thread(target=insist)
    impatient.start()
    with interrupts(), pytest.raises(Interrupted):
        run_partitions(hooked, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", make_records(make_ids(40))))
    has_ended = threading.Thread(target=end_runs)
    try:
        assert not freed.is_set(), "it was not waited for"
        has_ended.start()
        has_ended.join(10)
        assert not has_ended.is_alive(), "who ends the process is told at once"
        assert not end_runs()
    finally:
        freed.set()
        impatient.join()
    while not end_runs():
        time.sleep(0.01)
