"""The planner: what is missing or stale, exactly, and why. Each change asks for its own partitions and no others."""

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from factories import (
    BAD,
    ScriptedEngine,
    Stage,
    load_rows,
    load_statuses,
    make_model,
    pass_later,
    refuse_a,
)

from batch_assets.core.asset_names import LLM_OUTPUTS, QUARANTINE
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import EngineDead, SourceError
from batch_assets.core.models import Sampling
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import load_versions
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.pipeline.plan import Plan, Selection
from batch_assets.pipeline.result_assets import RESULT_NAMES
from batch_assets.store.leases import LeaseBook
from batch_assets.store.tables import partitions as finished_partitions

THREE = ["1", "2", "3"]
TWO = ["4", "5"]
ALL = {"b1|v1--m1", "b1|v2--m1", "b2|v1--m1", "b2|v2--m1"}


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    """Yield a task's place: two files, five records, nothing done yet."""
    made = Stage(tmp_path, store_url)
    made.write("b1", THREE)
    made.write("b2", TWO)
    yield made
    made.platform.database.close()
    made.instance.dispose()


def make_two(stage: Stage, **fields: object) -> Task:
    """Return the task with two prompts and one model, unless `fields` say otherwise."""
    return stage.task(**{"prompts": ["v1", "v2"], **fields})


def tell(plan: Plan) -> dict[str, tuple[int, int, int, int]]:
    """Return missing, stale, retried and rejudged records by partition."""
    return {str(n.partition): (n.missing, n.stale, n.retried, n.rejudged) for n in plan.needs}


def tell_reasons(plan: Plan) -> set[tuple[str, ...]]:
    return {n.reasons for n in plan.needs}


def tell_done(plan: Plan) -> set[str]:
    return {str(p) for p in plan.done}


# From nothing to done


def test_what_was_never_run_is_missing_in_every_variant(stage: Stage) -> None:
    plan = stage.plan(make_two(stage))
    assert tell(plan) == {
        "b1|v1--m1": (3, 0, 0, 0), "b1|v2--m1": (3, 0, 0, 0), "b2|v1--m1": (2, 0, 0, 0), "b2|v2--m1": (2, 0, 0, 0),
    }  # fmt: skip
    assert tell_reasons(plan) == {("never finished",)}
    assert [ref.batch for ref in plan.unfrozen] == ["b1", "b2"]
    assert plan.undescribed == ("v1--m1", "v2--m1")
    assert (plan.to_ask, plan.done, plan.outdated, plan.is_empty) == (10, (), (), False)


def test_planning_changes_nothing(stage: Stage) -> None:
    task = make_two(stage)
    first, second = stage.plan(task), stage.plan(task)
    assert tell(first) == tell(second)
    assert load_rows(stage.platform.database) == {}


def test_after_a_run_there_is_nothing_to_do(stage: Stage) -> None:
    task = make_two(stage)
    assert len(stage.run(task).asked) == 10
    plan = stage.plan(task)
    assert (tell(plan), plan.is_empty, tell_done(plan)) == ({}, True, ALL)
    assert stage.run(task).opened == 0


def test_a_source_without_files_is_an_empty_plan(tmp_path: Path, store_url: str) -> None:
    stage = Stage(tmp_path, store_url)
    plan = stage.plan(make_two(stage))
    assert (plan.needs, plan.unfrozen, plan.done) == ((), (), ())
    assert plan.undescribed == ("v1--m1", "v2--m1")


def test_an_empty_file_is_a_batch_that_gets_done(stage: Stage) -> None:
    stage.write("b3", [])
    task = make_two(stage)
    stage.run(task)
    assert stage.plan(task).is_empty
    assert {"b3|v1--m1", "b3|v2--m1"} <= tell_done(stage.plan(task))


def test_a_run_that_was_stopped_leaves_only_the_rest_to_ask(stage: Stage) -> None:
    task = make_two(stage)
    with pytest.raises(EngineDead):
        stage.run(task, ScriptedEngine({"text of 4": EngineDead("gone")}, latency_s=0.001))
    plan = stage.plan(task)
    done = len(load_rows(stage.platform.database, "v1")) + len(load_rows(stage.platform.database, "v2"))
    assert plan.to_ask == 10 - done
    assert 0 < done < 10
    stage.run(task)
    assert stage.plan(task).is_empty


