"""What becomes of each record in a run: one state, the right number of requests, and a place in the window."""

import random
import time
from pathlib import Path

import pytest
from factories import (
    BAD,
    GOOD,
    Hang,
    ScriptedEngine,
    fail_for_good,
    load_open_claims,
    load_rows,
    load_statuses,
    load_tries,
    make_completion,
    make_ids,
    make_inputs,
    make_records,
    make_runner,
    make_task,
    pass_later,
    refuse_a,
    run_partitions,
    write_deaths,
)

from batch_assets.core.attempts import RetryMode, RetryPolicy
from batch_assets.core.completions import Usage
from batch_assets.core.errors import RequestFailed
from batch_assets.run.partition_run import Progress
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.leases import load_live

MIXED = {
    "text of r0001": BAD,
    "text of r0002": make_completion(GOOD, "length"),
    "text of r0003": fail_for_good("context_length"),
    "text of r0004": pass_later("timeout"),
    "text of r0005": [pass_later("server_error"), GOOD],
    "text of r0006": "not json",
    "text of r0007": make_completion("", None),
}
EXPECTED = {
    "r0000": "ok",
    "r0001": "invalid/schema",
    "r0002": "invalid/truncated",
    "r0003": "error/context_length",
    "r0004": "error/timeout",
    "r0005": "ok",
    "r0006": "invalid/not_json",
    "r0007": "invalid/unfinished",
}


def test_every_record_ends_in_exactly_one_state(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(8)))
    engine = ScriptedEngine(MIXED)
    (outcome,) = run_partitions(database, engine, inputs)
    assert load_statuses(database) == EXPECTED
    assert outcome.state is not None
    assert outcome.state.counts == {"ok": 2, "invalid": 4, "error": 2, "reused": 0}
    tally = outcome.tally
    assert (tally.sent, tally.ok, tally.invalid, tally.error, tally.already_done) == (11, 2, 4, 2, 0)
    assert (engine.opened, engine.closed) == (1, 1)
    assert load_open_claims(database) == []
    with database.read() as connection:
        assert load_live(connection, "t") == {}


def test_a_second_run_sends_nothing_and_doesnt_open_the_engine(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(8)))
    (first,) = run_partitions(database, ScriptedEngine(MIXED), inputs)
    rows = load_rows(database)
    engine = ScriptedEngine()
    (second,) = run_partitions(database, engine, inputs)
    assert (engine.asked, engine.opened) == ([], 0)
    assert load_rows(database) == rows
    assert (second.tally.sent, second.tally.already_done) == (0, 8)
    assert first.state is not None
    assert second.state is not None
    assert second.state.data_version == first.state.data_version


def test_an_empty_partition_is_finished_without_an_engine(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    (outcome,) = run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", []))
    assert outcome.state is not None
    assert engine.opened == 0


def test_a_run_without_partitions_does_nothing(database: Database, tmp_path: Path) -> None:
    assert run_partitions(database, ScriptedEngine()) == []


def test_what_an_answer_cost_is_kept_with_its_attempt(database: Database, tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=31, completion_tokens=None, cached_tokens=16)
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1"]))
    run_partitions(database, ScriptedEngine(default=make_completion(usage=usage)), inputs, run_id="this run")
    (tried,) = load_tries(database)
    assert (tried["prompt_tokens"], tried["completion_tokens"], tried["cached_tokens"]) == (31, None, 16)
    assert (tried["completion"], tried["finish_reason"], tried["outcome"]) == (GOOD, "stop", "ok")
    assert tried["engine_s"] > 0
    assert tried["run_id"] == "this run"
    row = load_rows(database)["1"]
    assert (row["attempt_id"], row["request_key"]) == (tried["attempt_id"], tried["request_key"])
    assert (row["attempts"], row["payload"], row["reused_from"]) == (1, {"label": "a", "score": 1}, None)
    assert row["updated_at"] >= tried["started_at"]


# The window


def test_the_window_is_filled_and_never_exceeded(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(30)), chunk=7)
    engine = ScriptedEngine(latency_s=0.02)
    run_partitions(database, engine, inputs, max_in_flight=5)
    assert len(engine.asked) == 30
    assert engine.most_in_flight == 5


def test_a_slow_record_holds_one_place_and_nobody_else_up(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(20)))
    engine = ScriptedEngine({"text of r0000": Hang()})
    engine.on_request = lambda text: engine.release() if text == "text of r0019" else None
    run_partitions(database, engine, inputs, max_in_flight=2)
    assert set(load_statuses(database).values()) == {"ok"}


def test_a_record_that_waits_for_its_backoff_holds_no_place(database: Database, tmp_path: Path) -> None:
    passed_s = 0.0
    task = make_task(tmp_path)
    slow = type(task)(**{**vars_of(task), "retry": RetryPolicy(base_s=60, cap_s=60)})
    engine = ScriptedEngine({"text of r0000": [pass_later(), GOOD]})

    def let_it_end(text: str) -> None:
        nonlocal passed_s
        passed_s = 60.0 * (text == "text of r0005")

    engine.on_request = let_it_end
    inputs = make_inputs(slow, "b1", make_records(make_ids(6)))
    run_partitions(database, engine, inputs, max_in_flight=1, clock=lambda: time.monotonic() + passed_s)
    assert engine.asked == [f"text of r000{n}" for n in (0, 1, 2, 3, 4, 5, 0)]


