"""Checks as gates, a run that stops early, and what a person sees of it all, in Dagster itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from factories import BAD, ScriptedEngine, fail_for_good, make_completion, make_ids
from temp_project import (
    RESULTS,
    TempProject,
    find_checks,
    find_error,
    find_held,
    find_materialized,
)

from batch_assets.core.attempts import RetryMode
from batch_assets.core.completions import Usage
from batch_assets.core.steps import Step

P = "b1|v1--m1"
LIMITS = "Thresholds(max_error_share=0.25, max_invalid_share=0.5, min_records=4)"


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """Yield a project with three frozen batches of four records."""
    made = TempProject(quick_path, monkeypatch)
    for n in (1, 2, 3):
        made.write(f"b{n}", [f"b{n}r{i}" for i in range(4)])
    made.use(ScriptedEngine())
    assert made.launch(Step.SOURCES, batches=["b1", "b2", "b3"], variants=["v1--m1", "v2--m1"]).success
    yield made
    made.instance.dispose()


def change_limits(project: TempProject, **limits: object) -> None:
    """Give the task other thresholds."""
    path = project.folder / "task.py"
    text = path.read_text()
    assert LIMITS in text
    path.write_text(text.replace(LIMITS, f"Thresholds({', '.join(f'{k}={v}' for k, v in limits.items())})"))


def find_metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """Return what a run recorded of the one partition that it materialized of an asset."""
    (found,) = [
        e.step_materialization_data.materialization
        for e in result.all_events
        if e.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION and e.asset_key and e.asset_key.path[-1] == asset
    ]
    return {name: value.value for name, value in found.metadata.items()}


def find_lines(project: TempProject, result: dg.ExecuteInProcessResult) -> list[str]:
    """Return the lines that a run's own code wrote into its log."""
    entries = project.instance.all_logs(result.run_id)
    return [e.user_message for e in entries if e.dagster_event is None]


def name_range(first: str, last: str) -> dict[str, str]:
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


# Gates


@pytest.mark.parametrize("check", ["error_share", "invalid_share"])
def test_of_many_partitions_the_one_above_its_limit_is_held_and_no_other(project: TempProject, check: str) -> None:
    wrong = fail_for_good() if check == "error_share" else BAD
    project.use(ScriptedEngine({f"text of b2r{i}": wrong for i in range(4)}))
    keys = [f"b{n}|v1--m1" for n in (1, 2, 3)]
    done = project.launch(Step.OUTPUTS, partitions=keys)
    assert done.success
    assert {c for c in find_checks(done) if not c[3]} == {("llm_outputs", check, "b2|v1--m1", False)}
    held = project.launch(Step.RESULTS, partitions=keys)
    assert find_held(held) == f"b2|v1--m1: {check} fails"
    assert {key for _, key in find_materialized(held)} == {"b1|v1--m1", "b3|v1--m1"}
    ranged = project.materialize(RESULTS, tags=name_range(keys[0], keys[2]))
    assert f"b2|v1--m1: {check} fails" in find_error(ranged)
    assert {key for _, key in find_materialized(ranged)} == {"b1|v1--m1", "b3|v1--m1"}


def test_once_the_cause_is_mended_the_gate_opens(project: TempProject) -> None:
    project.use(ScriptedEngine({f"text of b1r{i}": fail_for_good("bad_request") for i in range(4)}))
    assert project.run(batch="b1", variant="v1--m1").held_back == f"{P}: error_share fails"
    project.use(ScriptedEngine())
    mended = project.run(batch="b1", variant="v1--m1", retry=RetryMode.ERRORS)
    assert (mended.held_back, mended.failed_checks, mended.tally.ok) == ("", [], 4)


def test_a_task_may_let_results_through_that_are_above_a_limit(project: TempProject) -> None:
    change_limits(project, max_error_share=0.25, min_records=4, hold_results=False)
    project.use(ScriptedEngine({f"text of b1r{i}": fail_for_good() for i in range(2)}))
    done = project.materialize(["llm_outputs", *RESULTS], partition=P)
    assert done.success
    assert ("llm_outputs", "error_share", P, False) in find_checks(done)
    assert len(find_materialized(done)) == 5


# Labels


def test_labels_that_shift_are_a_warning_that_holds_nothing(project: TempProject) -> None:
    project.use(ScriptedEngine({f"text of b3r{i}": '{"label":"c","score":1}' for i in range(4)}))
    keys = [f"b{n}|v1--m1" for n in (1, 2, 3)]
    project.launch(Step.OUTPUTS, partitions=keys)
    done = project.launch(Step.RESULTS, partitions=keys)
    assert find_held(done) == ""
    assert len(find_materialized(done)) == 12
    (red,) = [d for d in done.get_asset_check_evaluations() if not d.passed]
    assert (red.check_name, red.partition, red.severity) == (
        "label_distribution", "b3|v1--m1", dg.AssetCheckSeverity.WARN,
    )  # fmt: skip
    figures = {k: v.value for k, v in red.metadata.items()}
    assert (figures["distance_label"], figures["records_before"], figures["batches_before"]) == (1.0, 8, 2)
    assert figures["most_shifted"] == "label: a is 0.0% of the answers, and was 100.0% before"


