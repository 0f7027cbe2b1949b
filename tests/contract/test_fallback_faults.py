"""A fallback under faults: shared by two models, renamed, ruled anew, stopped, or worked on twice."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from factories import (
    BAD,
    ScriptedEngine,
    Stage,
    fail_for_good,
    load_rows,
    load_statuses,
    load_tries,
    make_ids,
    make_model,
    refuse_a,
)

from batch_assets.core.acceptance import Verdict
from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.attempts import ErrorKind, Ladder, Status
from batch_assets.core.errors import NotReadyError
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Thresholds
from batch_assets.pipeline.partition_inputs import build_fallback_inputs, build_inputs
from batch_assets.pipeline.validated_frame import write_validated_frame
from batch_assets.run.result_rows import build_row
from batch_assets.run.writer import Writer
from batch_assets.store.leases import LeaseBook
from batch_assets.store.tables import results

OWN = PartitionKey("b1", "v1--m1")


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Stage:
    """Return a task with one batch of four records."""
    found = Stage(tmp_path, store_url)
    found.write("b1", make_ids(4))
    return found


def spoil(*items: str, kind: Any = BAD) -> ScriptedEngine:
    """Return an engine that fails at some records, always."""
    return ScriptedEngine({f"text of {i}": kind for i in items})


def load_models(stage: Stage, variant: str = "v1--m1") -> list[str]:
    """Return the model of each validated result of a partition."""
    frame = stage.platform.frames.read("t", VALIDATED_RESULTS, "b1", variant)
    assert frame is not None
    return frame["model_id"].to_list()


def test_what_two_models_quarantine_is_asked_of_their_fallback_once_and_answers_for_both(stage: Stage) -> None:
    task, big = stage.task(models=["m1", "m2"], fallback=make_model("big")), ScriptedEngine()
    stage.run(task, spoil("r0001"), fallback=big)
    assert big.asked == ["text of r0001"]
    assert load_models(stage, "v1--m1") == ["m1", "big", "m1", "m1"]
    assert load_models(stage, "v1--m2") == ["m2", "big", "m2", "m2"]
    assert stage.plan(task).is_empty


@pytest.mark.parametrize("steps", [0, 1])
def test_what_the_fallback_of_two_models_can_not_answer_is_asked_for_one_of_them_alone(
    stage: Stage, steps: int
) -> None:
    task = stage.task(models=["m1", "m2"], fallback=make_model("big"), ladder=Ladder(steps=steps, feeds_back=False))
    big = spoil("r0001", "r0002")
    stage.run(task, spoil("r0001", "r0002"), fallback=big)
    assert sorted(big.asked) == sorted(["text of r0001", "text of r0002"] * (1 + steps))
    numbers = [t["attempt"] for t in load_tries(stage.platform.database, "r0001") if t["model_id"] == "big"]
    assert numbers == list(range(1, steps + 2))
    assert stage.plan(task).is_empty


def test_a_fallback_that_gets_another_name_is_another_model(stage: Stage) -> None:
    stage.run(stage.task(fallback=make_model("big")), spoil("r0001"), fallback=ScriptedEngine())
    renamed, bigger = stage.task(fallback=make_model("bigger")), ScriptedEngine()
    assert stage.plan(renamed).fallbacks == (OWN,)
    stage.run(renamed, fallback=bigger)
    assert bigger.asked == ["text of r0001"]
    assert load_models(stage)[1] == "bigger"
    assert stage.plan(renamed).is_empty


def test_results_of_a_task_whose_fallback_is_removed_are_made_without_it(stage: Stage) -> None:
    stage.run(stage.task(fallback=make_model("big")), spoil("r0001"), fallback=ScriptedEngine())
    plain = stage.task()
    assert stage.plan(plain).outdated == (OWN,)
    stage.run(plain)
    assert load_models(stage) == ["m1"] * 3
    assert stage.plan(plain).is_empty


def test_a_fallback_of_another_identity_is_asked_again_and_results_follow(stage: Stage) -> None:
    stage.run(stage.task(fallback=make_model("big")), spoil("r0001"), fallback=spoil("r0001"))
    assert len(load_models(stage)) == 3
    warmer = stage.task(fallback=make_model("big", sampling={"temperature": 0.5}))
    big = ScriptedEngine()
    stage.run(warmer, fallback=big)
    assert big.asked == ["text of r0001"]
    assert load_models(stage)[1] == "big"
    assert stage.plan(warmer).is_empty


def test_a_rule_that_refuses_the_fallbacks_answers_holds_no_results_back_until_it_is_asked(stage: Stage) -> None:
    stage.write("b1", {"1": "one", "2": "two"})
    other = '{"label":"b","score":1}'
    own = ScriptedEngine({"one": BAD, "two": other})
    stage.run(stage.task(fallback=make_model("big")), own, fallback=ScriptedEngine())
    strict = stage.task(fallback=make_model("big"), rules=[refuse_a])
    stage.run(strict)  # judged again; the fallback's answers are not yet
    inputs = build_inputs(strict, replace(stage.platform, _specs={}), OWN)
    assert inputs is not None
    with write_validated_frame(replace(stage.platform, _specs={}), inputs) as made:
        assert made.disagreeing == []
    assert load_models(stage) == ["m1"]


def test_many_records_that_the_fallback_can_not_answer_either_do_not_stop_it(stage: Stage) -> None:
    ids = make_ids(120)
    stage.write("b1", ids)
    limits = Thresholds(max_invalid_share=1, max_error_share=0.02, min_records=20)
    task = stage.task(fallback=make_model("big"), thresholds=limits)
    stage.run(task, spoil(*ids), fallback=spoil(*ids[::2], kind=fail_for_good()))
    statuses = load_statuses(stage.platform.database, model_id="big")
    assert len(statuses) == 120
    assert stage.plan(task).is_empty


def test_rows_of_one_fallback_stand_though_another_of_the_batch_lost_its_lease(stage: Stage) -> None:
    task = stage.task(prompts=["v1", "v2"], fallback=make_model("big"))
    stage.run(task, spoil("r0001"))
    database = stage.platform.database
    all_inputs = [build_fallback_inputs(task, stage.platform, PartitionKey("b1", v)) for v in ("v1--m1", "v2--m1")]
    first, second = (w for w in all_inputs if w is not None)
    writer = Writer(database, "mine")
    for inputs in (first, second):
        writer.leases.acquire("t", "b1", inputs.owner.key)
    LeaseBook(database, "mine").release("t", "b1", first.owner.key)
    LeaseBook(database, "other").acquire("t", "b1", first.owner.key)
    for inputs in (first, second):
        verdict = Verdict(status=Status.INVALID, error_kind=ErrorKind.SCHEMA, error="no")
        row = build_row(
            inputs, "r0001", "0" * 24, verdict, run_id="mine", request_key=None, attempts=1, attempt_id=None
        )
        writer.add(row)
    asyncio.run(writer.commit([]))
    writer.close()
    assert load_rows(database, "v1", "big") == {}
    assert list(load_rows(database, "v2", "big")) == ["r0001"]


def test_a_fallback_whose_row_has_vanished_meanwhile_counts_not_as_finished(stage: Stage) -> None:
    task = stage.task(fallback=make_model("big", max_in_flight=1))
    big = ScriptedEngine()

    def lose_a_row(text: str) -> None:
        if text == "text of r0002":
            with stage.platform.database.write() as connection:
                connection.execute(sa.delete(results).where(results.c.item_id == "r0001", results.c.model_id == "big"))

    big.on_request = lose_a_row
    with pytest.raises(NotReadyError, match=r"^b1\|v1--m1: 1 quarantined record has no row of big: r0001"):
        stage.run(task, spoil("r0001", "r0002"), fallback=big)
    assert stage.plan(task).fallbacks == (OWN,)
    again = ScriptedEngine()
    stage.run(task, fallback=again)
    assert again.asked == []
    assert load_models(stage) == ["m1", "big", "big", "m1"]


def test_an_answer_of_the_fallback_goes_with_its_record_into_a_later_batch(stage: Stage) -> None:
    task, big = stage.task(fallback=make_model("big")), ScriptedEngine()
    stage.run(task, spoil("r0001"), fallback=big)
    stage.write("b2", ["r0001"])
    for _ in range(2):  # what the new batch takes over makes the earlier one stale
        stage.run(task, spoil("r0001"), fallback=big)
    assert big.asked == ["text of r0001"]
    assert load_models(stage) == ["m1"] * 3
    later = stage.platform.frames.read("t", VALIDATED_RESULTS, "b2", "v1--m1")
    assert later is not None
    assert (later["model_id"].to_list(), later["batch"].to_list()) == (["big"], ["b2"])
    assert stage.plan(task).is_empty


def test_an_answer_of_the_fallback_to_an_earlier_text_is_nobodys(stage: Stage) -> None:
    task = stage.task(fallback=make_model("big"))
    stage.run(task, spoil("r0001"), fallback=ScriptedEngine())
    stage.write("b1", {"r0000": "text of r0000", "r0001": "new"})
    big = ScriptedEngine({"new": BAD})
    stage.run(task, ScriptedEngine({"new": BAD}), fallback=big)
    assert big.asked == ["new"]
    assert load_models(stage) == ["m1"]
    assert stage.plan(task).is_empty


def test_an_answer_of_the_fallback_to_a_record_that_is_gone_is_in_no_results(stage: Stage) -> None:
    task, big = stage.task(fallback=make_model("big")), ScriptedEngine()
    stage.run(task, spoil("r0001"), fallback=big)
    stage.write("b1", ["r0000"])
    stage.run(task, fallback=big)
    assert load_models(stage) == ["m1"]
    assert len(big.asked) == 1
    assert stage.plan(task).is_empty
