"""Invalid answers go up a ladder, step by step, and end in one state. On SQLite and PostgreSQL."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import (
    BAD,
    GOOD,
    Hang,
    ScriptedEngine,
    fail_for_good,
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
)

from batch_assets.core.attempts import Ladder, RetryMode
from batch_assets.core.completions import Usage
from batch_assets.core.errors import EngineDead
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.run.sync_bridge import run_in_thread
from batch_assets.store.database import Database
from batch_assets.store.figures import load_figures


class LadderEngine(ScriptedEngine):
    """Takes its next step by the record's text, also where a refused answer was fed back."""

    def __init__(self, script: Any = None, **options: Any) -> None:
        super().__init__(script, **options)
        self.requests: list[Any] = []

    async def complete(self, request: Any) -> Any:
        """Remember the request; ask as if nothing had been fed back."""
        self.requests.append(request)
        return await super().complete(_without_feedback(request))


def _without_feedback(request: Any) -> Any:
    users = [n for n, m in enumerate(request.messages) if m.role == "user"]
    return replace(request, messages=request.messages[: users[0] + 1])


def make_one(tmp_path: Path, count: int = 1, **fields: Any) -> PartitionInputs:
    """Return the work on some records of a task with a ladder of two steps."""
    task = make_task(tmp_path, **{"ladder": Ladder(steps=2), **fields})
    return make_inputs(task, "b1", make_records(make_ids(count)))


def test_an_answer_that_is_accepted_at_a_step_is_ok_and_its_row_names_the_step(
    database: Database, tmp_path: Path
) -> None:
    inputs = make_one(tmp_path)
    engine = LadderEngine({"text of r0000": [BAD, GOOD]})
    (outcome,) = run_partitions(database, engine, inputs)
    row = load_rows(database)["r0000"]
    base, step = engine.requests
    assert (row["status"], row["ladder_step"], row["attempts"]) == ("ok", 1, 2)
    assert row["request_key"] == base.request_key != step.request_key
    assert row["attempt_id"] == load_tries(database)[1]["attempt_id"]
    assert (outcome.tally.sent, outcome.tally.ok, outcome.tally.invalid) == (2, 1, 0)


def test_every_step_is_an_attempt_with_its_own_key_and_parameters(database: Database, tmp_path: Path) -> None:
    run_partitions(database, LadderEngine(default=BAD), make_one(tmp_path))
    tries = load_tries(database)
    assert [t["ladder_step"] for t in tries] == [0, 1, 2]
    assert [t["attempt"] for t in tries] == [1, 2, 3]
    assert [t["outcome"] for t in tries] == ["invalid"] * 3
    assert len({t["request_key"] for t in tries}) == 3
    assert {t["base_key"] for t in tries} == {tries[0]["request_key"]}
    assert [t["parameters"] for t in tries] == [{}, {"temperature": 0.3, "seed": 1}, {"temperature": 0.6, "seed": 2}]


def test_a_record_that_is_refused_at_every_step_is_quarantined_with_the_last_refusal(
    database: Database, tmp_path: Path
) -> None:
    run_partitions(database, LadderEngine({"text of r0000": [BAD, BAD, "no JSON"]}), make_one(tmp_path))
    row = load_rows(database)["r0000"]
    assert (row["status"], row["error_kind"], row["ladder_step"], row["attempts"]) == ("invalid", "not_json", 2, 3)


def test_a_second_run_asks_nothing_of_what_is_quarantined(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path, 3)
    run_partitions(database, LadderEngine(default=BAD), inputs)
    engine = LadderEngine()
    (outcome,) = run_partitions(database, engine, inputs)
    assert (engine.asked, outcome.tally.already_done) == ([], 3)


def test_retrying_what_failed_begins_with_the_question_itself(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path)
    run_partitions(database, LadderEngine(default=BAD), inputs)
    engine = LadderEngine({"text of r0000": [BAD, GOOD]})
    run_partitions(database, engine, inputs, retry=RetryMode.FAILED)
    assert [r.step for r in engine.requests] == [0, 1]
    assert load_statuses(database) == {"r0000": "ok"}


