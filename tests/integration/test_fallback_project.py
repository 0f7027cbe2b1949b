"""A task with a fallback as Dagster and the command line see it: asset, job, sensor, plan and run."""

import json
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from click.testing import CliRunner
from factories import BAD, ScriptedEngine, make_ids, pass_later
from temp_project import RESULTS, TempProject, find_materialized

from batch_assets.cli.main import cli
from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, VALIDATED_RESULTS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import EngineDead
from batch_assets.core.steps import Step
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.instance import open_instance
from batch_assets.dagster.runs import job_name
from batch_assets.pipeline.plan import Selection
from batch_assets.settings import load_settings

P = "b1|v1--m1"
FOLLOWS = "t__fallback_follows"
JOB = job_name("t", Step.FALLBACKS)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    """Return a task with a fallback and one batch, of which the first model can't answer two records."""
    found = TempProject(tmp_path, monkeypatch)
    found.write("b1", make_ids(4))
    found.add_fallback()
    found.big = ScriptedEngine()  # type: ignore[attr-defined]
    found.use(ScriptedEngine({"text of r0001": BAD, "text of r0002": BAD}), big=found.big)  # type: ignore[attr-defined]
    return found


def load_frame(project: TempProject, variant: str = "v1--m1") -> pl.DataFrame:
    with project.open_platform() as platform:
        frame = platform.frames.read("t", VALIDATED_RESULTS, "b1", variant)
    assert frame is not None
    return frame


def test_the_asset_stands_between_outputs_and_results(project: TempProject) -> None:
    graph = project.load().definitions.resolve_asset_graph()
    task, _ = project.bind()
    node = graph.get(asset_key(task, FALLBACK_OUTPUTS))
    assert node.parent_keys == {asset_key(task, LLM_OUTPUTS)}
    assert node.pools == {"big_gpu"}
    assert graph.get(asset_key(task, VALIDATED_RESULTS)).parent_keys == {
        asset_key(task, LLM_OUTPUTS),
        asset_key(task, FALLBACK_OUTPUTS),
    }


def test_a_task_without_a_fallback_has_neither_asset_job_nor_sensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TempProject(tmp_path, monkeypatch)
    plain.write("b1", make_ids(2))
    definitions = plain.load().definitions
    assert asset_key(plain.bind()[0], FALLBACK_OUTPUTS) not in definitions.resolve_asset_graph().get_all_asset_keys()
    repository = definitions.get_repository_def()
    assert FOLLOWS not in {s.name for s in repository.sensor_defs}
    assert JOB not in repository.job_names


def test_materialize_selected_runs_through_from_outputs_over_the_fallback_to_the_results(project: TempProject) -> None:
    project.materialize(["source_records"], partition="b1")
    project.materialize(["variant_specs"], partition="v1--m1")
    done = project.materialize([LLM_OUTPUTS, FALLBACK_OUTPUTS, *RESULTS], partition=P)
    assert done.success
    assert find_materialized(done) == [(name, P) for name in (LLM_OUTPUTS, FALLBACK_OUTPUTS, *RESULTS)]
    assert load_frame(project)["model_id"].to_list() == ["m1", "big", "big", "m1"]
    plan = project.plan()
    assert [str(p) for p in plan.fallbacks] == []
    assert [str(p) for p in plan.outdated] == []


def test_run_asks_outputs_then_fallback_then_makes_the_results_once(project: TempProject) -> None:
    summary = project.run()
    assert (summary.tally.sent, summary.fallback.sent, summary.requests_sent) == (8, 4, 12)
    assert (summary.tally.ok, summary.tally.invalid, summary.fallback.ok) == (4, 4, 4)
    assert load_frame(project).height == 4
    jobs = [project.instance.get_run_by_id(r).job_name for r in summary.run_ids]  # type: ignore[union-attr]
    assert [j.split("launch_")[1] for j in jobs] == ["sources", "outputs__m1", "fallbacks", "results"]
    again = project.run()
    assert (again.requests_sent, again.run_ids) == (0, [])


