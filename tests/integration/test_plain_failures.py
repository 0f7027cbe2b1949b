"""What a run's page says when a run fails, is canceled or killed: words first, and what is kept."""

import os
import signal
from pathlib import Path

import dagster as dg
import pytest
from factories import ScriptedEngine
from temp_project import TempProject

from batch_assets.core.errors import EngineDead
from batch_assets.core.steps import Step
from batch_assets.dagster.dead_runs import HOST_TAG, RUN_TAG, STARTED_TAG, end_dead_runs
from batch_assets.dagster.runs import op_config

B1, B2 = "b1|v1--m1", "b2|v1--m1"
OUTPUTS = "t__launch_outputs__m1"


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    found = TempProject(quick_path, monkeypatch, on_disk=True)
    found.use(ScriptedEngine())
    for batch in ("b1", "b2"):
        found.write(batch, [f"{batch}r{i}" for i in range(4)])
    assert found.launch(Step.SOURCES, batches=["b1", "b2"], variants=["v1--m1"]).success
    return found


def find_failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, object], list[str]]:
    """Return the words and figures of the failure that a run's page shows, and all its stacks."""
    (event,) = [e for e in result.all_events if e.is_step_failure]
    shown, error = event.step_failure_data.user_failure_data, event.step_failure_data.error
    assert shown is not None and shown.description is not None and error is not None
    stacks: list[str] = []
    while (error := error.cause) is not None:
        stacks += error.stack
    return shown.description, {k: v.value for k, v in shown.metadata.items()}, stacks


def test_an_error_of_ours_is_a_failure_in_words_with_what_is_kept_and_no_stack(project: TempProject) -> None:
    assert project.launch(Step.OUTPUTS, partitions=[B1]).success
    project.use(ScriptedEngine({"text of b2r1": EngineDead("it is gone")}))
    words, figures, stacks = find_failure(project.launch(Step.OUTPUTS, partitions=[B2]))
    assert "it is gone" in words
    assert figures["error"] == "EngineDead"
    assert (figures["partitions_kept"], stacks) == (0, [])


def test_results_that_are_not_ready_are_a_failure_that_says_what_to_do(project: TempProject) -> None:
    words, figures, _ = find_failure(project.materialize(["validated_results"], partition=B1))
    assert words == f"{B1}: llm_outputs is not up to date: materialize it first"
    assert figures["error"] == "NotReadyError"


def test_the_command_line_still_finds_our_own_error(project: TempProject) -> None:
    project.use(ScriptedEngine(default=EngineDead("it is gone")))
    with pytest.raises(EngineDead, match="it is gone"):
        project.run()


def test_a_canceled_run_says_what_is_kept_and_how_it_goes_on(project: TempProject) -> None:
    def cancel(text: str) -> None:
        if text == "text of b2r3":
            (run,) = project.instance.get_runs(dg.RunsFilter(job_name=OUTPUTS))
            project.instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGINT)

    project.use(ScriptedEngine()).on_request = cancel
    ended = project.launch(Step.OUTPUTS, partitions=[B1, B2], total=8)
    (event,) = [e for e in ended.all_events if e.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None and (error.cause, error.context) == (None, None)
    assert "of 8 records done, " in error.message and "goes on from there" in error.message
    (run,) = project.instance.get_runs(dg.RunsFilter(job_name=OUTPUTS))
    assert run.status is dg.DagsterRunStatus.CANCELED
    lines = [e.message for e in project.instance.all_logs(run.run_id)]
    assert any("Kept: " in line and "of 2 finished" in line for line in lines)


def test_a_killed_run_is_reported_with_what_is_kept(project: TempProject) -> None:
    job = project.load().definitions.resolve_job_def(OUTPUTS)
    config = op_config(OUTPUTS, {"partitions": [B1, B2], "total": 8})
    run = project.instance.create_run_for_job(job, run_config=config, status=dg.DagsterRunStatus.STARTED)
    tags = {RUN_TAG: run.run_id, "batch_assets/pid": "999999999", HOST_TAG: os.uname().nodename, STARTED_TAG: "1.0"}
    project.instance.add_run_tags(run.run_id, tags)  # as a version before has tagged it
    with project.open_platform() as platform:
        assert end_dead_runs(project.instance, platform.database) == [run.run_id]
    lines = [e.message for e in project.instance.all_logs(run.run_id)]
    assert any("is gone. Kept: 0 of 8 records done, 0 partitions of 2 finished. Nothing of that" in x for x in lines)