def test_labels_stand_in_the_report_and_its_metadata(project: TempProject) -> None:
    done = project.materialize(["llm_outputs", *RESULTS], partition=P)
    found = find_metadata(done, "run_reports")
    assert [row.data for row in found["labels"].records] == [
        {"field": "label", "label": "a", "answers": 4, "share": "100.0%", "bar": "█" * 20}
    ]
    assert list(found)[:4] == ["latency_p50_s", "latency_p95_s", "cost", "error_share"]


# A run that stops early


def test_a_run_whose_errors_pass_the_limit_stops_and_goes_on_once_they_are_mended(project: TempProject) -> None:
    project.write_models(max_in_flight=2)
    project.write("b2", make_ids(40))
    project.launch(Step.SOURCES, batches=["b2"], variants=[])
    bad = {f"text of {i}": fail_for_good("bad_request") for i in make_ids(40)}
    engine = project.use(ScriptedEngine(bad))
    keys = [f"b{n}|v1--m1" for n in (1, 2, 3)]
    stopped = project.launch(Step.OUTPUTS, partitions=keys)
    assert not stopped.success
    words = find_error(stopped)
    assert "t v1--m1: " in words
    assert "are bad_request, the first: bad_request, for good." in words
    assert find_materialized(stopped) == [("llm_outputs", "b1|v1--m1")]
    assert len(engine.asked) < 30
    mended = project.use(ScriptedEngine())
    assert project.launch(Step.OUTPUTS, partitions=keys).success
    assert len(mended.asked) + len(engine.asked) <= 48 + 2, "but for what was in flight, nothing is asked twice"


# What a person sees


def test_figures_that_are_unknown_are_left_out_and_are_not_zero(project: TempProject) -> None:
    engine = ScriptedEngine({f"text of b1r{i}": make_completion(usage=Usage()) for i in range(4)})
    project.use(engine)
    found = find_metadata(project.materialize(["llm_outputs"], partition=P), "llm_outputs")
    assert not {"prompt_tokens", "completion_tokens", "tokens_per_s"} & set(found)
    assert found["records_per_s"] > 0
    assert (found["error_share"], found["cost"]) == (0.0, 0.0)
    project.write("b2", {"x1": "text of b1r0", "x2": "text of b1r1"})
    project.launch(Step.SOURCES, batches=["b2"], variants=[])
    reused = find_metadata(project.materialize(["llm_outputs"], partition="b2|v1--m1"), "llm_outputs")
    assert (reused["reused"], reused["sent"], reused["prompt_tokens"]) == (2, 0, 0)
    assert not {"records_per_s", "latency_p95_s"} & set(reused)


def test_every_figure_is_a_number_that_a_plot_can_show(project: TempProject) -> None:
    done = project.materialize(["llm_outputs", *RESULTS], partition=P)
    found = find_metadata(done, "llm_outputs")
    plotted = {k for k, v in found.items() if isinstance(v, int | float)}
    assert plotted >= {
        "records", "ok", "invalid", "error", "error_share", "invalid_share", "sent", "already_done", "reused",
        "prompt_tokens", "completion_tokens", "seconds", "records_per_s", "tokens_per_s", "cost",
    }  # fmt: skip
    assert plotted <= {"records", *find_metadata(done, "run_reports"), "sent", "already_done"}
    assert {"error_share", "invalid_share", "latency_p50_s"} <= set(find_metadata(done, "run_reports"))


def test_failures_are_shown_with_their_reasons_as_plain_cells(project: TempProject) -> None:
    odd = "<b>1</b>`|*x*"
    project.write("b1", {odd: "text of odd", "2": "two", "3": "three", "4": "four"})
    project.launch(Step.SOURCES, batches=["b1"], variants=[])
    project.use(ScriptedEngine({"text of odd": BAD}))
    done = project.materialize(["llm_outputs", *RESULTS], partition=P)
    for asset in ("llm_outputs", "quarantine"):
        (row,) = find_metadata(done, asset)["first_failures"].records
        assert (row.data["item_id"], row.data["status"], row.data["reason"]) == (odd, "invalid", "schema")
        assert "label" in row.data["error"]


def test_a_run_from_the_web_ui_knows_how_many_records_it_has(project: TempProject) -> None:
    lines = find_lines(project, project.materialize(["llm_outputs"], tags=name_range(P, "b3|v1--m1")))
    assert "starting the engine; 0 of 12 records (0 %)" in lines


def test_records_that_were_done_before_count_in_the_progress_of_a_runs_log(project: TempProject) -> None:
    project.materialize(["llm_outputs"], partition=P)
    done = project.launch(Step.OUTPUTS, partitions=[P, "b2|v1--m1"])
    lines = find_lines(project, done)
    assert "starting the engine; 4 of 8 records (50 %)" in lines


def test_the_command_lines_run_is_told_in_the_runs_log_too(project: TempProject) -> None:
    summary = project.run(batch="b1", variant="v1--m1")
    logs = [e.user_message for run_id in summary.run_ids for e in project.instance.all_logs(run_id)]
    assert any(line.startswith("starting the engine; 0 of 4 records") for line in logs)