def test_the_sensor_asks_the_fallback_once_outputs_are_made_and_then_rests(project: TempProject) -> None:
    assert project.tick(FOLLOWS).run_requests == []
    project.launch_plan()
    assert project.tick(FOLLOWS).run_requests == []
    project.work_off()
    (request,) = project.tick(FOLLOWS).run_requests or ()
    assert request.job_name == JOB
    config = request.run_config["ops"][f"{JOB}_op"]["config"]
    assert config == {"partitions": [P, "b1|v2--m1"]}
    done = project.launch(Step.FALLBACKS, **config)
    assert find_materialized(done) == [(FALLBACK_OUTPUTS, P), (FALLBACK_OUTPUTS, "b1|v2--m1")]
    assert project.tick(FOLLOWS).run_requests == []


def test_the_fallback_waits_while_outputs_are_being_made(project: TempProject) -> None:
    project.launch_plan(variants=["v1--m1"])
    project.work_off()
    project.launch_plan(variants=["v2--m1"])
    tick = project.tick(FOLLOWS)
    assert tick.run_requests == []
    assert "outputs are being made" in str(tick.skip_reason)


def test_the_planners_job_launches_the_fallback_when_nothing_else_is_missing(project: TempProject) -> None:
    project.launch_plan(variants=["v1--m1"])
    assert [job for job, _ in project.queue()] == [job_name("t", Step.OUTPUTS, "m1")]
    project.work_off()
    project.launch_plan(variants=["v1--m1"])
    assert project.queue() == [(JOB, {"partitions": [P]})]
    project.launch_plan(variants=["v1--m1"])
    assert len(project.queue()) == 1


