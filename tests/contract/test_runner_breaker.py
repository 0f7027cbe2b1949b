"""A sick engine pauses a run, a dead one stops it, and bad records do neither. On SQLite, with the scripted engine."""

import random
from pathlib import Path

import pytest
from factories import (
    GOOD,
    ScriptedEngine,
    Step,
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

from batch_assets.core.errors import EngineDead, RequestFailed
from batch_assets.core.tasks import Thresholds
from batch_assets.run.partition_run import Progress
from batch_assets.run.retry_budget import RetryBudget
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database

IDS = make_ids(200)
PROBED = 2
"""Of probes drawn by chance from here on, no three in a row are bad records: however slow the machine, none stops."""

PATIENT = Thresholds(stop_early=False)
"""A share of errors is another rule's matter: EarlyStop."""


class Sick(ScriptedEngine):
    """An engine that fails a share of the requests from number `first` to number `last`."""

    def __init__(self, first: int, last: int, share: float = 1.0, kind: str = "server_error", **fields: float) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        self._sick = range(first, last + 1)
        self._share, self._kind = share, kind
        self._rng = random.Random(7)
        self._number = 0
        self.at_once: list[int] = []
        """How many requests were in flight at each request, itself among them."""
        self.on_request = lambda _text: self.at_once.append(self.in_flight)

    def _next_step(self, text: str) -> Step:
        self._number += 1
        is_failing = self._number in self._sick and self._rng.random() < self._share
        return pass_later(self._kind) if is_failing else super()._next_step(text)


@pytest.mark.parametrize("window", [4, 32])
@pytest.mark.parametrize("kind", ["server_error", "timeout", "connection", "rate_limited"])
def test_a_server_that_fails_everything_for_a_while_costs_no_record_anything(
    sqlite_database: Database, tmp_path: Path, kind: str, window: int
) -> None:
    inputs = make_inputs(make_task(tmp_path, max_attempts=10), "b1", make_records(IDS))
    run_partitions(sqlite_database, Sick(40, 110, kind=kind), inputs, max_in_flight=window, outage_s=1e9)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert load_open_claims(sqlite_database) == []


def test_while_it_is_sick_it_gets_one_request_at_a_time_and_the_whole_window_afterwards(
    sqlite_database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_task(tmp_path, max_attempts=10), "b1", make_records(IDS))
    engine = Sick(1, 150, latency_s=0.001)
    run_partitions(sqlite_database, engine, inputs, max_in_flight=16, outage_s=1e9)
    assert set(engine.at_once[32 + 16 : 150]) == {1}
    assert engine.at_once[:16] == list(range(1, 17))
    assert max(engine.at_once[150:]) == 16


def test_a_server_that_fails_four_in_five_for_a_while_loses_no_record(
    sqlite_database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_task(tmp_path, max_attempts=10), "b1", make_records(IDS))
    engine = Sick(20, 300, share=0.8)
    run_partitions(sqlite_database, engine, inputs, max_in_flight=16, outage_s=1e9)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert engine.at_once.count(1) > 100, "it was paused for most of that time"


def test_the_pause_is_told_while_it_lasts(sqlite_database: Database, tmp_path: Path) -> None:
    seen: list[Progress] = []
    inputs = make_inputs(make_task(tmp_path, max_attempts=10), "b1", make_records(IDS))
    runner = make_runner(sqlite_database, Sick(1, 36), max_in_flight=8, outage_s=1e9, probe_s=0.01)
    runner._observer = seen.append
    list(run_in_thread(runner, [inputs]))
    assert any(p.pause_s for p in seen)
    assert seen[-1].pause_s is None


@pytest.mark.parametrize(
    ("kind", "window", "first"),
    [
        ("timeout", 4, 80),
        ("server_error", 16, 80),
        ("timeout", 64, 80),
        ("server_error", 4, 0),
        ("timeout", 64, 0),
        ("server_error", 4, 160),
        ("timeout", 64, 160),
    ],
)
def test_a_cluster_of_bad_records_neither_stops_nor_spoils_a_healthy_run(
    sqlite_database: Database, tmp_path: Path, kind: str, window: int, first: int
) -> None:
    bad = IDS[first : first + 40]
    engine = ScriptedEngine({f"text of {i}": pass_later(kind) for i in bad})
    inputs = make_inputs(make_task(tmp_path, thresholds=PATIENT), "b1", make_records(IDS))
    run_partitions(sqlite_database, engine, inputs, max_in_flight=window, outage_s=0.2, rng=random.Random(PROBED))
    statuses = load_statuses(sqlite_database)
    assert {i for i, s in statuses.items() if s == f"error/{kind}"} == set(bad)
    assert {i for i, s in statuses.items() if s == "ok"} == set(IDS) - set(bad)


def test_while_it_is_paused_many_records_are_read_so_that_a_probe_is_any_of_them(
    sqlite_database: Database, tmp_path: Path
) -> None:
    runner = make_runner(sqlite_database, Sick(1, 10**9, kind="connection"), max_in_flight=4, outage_s=2.0, probe_s=1.0)
    ready: list[int] = []
    runner._observer = lambda _progress: ready.append(runner._queue.ready)
    with pytest.raises(EngineDead):
        list(run_in_thread(runner, [make_inputs(make_task(tmp_path), "b1", make_records(IDS), chunk=1)]))
    assert max(ready) > 60


@pytest.mark.parametrize("kind", ["server_error", "timeout", "connection", "rate_limited"])
@pytest.mark.parametrize("answered", [0, 50])
def test_a_dead_server_stops_the_run_and_leaves_the_rest_pending(
    sqlite_database: Database, tmp_path: Path, kind: str, answered: int
) -> None:
    inputs = make_inputs(make_task(tmp_path, max_attempts=10), "b1", make_records(IDS))
    engine = Sick(answered + 1, 10**9, kind=kind)
    with pytest.raises(EngineDead, match=r"no answer in \d+ s, .* requests failed in a row; the last"):
        run_partitions(sqlite_database, engine, inputs, max_in_flight=16, outage_s=0.1)
    assert len(load_rows(sqlite_database)) == answered
    assert set(load_statuses(sqlite_database).values()) <= {"ok"}
    assert load_open_claims(sqlite_database) == []
    run_partitions(sqlite_database, ScriptedEngine(), inputs)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}


