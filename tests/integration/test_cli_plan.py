"""`batch-assets plan`: what it tells, what it leaves to the daemon, and batches and variants by pattern."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from temp_project import TempProject

from batch_assets.cli.main import cli
from batch_assets.core.steps import Step
from batch_assets.dagster.instance import open_instance
from batch_assets.dagster.runs import PLAN_JOB, job_name
from batch_assets.pipeline.dispatch import FAILURE_BUDGET
from batch_assets.settings import load_settings
from batch_assets.store.failures import count_failure, load_failing


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    """Four batches, nothing frozen, and the instance that the command line opens."""
    found = TempProject(tmp_path, monkeypatch)
    for batch in ("a1", "a2", "b1", "b2"):
        found.write(batch, [f"{batch}r{i}" for i in range(2)])
    found.instance = open_instance(load_settings())
    return found


def call(*args: str, expect: int = 0) -> str:
    done = CliRunner().invoke(cli, list(args), standalone_mode=False)
    if expect == 0:
        assert done.exception is None, done.exception
        return done.stdout
    assert done.exception is not None
    return str(done.exception)


def plan(*args: str) -> dict[str, Any]:
    return json.loads(call("plan", "t", "--json", *args))


def needed(*args: str) -> set[str]:
    return {f"{n['batch']}|{n['variant']}" for n in plan(*args)["needs"]}


@pytest.mark.parametrize(
    ("args", "partitions"),
    [
        (["--batch", "a1", "--variant", "v1--m1"], {"a1|v1--m1"}),
        (["--batch", "a*", "--variant", "v1--*"], {"a1|v1--m1", "a2|v1--m1"}),
        (["--batch", "a1", "--batch", "?2", "--variant", "v2*"], {"a1|v2--m1", "a2|v2--m1", "b2|v2--m1"}),
    ],
)
def test_batches_and_variants_are_named_or_matched(project: TempProject, args: list[str], partitions: set[str]) -> None:
    assert needed(*args) == partitions


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--batch", "c*"], "task t has no batch 'c*'; it has a1, a2, b1, b2"),
        (["--variant", "v3--m1"], "task t has no variant 'v3--m1'; it has v1--m1, v2--m1"),
        (["--reset"], "--reset goes with --launch"),
    ],
)
def test_what_fits_nothing_is_refused_by_name(project: TempProject, args: list[str], words: str) -> None:
    assert words in call("plan", "t", *args, expect=2)


def test_without_launch_nothing_is_queued(project: TempProject) -> None:
    assert plan()["launched"] is None
    assert project.queue() == []


def test_launch_leaves_it_to_the_daemon_and_says_that_none_is_there(project: TempProject) -> None:
    told = call("plan", "t", "--launch", "--batch", "a*", "--variant", "v1--m1", "--retry", "errors")
    assert f"of {PLAN_JOB} is in the queue; no daemon is running here" in told
    config = {
        "task": "t", "batches": ["a1", "a2"], "variants": ["v1--m1"], "retry": "errors", "reset_failures": False,
    }  # fmt: skip
    assert project.queue() == [(PLAN_JOB, config)]
    (planned,) = project.work_off()
    assert planned.success
    assert [job for job, _ in project.queue()] == [job_name("t", Step.OUTPUTS, "m1")]
    (made,) = project.work_off()
    assert made.success
    again = call("plan", "t", "--batch", "a*", "--variant", "v1--m1")
    assert "0 partitions to do, 2 up to date" in again


def test_where_there_is_nothing_to_do_nothing_is_queued(project: TempProject) -> None:
    project.run()
    told = call("plan", "t", "--launch")
    assert "nothing to do" in told
    assert project.queue() == []


def test_what_failed_too_often_is_told_and_reset(project: TempProject) -> None:
    (wanted,) = [n.fingerprint for n in project.plan().needs if str(n.partition) == "a1|v1--m1"]
    with project.open_platform() as platform, platform.database.write() as connection:
        for _ in range(FAILURE_BUDGET):
            count_failure(connection, "t", Step.OUTPUTS, "a1|v1--m1", wanted, "r1", "it broke")
    project.launch(Step.SOURCES, batches=["a1"], variants=[])
    told = call("plan", "t", "--batch", "a1")
    assert f"a1|v1--m1: failed {FAILURE_BUDGET} times (outputs), and is launched no more but by" in told
    assert ": it broke" in told
    (held,) = plan("--batch", "a1")["failed_too_often"]
    assert (held["partition"], held["failures"], held["run_id"]) == ("a1|v1--m1", FAILURE_BUDGET, "r1")
    call("plan", "t", "--launch", "--reset", "--batch", "a1")
    project.work_off()
    with project.open_platform() as platform, platform.database.read() as connection:
        assert load_failing(connection, "t") == {}
    ((_, config),) = project.queue()
    assert config["partitions"] == ["a1|v1--m1", "a1|v2--m1"]


def test_lines_that_would_be_set_aside_are_told_before_a_run(project: TempProject) -> None:
    path = project.folder / "files" / "a1.csv"
    path.write_text("item_id,text\n1,good\n2,bad,surplus\n")
    told = call("plan", "t", "--batch", "a1")
    assert "a1: 1 lines would be set aside: line 3" in told
    ((number, why),) = plan("--batch", "a1")["set_aside"]["a1"]
    assert number == 3
    assert why


def test_values_that_would_be_cleaned_are_told_before_a_run(project: TempProject) -> None:
    (project.folder / "files" / "a1.csv").write_text("item_id,text\n1,good\n2,a\x07bell\n")
    told = call("plan", "t", "--batch", "a1")
    assert "a1: 1 values would be cleaned: line 3" in told
    ((number, why),) = plan("--batch", "a1")["cleaned"]["a1"]
    assert (number, "text" in why) == (3, True)