def test_a_servers_retry_after_is_waited_for(database: Database, tmp_path: Path) -> None:
    limited = RequestFailed("rate_limited", "slow down", is_passing=True, retry_after_s=0.3)
    engine = ScriptedEngine({"text of 1": [limited, GOOD]})
    started = time.monotonic()
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert load_statuses(database) == {"1": "ok"}
    assert time.monotonic() - started >= 0.3


def vars_of(task: object) -> dict[str, object]:
    return {name: getattr(task, name) for name in task.__dataclass_fields__}  # type: ignore[attr-defined]


# Failures


def test_a_passing_failure_is_tried_three_times_and_every_try_is_kept(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine({"text of 1": [pass_later("timeout"), pass_later("server_error"), GOOD]})
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert [(t["attempt"], t["outcome"], t["error_kind"]) for t in load_tries(database)] == [
        (1, "error", "timeout"),
        (2, "error", "server_error"),
        (3, "ok", None),
    ]
    assert load_rows(database)["1"]["attempts"] == 3


@pytest.mark.parametrize("max_attempts", [1, 3, 5])
def test_a_failure_that_doesnt_pass_in_time_becomes_an_error(
    database: Database, tmp_path: Path, max_attempts: int
) -> None:
    engine = ScriptedEngine(default=pass_later("server_error"))
    task = make_task(tmp_path, max_attempts=max_attempts)
    run_partitions(database, engine, make_inputs(task, "b1", make_records(["1"])))
    assert len(engine.asked) == max_attempts
    row = load_rows(database)["1"]
    assert (row["status"], row["error_kind"], row["attempts"]) == ("error", "server_error", max_attempts)
    assert row["error"] == "server_error, for now"
    assert row["attempt_id"] == load_tries(database)[-1]["attempt_id"]


def test_a_failure_for_good_is_asked_once(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine(default=fail_for_good("bad_request"))
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert len(engine.asked) == 1
    assert load_statuses(database) == {"1": "error/bad_request"}


def test_a_passing_failure_that_turns_into_one_for_good_isnt_tried_again(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine({"text of 1": [pass_later(), fail_for_good(), GOOD]})
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert (len(engine.asked), load_statuses(database)) == (2, {"1": "error/context_length"})


@pytest.mark.parametrize("text", ["", "  \n\t", None])
def test_an_empty_record_is_an_error_that_costs_no_request(
    database: Database, tmp_path: Path, text: str | None
) -> None:
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records({"1": text})))
    assert (engine.opened, load_statuses(database)) == (0, {"1": "error/empty_input"})
    assert load_rows(database)["1"]["request_key"] is None


def test_a_record_that_cant_be_rendered_is_an_error_and_the_others_go_on(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path, prompts={"v1": "v1: {{ 100 // (text | int) }}"})
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b1", make_records({"1": "0", "2": "50"})))
    assert load_statuses(database) == {"1": "error/render", "2": "ok"}
    assert engine.asked == ["2"]
    assert "v1.md" in load_rows(database)["1"]["error"]


def test_a_required_field_that_is_blank_leaves_nothing_to_ask(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path, prompts={"v1": "v1: {{ title }} {{ text }}"}, required_fields=("text", "unused"))
    records = make_records({"1": "", "2": "words"})
    records = [type(r)(item_id=r.item_id, fields={**r.fields, "title": "a title"}) for r in records]
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", records))
    assert load_statuses(database) == {"1": "error/empty_input", "2": "ok"}


@pytest.mark.parametrize("text", ["a\x00b", "half \ud83d of a pair"])
def test_an_answer_that_no_database_keeps_doesnt_cost_its_neighbours(
    database: Database, tmp_path: Path, text: str
) -> None:
    # Kept as an escape and judged invalid, once: a poisoned group would be asked for again in every run.
    answer = GOOD.replace('"a"', f'"{text}"')
    engine = ScriptedEngine(
        {"text of r0003": answer, "text of r0005": RequestFailed("server_error", text, is_passing=0)}
    )
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(10)))
    run_partitions(database, engine, inputs)
    statuses = load_statuses(database)
    assert sum(s == "ok" for s in statuses.values()) == 8
    assert statuses["r0003"].startswith("invalid/")
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert engine.asked == []


# Retrying


RETRIED = {
    RetryMode.NONE: set(),
    RetryMode.ERRORS: {"r0003", "r0004"},
    RetryMode.FAILED: {"r0001", "r0002", "r0003", "r0004", "r0006", "r0007"},
    RetryMode.ALL: set(EXPECTED),
}


