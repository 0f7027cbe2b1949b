"""A run whose errors pass their limit stops by itself, and a rerun goes on with the rest."""

from pathlib import Path
from typing import Any

import pytest
from factories import (
    BAD,
    Hang,
    ScriptedEngine,
    fail_for_good,
    load_open_claims,
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

from batch_assets.core.errors import TooManyErrors
from batch_assets.core.tasks import Task, Thresholds
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.leases import load_live
from batch_assets.store.partitions import load_partitions


def make_strict(folder: Path, **fields: Any) -> Task:
    limits = {"max_error_share": 0.1, "min_records": 10, **fields.pop("limits", {})}
    return make_task(folder, thresholds=Thresholds.model_validate(limits), **fields)


def find_finished(database: Database) -> set[str]:
    with database.read() as connection:
        return {batch for batch, _ in load_partitions(connection, "t")}


def test_a_run_that_only_fails_stops_early_and_keeps_what_it_has(database: Database, tmp_path: Path) -> None:
    task = make_strict(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records(make_ids(40, f"b{n}r"))) for n in (1, 2)]
    engine = ScriptedEngine(default=fail_for_good("bad_request"))
    with pytest.raises(TooManyErrors, match=r"^t v1--m1: \d+ of the \d+ records .* bad_request, for good"):
        run_partitions(database, engine, *all_inputs, max_in_flight=4)
    assert 10 <= len(engine.asked) <= 24
    assert engine.closed == 1
    statuses = load_statuses(database)
    assert set(statuses.values()) == {"error/bad_request"}
    assert 10 <= len(statuses) <= len(engine.asked), "the rest is pending: it has no row"
    assert load_open_claims(database) == []
    assert find_finished(database) == set()
    with database.read() as connection:
        assert load_live(connection, "t") == {}
    mended = ScriptedEngine()
    run_partitions(database, mended, *all_inputs)
    assert len(mended.asked) == 80 - len(statuses)
    assert find_finished(database) == {"b1", "b2"}


def test_what_is_in_flight_is_given_back_and_what_has_arrived_is_kept(database: Database, tmp_path: Path) -> None:
    ids = make_ids(60)
    script = {f"text of {i}": Hang() for i in ids[:2]}
    inputs = make_inputs(make_strict(tmp_path), "b1", make_records(ids))
    with pytest.raises(TooManyErrors):
        run_partitions(database, ScriptedEngine(script, default=fail_for_good()), inputs, max_in_flight=4)
    outcomes = {t["item_id"]: t["outcome"] for t in load_tries(database)}
    assert (outcomes["r0000"], outcomes["r0001"]) == ("released", "released")
    assert set(load_statuses(database)) == {i for i, outcome in outcomes.items() if outcome == "error"}


def test_partitions_that_were_done_are_finished_and_handed_out(database: Database, tmp_path: Path) -> None:
    task = make_strict(tmp_path)
    good = make_inputs(task, "b1", make_records(make_ids(4, "good")))
    bad = make_inputs(task, "b2", make_records({i: f"bad {i}" for i in make_ids(60)}))
    script = {f"bad {i}": fail_for_good() for i in make_ids(60)}
    outcomes: list[str] = []
    with pytest.raises(TooManyErrors):
        for outcome in run_in_thread(make_runner(database, ScriptedEngine(script), max_in_flight=4), [good, bad]):
            outcomes.append(outcome.inputs.batch)
    assert outcomes == ["b1"]
    assert find_finished(database) == {"b1"}


def test_a_partition_whose_last_answer_comes_with_the_errors_is_finished_too(
    database: Database, tmp_path: Path
) -> None:
    task = make_strict(tmp_path)
    good = make_inputs(task, "b1", make_records(make_ids(4, "good")))
    bad = make_inputs(task, "b2", make_records({i: f"bad {i}" for i in make_ids(120)}))
    script = {f"bad {i}": fail_for_good() for i in make_ids(120)}
    with pytest.raises(TooManyErrors):
        run_partitions(database, ScriptedEngine(script), good, bad, max_in_flight=32)  # all of them arrive at once
    assert find_finished(database) == {"b1"}


def test_with_nothing_left_to_ask_a_partition_is_finished_and_its_check_tells(
    database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_strict(tmp_path), "b1", make_records(make_ids(30)))
    run_partitions(database, ScriptedEngine(default=fail_for_good()), inputs, max_in_flight=64)
    assert len(load_statuses(database)) == 30
    assert find_finished(database) == {"b1"}


@pytest.mark.parametrize("limits", [{"stop_early": False}, {"max_error_share": 1.0}, {"min_records": 41}])
def test_it_is_the_tasks_choice(database: Database, tmp_path: Path, limits: dict[str, Any]) -> None:
    inputs = make_inputs(make_strict(tmp_path, limits=limits), "b1", make_records(make_ids(40)))
    run_partitions(database, ScriptedEngine(default=fail_for_good()), inputs, max_in_flight=4)
    assert find_finished(database) == {"b1"}


def test_empty_records_of_one_batch_stop_no_other(database: Database, tmp_path: Path) -> None:
    task = make_strict(tmp_path)
    empty = make_inputs(task, "b1", make_records(dict.fromkeys(make_ids(60, "e"), "")))
    good = make_inputs(task, "b2", make_records(make_ids(40)))
    engine = ScriptedEngine(latency_s=0.001)
    run_partitions(database, engine, empty, good, max_in_flight=4)
    assert find_finished(database) == {"b1", "b2"}
    assert len(engine.asked) == 40


def test_one_bad_text_that_comes_often_is_one_failure(database: Database, tmp_path: Path) -> None:
    texts = dict.fromkeys(make_ids(40, "same"), "too long") | {i: f"text of {i}" for i in make_ids(40)}
    inputs = make_inputs(make_strict(tmp_path), "b1", make_records(texts))
    engine = ScriptedEngine({"too long": fail_for_good()}, latency_s=0.001)
    run_partitions(database, engine, inputs, max_in_flight=4)
    assert len(engine.asked) == 41
    assert sum(s == "error/context_length" for s in load_statuses(database).values()) == 40


def test_invalid_answers_and_failures_that_pass_stop_nothing(database: Database, tmp_path: Path) -> None:
    ids = make_ids(40)
    script = {f"text of {i}": [pass_later(), BAD] for i in ids}
    inputs = make_inputs(make_strict(tmp_path), "b1", make_records(ids))
    run_partitions(database, ScriptedEngine(script), inputs, max_in_flight=4)
    assert set(load_statuses(database).values()) == {"invalid/schema"}