# Prompts


def test_an_edited_prompt_makes_exactly_its_variants_partitions_stale(stage: Stage) -> None:
    stage.run(make_two(stage))
    edited = make_two(stage, prompts={"v1": "v1: {{ text }}", "v2": "Now: {{ text }}"})
    plan = stage.plan(edited)
    assert tell(plan) == {"b1|v2--m1": (0, 3, 0, 0), "b2|v2--m1": (0, 2, 0, 0)}
    assert tell_reasons(plan) == {("prompt changed",)}
    assert tell_done(plan) == {"b1|v1--m1", "b2|v1--m1"}
    assert (plan.undescribed, plan.unfrozen, plan.outdated) == (("v2--m1",), (), ())
    assert len(stage.run(edited).asked) == 5
    assert stage.plan(edited).is_empty


def test_a_prompt_that_is_reverted_before_a_run_is_done(stage: Stage) -> None:
    stage.run(make_two(stage))
    assert stage.plan(make_two(stage, prompts={"v1": "v1: {{ text }}", "v2": "Now: {{ text }}"})).to_ask == 5
    assert stage.plan(make_two(stage)).is_empty


def test_a_prompt_that_is_reverted_after_a_run_costs_no_request(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    versions = load_versions(stage.instance, task, LLM_OUTPUTS)
    stage.run(make_two(stage, prompts={"v1": "v1: {{ text }}", "v2": "Now: {{ text }}"}))
    task = make_two(stage)
    assert set(tell(stage.plan(task))) == {"b1|v2--m1", "b2|v2--m1"}
    engine = stage.run(task)
    assert (engine.asked, engine.opened) == ([], 0)
    assert stage.plan(task).is_empty
    assert load_versions(stage.instance, task, LLM_OUTPUTS) == versions


def test_words_for_people_in_a_prompt_file_may_change(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    path = next(iter(task.prompts.values())).path
    again = make_two(stage)
    path.write_text(path.read_text().replace("description: v1", "description: the first"))
    assert stage.plan(again).is_empty


def test_a_third_prompt_asks_for_its_partitions_alone(stage: Stage) -> None:
    stage.run(make_two(stage))
    plan = stage.plan(make_two(stage, prompts=["v1", "v2", "v3"]))
    assert tell(plan) == {"b1|v3--m1": (3, 0, 0, 0), "b2|v3--m1": (2, 0, 0, 0)}
    assert tell_done(plan) == ALL


def test_a_removed_prompt_needs_nothing_and_is_done_when_it_comes_back(stage: Stage) -> None:
    stage.run(make_two(stage))
    alone = make_two(stage, prompts=["v1"])
    stage.run(alone)
    assert (stage.plan(alone).is_empty, tell_done(stage.plan(alone))) == (True, {"b1|v1--m1", "b2|v1--m1"})
    assert len(load_rows(stage.platform.database, "v2")) == 5
    both = make_two(stage)
    sync_partitions(both, stage.source, stage.instance)
    assert stage.plan(both).is_empty


# Rules


def test_tightened_rules_are_judged_again_and_ask_nothing(stage: Stage) -> None:
    stage.run(make_two(stage))
    strict = make_two(stage, rules=[refuse_a])
    plan = stage.plan(strict)
    assert tell(plan) == {
        "b1|v1--m1": (0, 0, 0, 3), "b1|v2--m1": (0, 0, 0, 3), "b2|v1--m1": (0, 0, 0, 2), "b2|v2--m1": (0, 0, 0, 2),
    }  # fmt: skip
    assert tell_reasons(plan) == {("rules changed",)}
    assert plan.to_ask == 0
    assert stage.run(strict).opened == 0
    assert set(load_statuses(stage.platform.database).values()) == {"invalid/rule"}
    assert stage.plan(strict).is_empty


def test_loosened_rules_are_judged_again_and_ask_nothing(stage: Stage) -> None:
    stage.run(make_two(stage, rules=[refuse_a]))
    loose = make_two(stage)
    assert stage.plan(loose).to_ask == 0
    assert stage.run(loose).opened == 0
    assert set(load_statuses(stage.platform.database).values()) == {"ok"}


# Sources


def test_one_edited_text_is_one_stale_record_per_variant(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b1", {"1": "text of 1", "2": "edited", "3": "text of 3"})
    plan = stage.plan(task)
    assert tell(plan) == {"b1|v1--m1": (0, 1, 0, 0), "b1|v2--m1": (0, 1, 0, 0)}
    assert tell_reasons(plan) == {("source changed",)}
    assert [ref.batch for ref in plan.unfrozen] == ["b1"]
    assert stage.run(task).asked == ["edited", "edited"]
    assert stage.plan(task).is_empty


def test_a_new_record_is_one_missing_record_per_variant(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b2", [*TWO, "6"])
    assert tell(stage.plan(task)) == {"b2|v1--m1": (1, 0, 0, 0), "b2|v2--m1": (1, 0, 0, 0)}
    assert len(stage.run(task).asked) == 2


def test_a_record_that_left_its_file_asks_nothing_and_is_in_no_count(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b1", ["1", "3"])
    plan = stage.plan(task)
    assert (set(tell(plan)), plan.to_ask) == ({"b1|v1--m1", "b1|v2--m1"}, 0)
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty
    assert {i: r["batch"] for i, r in load_rows(stage.platform.database).items()} == {
        "1": "b1", "2": None, "3": "b1", "4": "b2", "5": "b2",
    }  # fmt: skip


def test_a_column_that_no_prompt_uses_costs_no_request(stage: Stage) -> None:
    task = make_two(stage)
    path = stage.write("b1", THREE)
    stage.run(task)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0] + ",seen", *(line + ",now" for line in lines[1:])]) + "\n")
    plan = stage.plan(task)
    assert (plan.to_ask, set(tell(plan))) == (0, {"b1|v1--m1", "b1|v2--m1"})
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_a_new_file_asks_for_its_partitions_alone(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b3", ["6"])
    plan = stage.plan(task)
    assert tell(plan) == {"b3|v1--m1": (1, 0, 0, 0), "b3|v2--m1": (1, 0, 0, 0)}
    assert ([ref.batch for ref in plan.unfrozen], tell_done(plan)) == (["b3"], ALL)


def test_a_file_that_was_only_touched_or_written_anew_needs_nothing(stage: Stage) -> None:
    task = make_two(stage)
    path = stage.write("b1", THREE)
    stage.run(task)
    os.utime(path, (1, 1))
    plan = stage.plan(task)
    assert (plan.is_empty, [ref.batch for ref in plan.touched]) == (True, ["b1"])
    stage.write("b1", THREE)
    assert stage.plan(task).is_empty


def test_records_in_another_order_are_the_same_records_asked_for_nothing(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b1", ["3", "1", "2"])
    assert stage.plan(task).to_ask == 0
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_a_batch_whose_file_was_deleted_stays_done(stage: Stage) -> None:
    task = make_two(stage)
    path = stage.write("b1", THREE)
    stage.run(task)
    path.unlink()
    plan = stage.plan(task)
    assert (plan.is_empty, tell_done(plan)) == (True, ALL)


def test_a_batch_whose_file_was_deleted_is_still_asked_of_a_new_prompt(stage: Stage) -> None:
    path = stage.write("b1", THREE)
    stage.run(make_two(stage))
    path.unlink()
    third = make_two(stage, prompts=["v1", "v2", "v3"])
    assert tell(stage.plan(third)) == {"b1|v3--m1": (3, 0, 0, 0), "b2|v3--m1": (2, 0, 0, 0)}
    assert len(stage.run(third).asked) == 5
    assert stage.plan(third).is_empty


def test_a_frame_that_was_lost_is_frozen_again_and_nothing_is_stale(stage: Stage) -> None:
    stage.write("b2", ["3", *TWO])  # 3 is b2's, so that b1 has a superseded record
    task = make_two(stage)
    stage.run(task)
    stage.run(task)
    for path in (stage.platform.settings.frames_dir / "t" / "source_records").glob("*.parquet"):
        path.unlink()
    plan = stage.plan(task)
    assert ([ref.batch for ref in plan.unfrozen], tell(plan)) == (["b1", "b2"], {})
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_a_file_that_cant_be_read_is_an_error_that_names_it(stage: Stage) -> None:
    path = stage.write("b1", THREE)
    path.write_text("item_id,text\n1,one\n1,doubled\n")
    with pytest.raises(SourceError, match=r"b1\.csv"):
        stage.plan(make_two(stage))


# Ids that come more than once


def test_an_id_that_comes_again_in_a_later_file_is_asked_there_and_missed_nowhere(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.write("b3", {"2": "newer text", "6": "text of 6"})
    stage.run(task)
    plan = stage.plan(task)
    assert plan.to_ask == 0
    assert set(tell(plan)) <= {"b1|v1--m1", "b1|v2--m1"}
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty
    assert {i: r["batch"] for i, r in load_rows(stage.platform.database).items()} == {
        "1": "b1", "2": "b3", "3": "b1", "4": "b2", "5": "b2", "6": "b3",
    }  # fmt: skip


def test_an_id_that_leaves_the_later_file_is_asked_with_its_earlier_text_again(stage: Stage) -> None:
    task = make_two(stage)
    stage.write("b2", {"2": "newer text", "4": "text of 4"})
    stage.run(task)
    assert stage.run(task).opened == 0
    stage.write("b2", {"4": "text of 4"})
    stage.run(task)
    engine = stage.run(task)
    assert stage.plan(task).is_empty
    rows = load_rows(stage.platform.database)
    assert rows["2"]["batch"] == "b1"
    assert engine.opened <= 1
    assert {i: r["status"] for i, r in rows.items()} == {"1": "ok", "2": "ok", "3": "ok", "4": "ok"}


# Models


def test_what_cant_change_an_answer_may_change(stage: Stage) -> None:
    stage.run(make_two(stage))
    changes = {
        "price_per_gpu_hour": 2.5,
        "max_in_flight": 3,
        "timeout_s": 5,
        "description": "another",
        "op_tags": {"nvidia.com/gpu": "1"},
    }
    for name, value in changes.items():
        assert stage.plan(make_two(stage, models=[make_model(**{name: value})])).is_empty, name


def test_a_changed_model_is_asked_everything_and_no_other_is(stage: Stage) -> None:
    other = make_model("m2", weights="of m2")
    stage.run(make_two(stage, models=["m1", other]))
    changes: dict[str, tuple[object, str]] = {
        "engine_args": ({"latency_s": 0.001}, "model changed"),
        "weights": ("others", "model changed"),
        "revision": ("2", "model changed"),
        "sampling": (Sampling(temperature=0.3), "sampling changed"),
    }
    for name, (value, reason) in changes.items():
        plan = stage.plan(make_two(stage, models=[make_model(**{name: value}), other]))
        assert tell(plan) == {
            "b1|v1--m1": (0, 3, 0, 0), "b1|v2--m1": (0, 3, 0, 0), "b2|v1--m1": (0, 2, 0, 0), "b2|v2--m1": (0, 2, 0, 0),
        }, name  # fmt: skip
        assert tell_reasons(plan) == {(reason,)}
        assert len(tell_done(plan)) == 4


def test_all_that_changed_is_named(stage: Stage) -> None:
    stage.run(make_two(stage))
    stage.write("b1", {"1": "edited", "2": "text of 2", "3": "text of 3"})
    changed = make_two(stage, prompts={"v1": "E: {{ text }}", "v2": "v2: {{ text }}"}, rules_version="2")
    reasons = {str(n.partition): n.reasons for n in stage.plan(changed).needs}
    assert reasons == {
        "b1|v1--m1": ("source changed", "prompt changed", "rules changed"),
        "b1|v2--m1": ("source changed", "rules changed"),
        "b2|v1--m1": ("prompt changed", "rules changed"),
        "b2|v2--m1": ("rules changed",),
    }


# Retrying, leases, selections


def test_a_retry_plans_what_its_mode_names(stage: Stage) -> None:
    task = make_two(stage, prompts=["v1"])
    stage.run(task, ScriptedEngine({"text of 1": pass_later(), "text of 2": BAD, "text of 4": BAD}))
    expected: dict[RetryMode, dict[str, tuple[int, int, int, int]]] = {
        RetryMode.NONE: {},
        RetryMode.ERRORS: {"b1|v1--m1": (0, 0, 1, 0)},
        RetryMode.FAILED: {"b1|v1--m1": (0, 0, 2, 0), "b2|v1--m1": (0, 0, 1, 0)},
        RetryMode.ALL: {"b1|v1--m1": (0, 0, 3, 0), "b2|v1--m1": (0, 0, 2, 0)},
    }
    for mode, counts in expected.items():
        plan = stage.plan(task, retry=mode)
        assert tell(plan) == counts
        assert tell_reasons(plan) == {(f"retry of {n[2]}",) for n in counts.values()}
    assert sorted(stage.run(task, retry=RetryMode.FAILED).asked) == ["text of 1", "text of 2", "text of 4"]
    assert stage.plan(task).is_empty
    assert tell(stage.plan(task, retry=RetryMode.FAILED)) == {}


def test_a_retry_plans_nothing_for_records_that_are_empty(stage: Stage) -> None:
    stage.write("b1", {"1": "", "2": "two"})
    stage.write("b2", {"4": "", "5": "five"})
    task = make_two(stage, prompts=["v1"])
    stage.run(task, ScriptedEngine({"five": pass_later()}))
    assert load_statuses(stage.platform.database) == {
        "1": "error/empty_input", "2": "ok", "4": "error/empty_input", "5": "error/timeout",
    }  # fmt: skip
    for mode in (RetryMode.ERRORS, RetryMode.FAILED):
        for is_counting in (True, False):
            plan = stage.plan(task, retry=mode, is_counting=is_counting)
            assert [(str(n.partition), n.reasons) for n in plan.needs] == [("b2|v1--m1", ("retry of 1",))]
            assert tell_done(plan) == {"b1|v1--m1"}
    assert stage.run(task, retry=RetryMode.ERRORS).asked == ["five"]
    assert stage.plan(task, retry=RetryMode.FAILED, is_counting=False).is_empty
    assert stage.run(task, retry=RetryMode.FAILED).opened == 0


def test_a_retry_plans_nothing_of_a_models_own_for_rows_made_as_a_fallback(stage: Stage) -> None:
    task = make_two(stage, prompts=["v1"], fallback=make_model("big"), max_attempts=1)
    stage.write("b1", {"1": "", "2": "two"})
    stage.run(task, ScriptedEngine({"two": BAD}), fallback=ScriptedEngine({"two": pass_later()}))
    assert load_statuses(stage.platform.database, model_id="big") == {"2": "error/timeout"}
    for is_counting in (True, False):
        plan = stage.plan(task, retry=RetryMode.ERRORS, fallback_retry=RetryMode.NONE, is_counting=is_counting)
        assert (plan.needs, plan.fallbacks) == ((), ())
        plan = stage.plan(task, retry=RetryMode.NONE, fallback_retry=RetryMode.ERRORS, is_counting=is_counting)
        assert (plan.needs, [str(p) for p in plan.fallbacks]) == ((), ["b1|v1--m1"])
    stage.run(task, fallback=ScriptedEngine(), retry=RetryMode.ERRORS)
    assert load_statuses(stage.platform.database, model_id="big") == {"2": "ok"}
    plan = stage.plan(task, retry=RetryMode.ERRORS, is_counting=False)
    assert (plan.needs, plan.fallbacks) == ((), ()), "the empty record is nothing that a fallback could be asked"


def test_a_partition_that_another_run_works_on_is_marked(stage: Stage) -> None:
    task = make_two(stage)
    LeaseBook(stage.platform.database, "other").acquire("t", "b1", "v1--m1")
    plan = stage.plan(task)
    assert {str(n.partition): n.leased_by for n in plan.needs} == {
        "b1|v1--m1": "other", "b1|v2--m1": None, "b2|v1--m1": None, "b2|v2--m1": None,
    }  # fmt: skip
    assert tell(plan)["b1|v1--m1"] == (3, 0, 0, 0)
    assert len(stage.run(task).asked) == 7
    assert set(tell(stage.plan(task))) == {"b1|v1--m1"}


@pytest.mark.parametrize(
    ("selection", "partitions"),
    [
        (Selection.of(batch="b1"), {"b1|v1--m1", "b1|v2--m1"}),
        (Selection.of(variant="v2--m1"), {"b1|v2--m1", "b2|v2--m1"}),
        (Selection.of(batch="b2", variant="v1--m1"), {"b2|v1--m1"}),
        (Selection.of(batch="unheard of"), set()),
    ],
)
def test_a_selection_is_all_that_is_planned(stage: Stage, selection: Selection, partitions: set[str]) -> None:
    plan = stage.plan(make_two(stage), selection=selection)
    assert set(tell(plan)) == partitions
    assert [r.batch for r in plan.unfrozen] == [b for b in ("b1", "b2") if selection.has_batch(b)]


def test_a_run_of_a_selection_does_nothing_else(stage: Stage) -> None:
    task = make_two(stage)
    assert len(stage.run(task, batch="b1", variant="v1--m1").asked) == 3
    assert tell_done(stage.plan(task)) == {"b1|v1--m1"}


def test_tasks_with_the_same_batches_and_prompts_dont_mix(stage: Stage) -> None:
    stage.run(make_two(stage))
    other = make_two(stage, name="t2")
    assert stage.plan(other).to_ask == 10
    engine = stage.run(other)
    assert engine.asked == []  # equal questions of another task; the answers are there
    assert stage.plan(other).is_empty
    assert stage.plan(make_two(stage)).is_empty


# Dagster's shadow


def test_what_dagster_wasnt_told_is_stamped_again_without_a_request(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.report(task, LLM_OUTPUTS, "b1|v1--m1", "of another version")
    plan = stage.plan(task)
    assert tell(plan) == {"b1|v1--m1": (0, 0, 0, 0)}
    assert tell_reasons(plan) == {("finished, but not recorded in Dagster",)}
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_a_new_instance_is_told_everything_without_a_request(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    stage.instance = dg.DagsterInstance.ephemeral()
    plan = stage.plan(task)
    assert (set(tell(plan)), plan.to_ask) == (ALL, 0)
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_where_dagster_says_done_and_the_store_doesnt_the_store_is_right(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    with stage.platform.database.write() as connection:
        connection.execute(sa.delete(finished_partitions).where(finished_partitions.c.batch == "b1"))
    plan = stage.plan(task)
    assert (set(tell(plan)), plan.to_ask) == ({"b1|v1--m1", "b1|v2--m1"}, 0)
    assert stage.run(task).opened == 0
    assert stage.plan(task).is_empty


def test_results_of_another_version_are_outdated_and_nothing_is_asked(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    for asset in RESULT_NAMES:
        stage.report(task, asset, "b2|v2--m1", "of another version")
        plan = stage.plan(task)
        assert (plan.needs, plan.outdated, plan.is_empty) == ((), (PartitionKey("b2", "v2--m1"),), False)
        assert stage.run(task).opened == 0
        assert stage.plan(task).is_empty


def test_results_follow_an_output_that_was_asked_again(stage: Stage) -> None:
    task = make_two(stage)
    stage.run(task)
    engine = ScriptedEngine(default='{"label":"b","score":2}')
    stage.run(task, engine, retry=RetryMode.ALL)
    versions = [load_versions(stage.instance, task, name) for name in (LLM_OUTPUTS, QUARANTINE)]
    assert versions[0] == versions[1]
    assert stage.plan(task).is_empty
