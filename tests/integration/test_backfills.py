"""A backfill with holes: Dagster makes a run per contiguous range, the first of them does the work of all."""

from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.remote_origin import RemoteJobOrigin
from factories import ScriptedEngine
from temp_project import TempProject, find_checks, find_materialized

from batch_assets.core.steps import Step
from batch_assets.dagster.backfills import PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.runs import find_repository
from batch_assets.store.leases import LeaseBook

BACKFILL = {"dagster/backfill": "bf1"}
BATCHES = [f"b{i}" for i in range(1, 8)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    """Seven frozen batches of two records each."""
    found = TempProject(tmp_path, monkeypatch)
    found.use(ScriptedEngine())
    for batch in BATCHES:
        found.write(batch, [f"{batch}r{i}" for i in range(2)])
    assert found.launch(Step.SOURCES, batches=BATCHES, variants=["v1--m1", "v2--m1"]).success
    return found


def span(first: str, last: str, variant: str = "v1--m1") -> dict[str, str]:
    return {RANGE_START_TAG: f"{first}|{variant}", RANGE_END_TAG: f"{last}|{variant}"}


def queue(project: TempProject, tags: Mapping[str, str], assets: tuple[str, ...] = ("llm_outputs",)) -> DagsterRun:
    """Put a run of the asset into the queue, as the backfill daemon does."""
    built = project.load()
    sync_partitions(*built.tasks["t"], project.instance)
    job = built.definitions.resolve_implicit_global_asset_job_def()
    keys = {dg.AssetKey(["t", a]) for a in assets}
    origin = RemoteJobOrigin(repository_origin=find_repository(), job_name=job.name)
    run = project.instance.create_run_for_job(
        job, tags={**BACKFILL, **tags}, asset_selection=keys, remote_job_origin=origin
    )
    project.instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
    return run


def status(instance: DagsterInstance, run: DagsterRun) -> DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def keys(*batches: str, variant: str = "v1--m1") -> set[str]:
    return {f"{b}|{variant}" for b in batches}


def materialized(result: dg.ExecuteInProcessResult) -> list[str | None]:
    return [p for _, p in find_materialized(result)]


def test_the_first_run_does_the_work_of_all_with_one_engine_start(project: TempProject) -> None:
    others = [queue(project, span("b4", "b5")), queue(project, {PARTITION_TAG: "b7|v1--m1"})]
    engine = project.use(ScriptedEngine())
    done = project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")})
    assert done.success
    assert set(materialized(done)) == keys("b1", "b2", "b4", "b5", "b7")
    assert len(materialized(done)) == 5
    assert engine.opened == 1
    assert {c[2] for c in find_checks(done)} == keys("b1", "b2", "b4", "b5", "b7")
    assert [status(project.instance, run) for run in others] == [DagsterRunStatus.SUCCESS] * 2
    told = [e.message for run in others for e in project.instance.all_logs(run.run_id)]
    assert sum(f"by run {done.run_id} of the same backfill" in message for message in told) >= 2


def test_a_run_of_a_single_partition_takes_over_as_well(project: TempProject) -> None:
    other = queue(project, span("b3", "b4"))
    done = project.materialize(["llm_outputs"], partition="b1|v1--m1", tags=BACKFILL)
    assert done.success
    assert set(materialized(done)) == keys("b1", "b3", "b4")
    assert {c[2] for c in find_checks(done)} == keys("b1", "b3", "b4")
    assert status(project.instance, other) is DagsterRunStatus.SUCCESS


def test_one_that_was_started_and_waits_is_taken_over_and_finds_everything_done(project: TempProject) -> None:
    other = queue(project, span("b3", "b4"))
    project.instance.report_dagster_event(DagsterEvent("PIPELINE_STARTING", other.job_name), run_id=other.run_id)
    project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")})
    assert status(project.instance, other) is DagsterRunStatus.STARTING
    engine = project.use(ScriptedEngine())
    late = project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b3", "b4")})
    assert late.success
    assert engine.opened == 0
    (event, _) = [e for e in late.all_events if e.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION]
    assert event.materialization.metadata["summary"].value == "0 sent, 2 already done, 0 reused"


@pytest.mark.parametrize("tags", [{"dagster/backfill": "another"}, {}])
def test_runs_of_another_backfill_or_of_none_are_left_alone(project: TempProject, tags: dict[str, str]) -> None:
    other = queue(project, span("b4", "b5"))
    done = project.materialize(["llm_outputs"], tags={**tags, **span("b1", "b2")})
    assert set(materialized(done)) == keys("b1", "b2")
    assert status(project.instance, other) is DagsterRunStatus.QUEUED


def test_runs_of_other_assets_are_left_alone(project: TempProject) -> None:
    other = queue(project, span("b4", "b5"), ("validated_results",))
    project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")})
    assert status(project.instance, other) is DagsterRunStatus.QUEUED


def test_what_somebody_else_works_on_is_left_to_its_own_run(project: TempProject) -> None:
    other = queue(project, span("b4", "b5"))
    with project.open_platform() as platform:
        LeaseBook(platform.database, "someone").acquire("t", "b5", "v1--m1")
    done = project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")})
    assert done.success
    assert set(materialized(done)) == keys("b1", "b2", "b4")
    assert status(project.instance, other) is DagsterRunStatus.QUEUED


def test_what_was_never_frozen_is_frozen_and_taken_over(project: TempProject) -> None:
    project.write("b8", ["b8r0"])
    other = queue(project, {PARTITION_TAG: "b8|v1--m1"})
    done = project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")})
    assert done.success
    assert set(materialized(done)) >= {*keys("b1", "b2"), "b8|v1--m1"}
    assert status(project.instance, other) is DagsterRunStatus.SUCCESS


def test_a_first_run_that_fails_leaves_the_others_in_the_queue(project: TempProject) -> None:
    other = queue(project, span("b4", "b5"))
    project.use(ScriptedEngine({"text of b1r0": ZeroDivisionError("a fault")}))
    assert not project.materialize(["llm_outputs"], tags={**BACKFILL, **span("b1", "b2")}).success
    assert status(project.instance, other) is DagsterRunStatus.QUEUED