def test_a_run_goes_on_at_the_step_at_which_an_earlier_one_was_stopped(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path)
    engine = LadderEngine({"text of r0000": [BAD, EngineDead("gone")]})
    with pytest.raises(EngineDead):
        run_partitions(database, engine, inputs)
    assert load_rows(database) == {}
    later = LadderEngine()
    run_partitions(database, later, inputs)
    assert [r.step for r in later.requests] == [1]
    assert later.requests[0].request_key == engine.requests[1].request_key
    row = load_rows(database)["r0000"]
    assert (row["status"], row["ladder_step"], row["attempts"]) == ("ok", 1, 3)


def test_a_prompt_that_comes_back_costs_no_step_again(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path / "one")
    run_partitions(database, LadderEngine(default=BAD), inputs)
    other = make_one(tmp_path / "two", prompts={"v1": "new: {{ text }}"})
    run_partitions(database, LadderEngine(), other)
    engine = LadderEngine()
    (outcome,) = run_partitions(database, engine, inputs)
    assert (engine.asked, outcome.tally.reused) == ([], 1)
    row = load_rows(database)["r0000"]
    assert (row["status"], row["ladder_step"]) == ("invalid", 2)


def test_a_passing_failure_at_a_step_is_tried_again_at_that_step(database: Database, tmp_path: Path) -> None:
    engine = LadderEngine({"text of r0000": [BAD, pass_later(), GOOD]})
    run_partitions(database, engine, make_one(tmp_path))
    assert [r.step for r in engine.requests] == [0, 1, 1]
    assert load_rows(database)["r0000"]["ladder_step"] == 1


@pytest.mark.parametrize("failure", [fail_for_good(), pass_later()])
def test_a_step_that_fails_for_good_leaves_the_refusal_before_it(
    database: Database, tmp_path: Path, failure: Exception
) -> None:
    run_partitions(database, LadderEngine({"text of r0000": [BAD, failure]}), make_one(tmp_path))
    row = load_rows(database)["r0000"]
    assert (row["status"], row["error_kind"], row["ladder_step"]) == ("invalid", "schema", 0)
    assert "step 1 of the ladder failed" in row["error"]
    assert row["attempt_id"] == load_tries(database)[0]["attempt_id"]
    engine = LadderEngine()
    run_partitions(database, engine, make_one(tmp_path))
    assert engine.asked == []


def test_equal_questions_climb_each_for_itself_until_one_is_answered(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path, ladder=Ladder(steps=1))
    inputs = make_inputs(task, "b1", make_records({"1": "same", "2": "same", "3": "same"}))
    engine = LadderEngine({"same": [BAD, GOOD]})
    run_partitions(database, engine, inputs)
    assert set(load_statuses(database).values()) == {"ok"}


def test_the_ladder_goes_on_while_another_record_hangs(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path, 2)
    engine = LadderEngine({"text of r0000": Hang(), "text of r0001": [BAD, BAD, GOOD]})
    engine.on_request = lambda _text: engine.release() if len(engine.asked) == 4 else None
    list(run_in_thread(make_runner(database, engine), [inputs]))
    assert load_statuses(database) == {"r0000": "ok", "r0001": "ok"}


def test_the_tokens_of_every_step_are_counted_and_unknown_ones_are_unknown(database: Database, tmp_path: Path) -> None:
    unknown = make_completion(BAD, usage=Usage())
    inputs = make_one(tmp_path)
    run_partitions(database, LadderEngine({"text of r0000": [BAD, unknown, GOOD]}), inputs)
    with database.read() as connection:
        figures = load_figures(connection, inputs.key, "b1")
    assert (figures.attempts, figures.asked_records, figures.unknown_usage) == (3, 1, 1)
    assert (figures.prompt_tokens, figures.completion_tokens) == (20, 10)


def test_an_answer_that_the_rules_refuse_later_is_judged_again_without_a_step(
    database: Database, tmp_path: Path
) -> None:
    run_partitions(database, LadderEngine({"text of r0000": [BAD, GOOD]}), make_one(tmp_path))
    engine = LadderEngine()
    run_partitions(database, engine, make_one(tmp_path, rules=[refuse_a]))
    row = load_rows(database)["r0000"]
    assert engine.asked == []
    assert (row["status"], row["error_kind"], row["ladder_step"]) == ("invalid", "rule", 1)


def test_the_early_stop_counts_a_record_that_climbs_once(database: Database, tmp_path: Path) -> None:
    (outcome,) = run_partitions(database, LadderEngine(default=BAD), make_one(tmp_path, 60))
    assert (outcome.tally.invalid, outcome.tally.sent) == (60, 180)