@pytest.mark.parametrize("mode", list(RetryMode))
def test_a_retry_asks_what_its_mode_names(database: Database, tmp_path: Path, mode: RetryMode) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(8)))
    run_partitions(database, ScriptedEngine(MIXED), inputs)
    engine = ScriptedEngine()
    (outcome,) = run_partitions(database, engine, inputs, retry=mode)
    assert {t.removeprefix("text of ") for t in engine.asked} == RETRIED[mode]
    assert len(engine.asked) == len(RETRIED[mode])
    statuses = load_statuses(database)
    assert {i for i, s in statuses.items() if s == "ok"} == RETRIED[mode] | {"r0000", "r0005"}
    assert outcome.tally.already_done == 8 - len(RETRIED[mode])


def test_a_retry_goes_on_counting_attempts(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1"]))
    run_partitions(database, ScriptedEngine(default=pass_later()), inputs)
    run_partitions(database, ScriptedEngine(), inputs, retry=RetryMode.ERRORS)
    assert load_rows(database)["1"]["attempts"] == 4
    assert [t["attempt"] for t in load_tries(database)] == [1, 2, 3, 4]


def test_asking_all_again_reuses_nothing_but_still_asks_equal_requests_once(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records({"1": "same", "2": "same", "3": "other"}))
    run_partitions(database, ScriptedEngine(), inputs)
    engine = ScriptedEngine(default='{"label":"b","score":2}')
    run_partitions(database, engine, inputs, retry=RetryMode.ALL)
    assert sorted(engine.asked) == ["other", "same"]
    assert {r["payload"]["label"] for r in load_rows(database).values()} == {"b"}


def test_asking_all_again_asks_equal_requests_once_in_the_whole_run(database: Database, tmp_path: Path) -> None:
    records = make_records({i: "same" if i in {"r0000", "r0039"} else f"text of {i}" for i in make_ids(40)})
    inputs = make_inputs(make_task(tmp_path), "b1", records, chunk=2)
    run_partitions(database, ScriptedEngine(), inputs)
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs, retry=RetryMode.ALL, max_in_flight=2)
    assert engine.asked.count("same") == 1


@pytest.mark.parametrize("worse", [BAD, fail_for_good(), pass_later()])
def test_an_ok_stays_ok_when_it_is_asked_again_and_the_new_answer_is_worse(
    database: Database, tmp_path: Path, worse: object
) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1"]))
    (first,) = run_partitions(database, ScriptedEngine(), inputs)
    (second,) = run_partitions(database, ScriptedEngine(default=worse), inputs, retry=RetryMode.ALL)
    assert load_statuses(database) == {"1": "ok"}
    assert first.state is not None
    assert second.state is not None
    assert second.state.counts["ok"] == 1
    assert second.state.content == first.state.content
    # And it stays so when the rules change, for its own answer is the one that is judged again.
    stricter = make_inputs(make_task(tmp_path, rules_version="2"), "b1", make_records(["1"]))
    run_partitions(database, ScriptedEngine(), stricter)
    assert load_statuses(database) == {"1": "ok"}


def test_a_retry_judges_again_before_it_asks_again(database: Database, tmp_path: Path) -> None:
    # Rules were loosened: what is acceptable now needs no request, although `failed` asks for the invalid ones.
    records = make_records(["1", "2"])
    strict = make_inputs(make_task(tmp_path, rules=[refuse_a]), "b1", records)
    run_partitions(database, ScriptedEngine({"text of 2": BAD}), strict)
    assert load_statuses(database) == {"1": "invalid/rule", "2": "invalid/schema"}
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", records), retry=RetryMode.FAILED)
    assert engine.asked == ["text of 2"]
    assert load_statuses(database) == {"1": "ok", "2": "ok"}


# Progress


def test_progress_tells_of_the_start_and_ends_with_everything_done(database: Database, tmp_path: Path) -> None:
    heard: list[Progress] = []
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(8)))
    runner = make_runner(database, ScriptedEngine(MIXED))
    runner._observer = heard.append
    list(run_in_thread(runner, [inputs]))
    assert [p.is_starting for p in heard].count(True) == 1
    assert (heard[-1].done, heard[-1].in_flight) == (8, 0)
    assert (heard[-1].tally.ok, heard[-1].tally.invalid, heard[-1].tally.error) == (2, 4, 2)
    assert [p.done for p in heard] == sorted(p.done for p in heard)


def test_busy_time_is_shared_among_the_requests_in_flight(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(10)))
    started = time.monotonic()
    run_partitions(database, ScriptedEngine(latency_s=0.05), inputs, max_in_flight=10)
    wall_s = time.monotonic() - started
    total = sum(t["engine_s"] for t in load_tries(database))
    assert 0.04 <= total <= wall_s


def test_backoff_is_drawn_from_the_policy(tmp_path: Path) -> None:
    policy = RetryPolicy(base_s=1, cap_s=3)
    waits = [policy.backoff_s(n, random.Random(7)) for n in (1, 2, 3, 9)]
    assert all(low <= w <= high for w, (low, high) in zip(waits, [(0.5, 1), (1, 2), (1.5, 3), (1.5, 3)], strict=True))


def test_a_death_before_doesnt_count_as_a_failed_attempt(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records, False)
    engine = ScriptedEngine({"text of 1": [pass_later(), pass_later(), GOOD]})
    run_partitions(database, engine, inputs)
    assert load_statuses(database) == {"1": "ok"}
