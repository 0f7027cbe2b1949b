"""The labels of a batch against those of the batches before it, in the store and in the check."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from factories import BAD, ScriptedEngine, Stage, fail_for_good, make_ids, make_model
from pydantic import BaseModel

from batch_assets.core.outcomes import CheckOutcome, Severity
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task, Thresholds
from batch_assets.pipeline.checks.validated_results import BATCHES_BEFORE, LABELS, CheckedResults, list_checks
from batch_assets.pipeline.partition_inputs import build_inputs
from batch_assets.pipeline.validated_frame import write_validated_frame
from batch_assets.reports.labels import Labels
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.run_reports import load_earlier_labels
from batch_assets.store.tables import run_reports


@pytest.fixture
def stage(store_url: str, quick_path: Path) -> Stage:
    return Stage(quick_path, store_url)


def make(stage: Stage, min_records: int = 4, **fields: Any) -> Task:
    return stage.task(thresholds=Thresholds(min_records=min_records, max_error_share=1.0), **fields)


def find_inputs(stage: Stage, task: Task, batch: str, variant: str = "v1--m1") -> PartitionInputs:
    inputs = build_inputs(task, stage.platform, PartitionKey(batch, variant))
    assert inputs is not None
    return inputs


def run_batch(stage: Stage, task: Task, batch: str, labels: str, prefix: str = "") -> None:
    """Write a batch whose records are answered with `labels`, a letter each, and run it."""
    ids = make_ids(len(labels), prefix or batch)
    stage.write(batch, ids)
    script = {f"text of {i}": f'{{"label":"{label}","score":1}}' for i, label in zip(ids, labels, strict=True)}
    stage.run(task, ScriptedEngine(script))


def find_earlier(stage: Stage, task: Task, batch: str, limit: int = 10, variant: str = "v1--m1") -> Sequence[Labels]:
    with stage.platform.database.read() as connection:
        found = load_earlier_labels(connection, task.name, batch, variant, limit)
    return [labels for _, labels in found]


def count(labels: str) -> Labels:
    return {"label": {label: labels.count(label) for label in sorted(set(labels))}}


def test_the_batches_before_come_latest_first_and_no_others(stage: Stage) -> None:
    task = make(stage)
    for batch, labels in {"z": "aab", "y": "abc", "x": "ccc", "w": "bbb"}.items():  # first seen in this order
        run_batch(stage, task, batch, labels)
    assert find_earlier(stage, task, "z") == []
    assert find_earlier(stage, task, "x") == [count("abc"), count("aab")]
    assert find_earlier(stage, task, "w") == [count("ccc"), count("abc"), count("aab")]
    assert find_earlier(stage, task, "w", 2) == [count("ccc"), count("abc")]


def test_a_batch_made_anew_is_compared_with_the_same_ones_as_before(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aaa")
    run_batch(stage, task, "b2", "bbb")
    run_batch(stage, task, "b1", "cccc", prefix="new")
    assert find_earlier(stage, task, "b1") == []
    assert find_earlier(stage, task, "b2") == [count("cccc")]


def test_variants_have_their_own_history(stage: Stage) -> None:
    task = make(stage, prompts=["v1", "v2"])
    run_batch(stage, task, "b1", "aaa")
    stage.write("b2", ["1"])
    stage.run(task, ScriptedEngine(default='{"label":"b","score":1}'), variant="v2--m1")
    stage.write("b3", ["2"])
    stage.run(task, batch="b3", variant="v1--m1")
    assert find_earlier(stage, task, "b3", variant="v1--m1") == [count("aaa")]
    assert find_earlier(stage, task, "b3", variant="v2--m1") == [count("b"), count("aaa")]


def test_a_report_of_an_earlier_version_without_labels_is_passed_over(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aaa")
    run_batch(stage, task, "b2", "aab")
    run_batch(stage, task, "b3", "abc")
    with stage.platform.database.write() as connection:
        old = sa.update(run_reports).where(run_reports.c.batch == "b2")
        connection.execute(old.values(figures={"ok": 3}))
    assert find_earlier(stage, task, "b3") == [count("aaa")]


def check(stage: Stage, task: Task, batch: str) -> CheckOutcome:
    inputs = find_inputs(stage, task, batch)
    labels = next(c for c in list_checks(task) if c.name == LABELS)
    with write_validated_frame(stage.platform, inputs) as validated:
        return labels.examine(CheckedResults(platform=stage.platform, inputs=inputs, validated=validated))


def test_a_batch_that_answers_as_ever_passes(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aabb" * 10)
    run_batch(stage, task, "b2", "abab" * 10)
    found = check(stage, task, "b2")
    assert (found.passed, found.is_blocking, found.severity) == (True, False, Severity.WARN)
    assert found.figures["distance_label"] == 0 and "note" not in found.figures
    assert (found.figures["records"], found.figures["records_before"], found.figures["batches_before"]) == (
        40, 40, 1,
    )  # fmt: skip


def test_a_batch_that_answers_otherwise_is_a_warning_with_both_shares(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aabb" * 20)
    run_batch(stage, task, "b2", "aaab" * 20)
    run_batch(stage, task, "b3", "ccca" * 20)
    found = check(stage, task, "b3")
    assert not found.passed
    assert found.figures["distance_label"] == pytest.approx(0.75)
    assert found.figures["most_shifted"] == "label: c is 75.0% of the answers, and was 0.0% before"
    assert (found.figures["limit"], found.figures["records_before"]) == (0.25, 160)


def test_a_shift_that_chance_explains_is_no_warning(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aabb")
    run_batch(stage, task, "b2", "aaab")
    wide = check(stage, task, "b2")
    assert wide.passed
    assert wide.figures["distance_label"] == 0.25
    run_batch(stage, task, "b3", "aaaa")  # 0.375 of 8 and 4
    assert check(stage, task, "b3").passed
    assert check(stage, task, "b3").figures["distance_label"] > 0.25


@pytest.mark.parametrize(("first", "second"), [("aaa", "cccc"), ("aaaa", "ccc")])
def test_too_few_records_on_either_side_raise_no_alarm(stage: Stage, first: str, second: str) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", first)
    run_batch(stage, task, "b2", second)
    found = check(stage, task, "b2")
    assert found.passed
    assert found.figures["note"] == "fewer than 4 accepted answers, here or before, raise no alarm"
    assert found.figures["distance_label"] == 1.0


def test_without_a_history_it_passes_and_says_why(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aaaaa")
    found = check(stage, task, "b1")
    assert (found.passed, found.figures["batches_before"]) == (True, 0)
    assert found.figures["note"].startswith("nothing to compare with")


def test_a_batch_without_an_accepted_answer_passes(stage: Stage) -> None:
    task = make(stage)
    run_batch(stage, task, "b1", "aaaaa")
    stage.write("b2", make_ids(5))
    stage.run(task, ScriptedEngine(default=fail_for_good()))
    assert check(stage, task, "b2").figures["note"].startswith("nothing to compare with")


def test_no_more_than_the_last_ten_batches_are_looked_at(stage: Stage) -> None:
    task = make(stage)
    stage.write("a0", ["a0"])
    for n in range(BATCHES_BEFORE + 1):
        stage.write(f"b{n:02d}", [f"b{n:02d}"])
    stage.write("z", ["z"])
    stage.run(task)
    assert check(stage, task, "z").figures["records_before"] == BATCHES_BEFORE


def test_a_frame_without_label_fields_is_nothing_to_compare(stage: Stage) -> None:
    class Text(BaseModel):
        text: str

    task = make(stage, output=Text, rules_version="1")
    stage.write("b1", make_ids(9))
    stage.run(task, ScriptedEngine(default='{"text":"x"}'))
    found = check(stage, task, "b1")
    assert (found.passed, found.figures["records"]) == (True, 9)


def test_the_fallbacks_rows_are_no_records_of_the_variant(stage: Stage) -> None:
    task = make(stage, fallback=make_model("big"))
    run_batch(stage, task, "b1", "aaaaa")
    stage.write("b2", ["1", "2", "3", "4", "5"])
    own = ScriptedEngine({f"text of {n}": BAD for n in (1, 2)}, default='{"label":"c","score":1}')
    stage.run(task, own, fallback=ScriptedEngine(default='{"label":"c","score":1}'))
    found = check(stage, task, "b2")
    assert (found.passed, found.figures["records"]) == (True, 3)
    assert found.figures["note"] == "fewer than 4 accepted answers, here or before, raise no alarm"