def test_a_refusal_for_good_is_an_answer_of_a_server_that_lives(sqlite_database: Database, tmp_path: Path) -> None:
    refused = RequestFailed("bad_request", "no", is_passing=False)
    script = {f"text of {i}": refused if n % 2 else pass_later("server_error") for n, i in enumerate(IDS[:100])}
    engine = ScriptedEngine(script)
    inputs = make_inputs(make_task(tmp_path, max_attempts=1, thresholds=PATIENT), "b1", make_records(IDS[:100]))
    run_partitions(sqlite_database, engine, inputs, max_in_flight=1, outage_s=0.0)
    assert len(engine.asked) == 100, "each was asked once: no failure was forgiven"


def test_retries_beyond_the_runs_budget_wait_and_are_not_lost(sqlite_database: Database, tmp_path: Path) -> None:
    budget = RetryBudget(capacity=3.0, per_s=20.0)
    script = {f"text of {i}": [pass_later(), GOOD] for i in IDS[:40:2]}
    engine = ScriptedEngine(script)
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(IDS[:40]))
    run_partitions(sqlite_database, engine, inputs, max_in_flight=40, budget=budget)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert len(load_tries(sqlite_database)) == 60


def test_no_more_is_read_while_too_many_wait_to_be_retried(sqlite_database: Database, tmp_path: Path) -> None:
    budget = RetryBudget(capacity=1.0, per_answer=0.0, per_s=8.0)
    script = {f"text of {i}": [pass_later("rate_limited"), GOOD] for n, i in enumerate(IDS[:40]) if n % 2}
    runner = make_runner(sqlite_database, ScriptedEngine(script), max_in_flight=2, budget=budget, most_delayed=8)
    waiting: list[int] = []
    runner._observer = lambda _progress: waiting.append(runner._queue.delayed)
    list(run_in_thread(runner, [make_inputs(make_task(tmp_path), "b1", make_records(IDS[:40]), chunk=1)]))
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert 2 < max(waiting) <= 8 + 4