def test_a_fallback_that_keeps_failing_is_passed_over(project: TempProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch_assets.pipeline.dispatch.FIRST_WAIT_S", 0.0)
    project.launch_plan(variants=["v1--m1"])
    project.work_off()
    project.use(ScriptedEngine(), big=ScriptedEngine(default=RuntimeError("it broke")))
    for _ in range(3):
        (request,) = project.tick(FOLLOWS).run_requests or ()
        assert not project.launch(Step.FALLBACKS, **request.run_config["ops"][f"{JOB}_op"]["config"]).success
    tick = project.tick(FOLLOWS)
    assert tick.run_requests == []
    assert "1 failed too often: b1|v1--m1" in str(tick.skip_reason)


def test_plan_and_run_tell_of_it(project: TempProject) -> None:
    project.instance = open_instance(load_settings())
    project.launch_plan()
    project.work_off()
    out = CliRunner().invoke(cli, ["plan", "t"], standalone_mode=False).stdout
    assert "the fallback of 2 to ask" in out
    document = json.loads(CliRunner().invoke(cli, ["plan", "t", "--json"], standalone_mode=False).stdout)
    assert document["fallbacks_to_ask"] == [P, "b1|v2--m1"]
    project.run()
    status = json.loads(CliRunner().invoke(cli, ["status", "t", "--json"], standalone_mode=False).stdout)["t"]
    lines = [(s["prompt_ver"], s["model_id"], s["ok"], s["pending"], s["is_fallback"]) for s in status]
    assert lines == [
        ("v1", "m1", 2, 0, False), ("v2", "m1", 2, 0, False), ("v1", "big", 2, 0, True), ("v2", "big", 2, 0, True)
    ]  # fmt: skip
    out = CliRunner().invoke(cli, ["show", "t", "r0001"], standalone_mode=False).stdout
    assert "v1--big in batch b1: ok (fallback for another variant)" in out
    quarantine = project.instance.get_latest_materialization_event(asset_key(project.bind()[0], "quarantine"))
    assert quarantine is not None
    metadata = quarantine.asset_materialization.metadata  # type: ignore[union-attr]
    assert (metadata["rows"].value, metadata["answered_by_fallback"].value) == (0, 2)
    assert (list(metadata["reasons"].records), list(metadata["first_failures"].records)) == ([], [])


def test_a_fallback_that_models_yaml_does_not_have_is_refused_by_name(project: TempProject) -> None:
    task = project.folder / "task.py"
    task.write_text(task.read_text().replace('fallback="big"', 'fallback="bigger"'))
    with pytest.raises(Exception, match="bigger"):
        project.load()


def test_the_sensor_is_on_since_the_task_names_the_fallback(project: TempProject) -> None:
    sensors = {s.name: s.default_status for s in project.load().definitions.get_repository_def().sensor_defs}
    assert sensors[FOLLOWS] is dg.DefaultSensorStatus.RUNNING


def test_run_makes_the_results_though_the_fallback_is_down_and_tells_of_it(project: TempProject) -> None:
    project.use(ScriptedEngine({"text of r0001": BAD}), big=ScriptedEngine(default=EngineDead("big is down")))
    for _ in range(2):
        with pytest.raises(EngineDead, match="big is down"):
            project.run()
        assert load_frame(project).height == load_frame(project, "v2--m1").height == 3
        assert [str(p) for p in project.plan().fallbacks] == [P, "b1|v2--m1"]
    project.use(ScriptedEngine(), big=ScriptedEngine())
    project.run()
    assert load_frame(project).height == 4


def test_a_strict_export_waits_for_the_fallback_and_another_tells_of_it(project: TempProject, tmp_path: Path) -> None:
    project.instance = open_instance(load_settings())
    project.use(ScriptedEngine({"text of r0001": BAD}), big=ScriptedEngine(default=EngineDead("big is down")))
    with pytest.raises(EngineDead):
        project.run()
    command = ["export", "t", "--output", str(tmp_path / "t.csv")]
    done = CliRunner().invoke(cli, [*command, "--strict"])
    assert done.exit_code == 1
    assert "2 of 2 partitions are out of date" in done.stderr
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0
    assert "2 of 2 partitions are out of date" in done.stderr


def test_materialize_selected_runs_through_where_the_variant_is_the_fallbacks_own(project: TempProject) -> None:
    task = project.folder / "task.py"
    task.write_text(task.read_text().replace('models=["m1"]', 'models=["m1", "big"]'))
    project.materialize(["source_records"], partition="b1")
    project.materialize(["variant_specs"], partition="v1--big")
    done = project.materialize([LLM_OUTPUTS, FALLBACK_OUTPUTS, *RESULTS], partition="b1|v1--big")
    assert done.success
    made = [name for name, _ in find_materialized(done)]
    assert made == [LLM_OUTPUTS, FALLBACK_OUTPUTS, *RESULTS]
    assert project.plan(selection=Selection.of(variant="v1--big")).is_empty


def test_retrying_what_failed_asks_the_fallback_again_too(project: TempProject) -> None:
    bad = {"text of r0001": BAD, "text of r0002": BAD}
    project.use(ScriptedEngine(bad), big=ScriptedEngine({"text of r0001": pass_later(), "text of r0002": BAD}))
    project.run(variant="v1--m1")
    assert load_frame(project).height == 2
    big = ScriptedEngine()
    project.use(ScriptedEngine(bad), big=big)
    project.run(variant="v1--m1", retry=RetryMode.ERRORS)
    assert big.asked == ["text of r0001"]
    project.run(variant="v1--m1", retry=RetryMode.FAILED)
    assert big.asked == ["text of r0001", "text of r0002"]
    assert load_frame(project).height == 4
    assert project.plan(selection=Selection.of(variant="v1--m1")).is_empty


def test_the_planners_job_lets_a_fallback_rest_that_has_just_failed(project: TempProject) -> None:
    project.launch_plan(variants=["v1--m1"])
    project.work_off()
    project.use(ScriptedEngine(), big=ScriptedEngine(default=EngineDead("big is down")))
    project.launch_plan(variants=["v1--m1"])
    (done,) = project.work_off()
    assert not done.success
    project.launch_plan(variants=["v1--m1"])
    assert project.queue() == []
