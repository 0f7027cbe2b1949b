"""The fallback model is asked for what is quarantined, and for nothing else. On SQLite and PostgreSQL."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from factories import (
    BAD,
    GOOD,
    ScriptedEngine,
    Stage,
    fail_for_good,
    load_rows,
    load_statuses,
    load_tries,
    make_completion,
    make_ids,
    make_model,
    pass_later,
    refuse_a,
)

from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.attempts import Ladder, RetryMode
from batch_assets.core.completions import Usage
from batch_assets.core.errors import EngineDead, NotReadyError
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_fallback import ask_fallback
from batch_assets.store.leases import LeaseBook
from batch_assets.store.overview import load_reports, load_status

OWN = PartitionKey("b1", "v1--m1")


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Stage:
    """Return a task with one batch of four records."""
    found = Stage(tmp_path, store_url)
    found.write("b1", make_ids(4))
    return found


def make_fallback_task(stage: Stage, **fields: Any) -> Task:
    """Return the task, with a fallback."""
    return stage.task(**{"fallback": make_model("big"), **fields})


def spoil(*items: str, kind: Any = BAD) -> ScriptedEngine:
    """Return an engine that fails at some records, always."""
    return ScriptedEngine({f"text of {i}": kind for i in items})


def load_frame(stage: Stage) -> pl.DataFrame:
    """Return the validated results of the partition."""
    frame = stage.platform.frames.read("t", VALIDATED_RESULTS, "b1", "v1--m1")
    assert frame is not None
    return frame


def test_only_quarantined_records_are_asked_of_the_fallback_after_the_first_engine_has_closed(stage: Stage) -> None:
    task, big = make_fallback_task(stage), ScriptedEngine()
    own = spoil("r0001", "r0003")
    big.on_request = lambda _text: None if own.closed else pytest.fail("the first engine is still open")
    stage.run(task, own, fallback=big)
    assert sorted(big.asked) == ["text of r0001", "text of r0003"]
    assert (big.opened, big.closed) == (1, 1)


def test_its_rows_stand_under_its_own_model_and_are_marked(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001"), fallback=ScriptedEngine())
    rows = load_rows(stage.platform.database, model_id="big")
    assert [(r["item_id"], r["status"], r["is_fallback"]) for r in rows.values()] == [("r0001", "ok", True)]
    own = load_rows(stage.platform.database)
    assert own["r0001"]["status"] == "invalid"
    assert {r["is_fallback"] for r in own.values()} == {False}


def test_validated_results_hold_its_answers_under_its_model_id(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001"), fallback=ScriptedEngine())
    frame = load_frame(stage)
    assert frame["item_id"].to_list() == make_ids(4)
    assert frame["model_id"].to_list() == ["m1", "big", "m1", "m1"]
    assert frame["is_fallback"].to_list() == [False, True, False, False]


def test_shares_count_the_variants_own_rows_only(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001"), fallback=ScriptedEngine())
    with stage.platform.database.read() as connection:
        figures = load_reports(connection, "t")["b1", "v1--m1"]
    assert (figures["total"], figures["ok"], figures["invalid"], figures["fallback_ok"]) == (4, 3, 1, 1)
    assert figures["labels"]["label"] == {"a": 3}


def test_what_the_fallback_can_not_answer_stays_quarantined(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001", "r0002"), fallback=spoil("r0002"))
    assert load_frame(stage)["item_id"].to_list() == ["r0000", "r0001", "r0003"]
    assert load_statuses(stage.platform.database, model_id="big") == {"r0001": "ok", "r0002": "invalid/schema"}


def test_a_second_run_asks_neither(stage: Stage) -> None:
    task = make_fallback_task(stage)
    stage.run(task, spoil("r0001", "r0002"), fallback=spoil("r0002"))
    assert stage.plan(task).is_empty
    big = ScriptedEngine()
    own = stage.run(task, fallback=big)
    assert (own.asked, big.asked, own.opened, big.opened) == ([], [], 0, 0)


def test_a_partition_without_quarantine_opens_no_fallback_and_needs_nothing_more(stage: Stage) -> None:
    task, big = make_fallback_task(stage), ScriptedEngine()
    stage.run(task, fallback=big)
    assert big.opened == 0
    assert stage.plan(task).is_empty


def test_results_are_there_without_the_fallback_and_follow_once_it_was_asked(stage: Stage) -> None:
    task = make_fallback_task(stage)
    stage.run(task, spoil("r0001"))
    assert load_frame(stage).height == 3
    assert stage.plan(task).fallbacks == (OWN,)
    assert stage.plan(task).outdated == ()
    stage.run(task, fallback=ScriptedEngine())
    assert load_frame(stage).height == 4


def test_every_kind_of_failure_is_asked_but_what_can_not_be_asked(stage: Stage) -> None:
    stage.write("b1", {"1": "one", "2": "two", "3": "three", "4": "  ", "5": "five"})
    own = ScriptedEngine({"one": fail_for_good(), "two": pass_later(), "three": BAD})
    big = ScriptedEngine()
    stage.run(make_fallback_task(stage), own, fallback=big)
    assert sorted(big.asked) == ["one", "three", "two"]


def test_the_fallback_has_the_ladder_too(stage: Stage) -> None:
    task = make_fallback_task(stage, ladder=Ladder(steps=1, feeds_back=False))
    stage.run(task, spoil("r0001"), fallback=ScriptedEngine({"text of r0001": [BAD, GOOD]}))
    assert load_rows(stage.platform.database, model_id="big")["r0001"]["ladder_step"] == 1
    tries = load_tries(stage.platform.database, "r0001")
    assert [(t["model_id"], t["ladder_step"]) for t in tries] == [("m1", 0), ("m1", 1), ("big", 0), ("big", 1)]


def test_a_fallback_that_dies_is_planned_again_and_goes_on_where_it_stopped(stage: Stage) -> None:
    task = make_fallback_task(stage)
    dying = ScriptedEngine({"text of r0001": GOOD, "text of r0002": EngineDead("gone")}, latency_s=0.01)
    with pytest.raises(EngineDead):
        stage.run(task, spoil("r0001", "r0002"), fallback=dying)
    assert stage.plan(task).fallbacks == (OWN,)
    big = ScriptedEngine()
    stage.run(task, fallback=big)
    assert "text of r0002" in big.asked
    assert set(load_statuses(stage.platform.database, model_id="big").values()) == {"ok"}


def test_outputs_that_are_made_anew_are_followed_by_the_fallback(stage: Stage) -> None:
    task = make_fallback_task(stage)
    stage.run(task, spoil("r0001"), fallback=ScriptedEngine())
    big = ScriptedEngine()
    stage.run(task, spoil("r0001"), fallback=big, retry=RetryMode.FAILED)
    assert big.asked == []  # quarantined as before: what was asked stands
    stage.run(task, ScriptedEngine(), fallback=big, retry=RetryMode.FAILED)
    assert big.asked == []
    assert load_frame(stage)["model_id"].to_list() == ["m1"] * 4


def test_a_fallback_that_is_a_model_of_the_task_keeps_its_own_rows_and_asks_what_it_answered_once(
    stage: Stage,
) -> None:
    big = make_model("big")
    alone = make_fallback_task(stage, fallback=big)
    stage.run(alone, spoil("r0001"), fallback=ScriptedEngine())
    both = make_fallback_task(stage, models=["m1", big], fallback=big)
    engine = ScriptedEngine()
    stage.run(both, engine, fallback=engine)
    assert sorted(engine.asked) == ["text of r0000", "text of r0002", "text of r0003"]
    rows = load_rows(stage.platform.database, model_id="big")
    assert {i: r["is_fallback"] for i, r in rows.items()} == dict.fromkeys(make_ids(4), False)
    with stage.platform.database.read() as connection:
        status = {
            s.model_id: (s.ok, s.invalid, s.pending)
            for s in load_status(connection, "t", [("v1", "m1"), ("v1", "big")])
        }
    assert status == {"m1": (3, 1, 0), "big": (4, 0, 0)}
    assert load_frame(stage).height == 4


def test_an_own_row_of_the_fallback_model_never_becomes_a_marked_one(stage: Stage) -> None:
    big = make_model("big")
    both = make_fallback_task(stage, models=["m1", big], fallback=big)
    stage.run(both, spoil("r0001"), fallback=ScriptedEngine())  # r0001 is invalid of both
    assert {r["is_fallback"] for r in load_rows(stage.platform.database, model_id="big").values()} == {False}
    assert stage.plan(both).is_empty


def test_rows_made_for_another_variant_are_pending_for_the_models_own(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001"), fallback=ScriptedEngine())
    with stage.platform.database.read() as connection:
        (status,) = load_status(connection, "t", [("v1", "big")])
    assert (status.ok, status.pending) == (0, 4)


def test_a_rule_that_refuses_later_is_held_against_the_fallback_too(stage: Stage) -> None:
    stage.run(make_fallback_task(stage), spoil("r0001"), fallback=ScriptedEngine())
    strict = make_fallback_task(stage, rules=[refuse_a])
    big = ScriptedEngine()
    stage.run(strict, big, fallback=big)
    assert load_frame(stage).height == 0
    assert load_statuses(stage.platform.database, model_id="big")["r0001"] == "invalid/rule"


def test_a_partition_that_another_run_works_on_is_refused_at_the_end(stage: Stage) -> None:
    task = make_fallback_task(stage)
    stage.run(task, spoil("r0001"))
    LeaseBook(stage.platform.database, "other").acquire("t", "b1", "v1--m1")
    with pytest.raises(Exception, match="run other works on it"):
        list(ask_fallback(task, stage.platform, [OWN], run_id="mine", log=lambda _line: None))


def test_outputs_that_are_not_up_to_date_are_refused(stage: Stage) -> None:
    task = make_fallback_task(stage)
    with pytest.raises(NotReadyError, match="llm_outputs is not up to date"):
        list(ask_fallback(task, stage.platform, [OWN], run_id="mine", log=lambda _line: None))


def test_what_the_fallback_cost_is_told_with_its_partition(stage: Stage) -> None:
    task = make_fallback_task(stage, ladder=Ladder(steps=1, feeds_back=False))
    stage.run(task, spoil("r0001", "r0002"))
    big = ScriptedEngine({"text of r0001": [BAD, make_completion(usage=Usage())]})
    stage.use(big)
    (made,) = ask_fallback(task, stage.platform, [OWN], run_id="mine", log=lambda _line: None)
    assert {k: made.figures[k] for k in ("records", "sent", "ok", "attempts", "unknown_usage")} == {
        "records": 2, "sent": 3, "ok": 2, "attempts": 3, "unknown_usage": 1
    }  # fmt: skip
    assert (made.figures["prompt_tokens"], made.figures["completion_tokens"]) == (20, 10)