class StepEngine(ScriptedEngine):
    """Refuses to answer well below a step, whatever the record."""

    def __init__(self, good_from: int) -> None:
        super().__init__(latency_s=0.005)
        self.good_from = good_from
        self.steps: list[int] = []

    async def complete(self, request: Any) -> Any:
        """Answer by the request's step."""
        self.steps.append(request.step)
        await super().complete(request)
        return make_completion(GOOD if request.step >= self.good_from else BAD)


def test_an_answer_at_a_step_is_taken_by_equal_steps_of_other_batches_and_runs(
    database: Database, tmp_path: Path
) -> None:
    task = make_task(tmp_path, ladder=Ladder(steps=2))
    run_partitions(database, StepEngine(2), make_inputs(task, "b1", make_records({"1": "same"})))
    engine = StepEngine(2)
    (outcome,) = run_partitions(database, engine, make_inputs(task, "b2", make_records({"2": "same"})))
    assert engine.steps == [0, 1]  # an answer that was refused is nobody's
    assert (outcome.tally.sent, outcome.tally.reused, outcome.tally.ok) == (2, 1, 1)
    row = load_rows(database)["2"]
    assert (row["status"], row["ladder_step"], row["attempts"]) == ("ok", 2, 2)
    assert row["reused_from"] == load_rows(database)["1"]["attempt_id"]


@pytest.mark.parametrize("group_rows", [1, 256])
def test_an_answer_at_a_step_is_taken_by_equal_steps_of_the_same_run(
    database: Database, tmp_path: Path, group_rows: int
) -> None:
    task = make_task(tmp_path, ladder=Ladder(steps=1))
    records = make_records(dict.fromkeys(make_ids(5), "same"))
    engine = StepEngine(1)
    run_partitions(database, engine, make_inputs(task, "b1", records), group_rows=group_rows)
    assert sorted(engine.steps) == [0, 0, 0, 0, 0, 1]
    assert set(load_statuses(database).values()) == {"ok"}


def test_asked_anew_means_that_no_earlier_run_answers_at_a_step(database: Database, tmp_path: Path) -> None:
    inputs = make_one(tmp_path)
    run_partitions(database, StepEngine(1), inputs)
    engine = StepEngine(1)
    run_partitions(database, engine, inputs, retry=RetryMode.ALL)
    assert engine.steps == [0, 1]


def test_a_run_that_goes_on_at_a_step_takes_the_answer_that_another_record_got_there(
    database: Database, tmp_path: Path
) -> None:
    task = make_task(tmp_path, ladder=Ladder(steps=1))
    first = make_inputs(task, "b1", make_records({"1": "same"}))
    with pytest.raises(EngineDead):
        run_partitions(database, LadderEngine({"same": [BAD, EngineDead("gone")]}), first)
    run_partitions(database, StepEngine(1), make_inputs(task, "b2", make_records({"2": "same"})))
    engine = StepEngine(1)
    run_partitions(database, engine, first)
    assert engine.steps == []
    assert load_rows(database)["1"]["ladder_step"] == 1


def test_failures_at_one_step_take_no_try_from_the_next(database: Database, tmp_path: Path) -> None:
    engine = LadderEngine({"text of r0000": [pass_later(), pass_later(), BAD, pass_later(), pass_later(), GOOD]})
    run_partitions(database, engine, make_one(tmp_path, max_attempts=3))
    row = load_rows(database)["r0000"]
    assert (row["status"], row["ladder_step"], row["attempts"]) == ("ok", 1, 6)
    assert [t["attempt"] for t in load_tries(database)] == [1, 2, 3, 4, 5, 6]


def test_an_answer_below_the_last_step_that_the_rules_accept_now_costs_no_request(
    database: Database, tmp_path: Path
) -> None:
    run_partitions(database, LadderEngine({"text of r0000": [GOOD, BAD]}), make_one(tmp_path, rules=[refuse_a]))
    assert load_statuses(database) == {"r0000": "invalid/schema"}
    engine = LadderEngine()
    (outcome,) = run_partitions(database, engine, make_one(tmp_path), retry=RetryMode.FAILED)
    assert (engine.asked, outcome.tally.rejudged) == ([], 1)
    row = load_rows(database)["r0000"]
    assert (row["status"], row["ladder_step"]) == ("ok", 0)
    assert row["attempt_id"] == load_tries(database)[0]["attempt_id"]
