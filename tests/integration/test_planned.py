"""What the asset's page shows of a launched run's partitions: materializing, failed, or neither."""

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from factories import ScriptedEngine
from temp_project import TempProject, find_error

from batch_assets.core.errors import EngineDead
from batch_assets.core.steps import Step
from batch_assets.dagster.partitions import output_partitions
from batch_assets.pipeline.result_assets import RESULT_NAMES
from batch_assets.store.leases import LeaseBook

B1, B2 = "b1|v1--m1", "b2|v1--m1"


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    found = TempProject(quick_path, monkeypatch, on_disk=True)
    found.use(ScriptedEngine())
    for batch in ("b1", "b2"):
        found.write(batch, [f"{batch}r{i}" for i in range(4)])
    assert found.launch(Step.SOURCES, batches=["b1", "b2"], variants=["v1--m1"]).success
    return found


def look(project: TempProject, asset: str = "llm_outputs") -> dict[str, set[str]]:
    """Return what Dagster's status cache says of an asset's partitions, which the web UI shows."""
    definition = output_partitions("t")
    found = get_and_update_asset_status_cache_value(project.instance, dg.AssetKey(["t", asset]), definition)
    if found is None:
        return {"made": set(), "failed": set(), "at work": set()}
    with dg.partition_loading_context(dynamic_partitions_store=project.instance):
        return {
            "made": set(map(str, found.deserialize_materialized_partition_subsets(definition).get_partition_keys())),
            "failed": set(map(str, found.deserialize_failed_partition_subsets(definition).get_partition_keys())),
            "at work": set(map(str, found.deserialize_in_progress_partition_subsets(definition).get_partition_keys())),
        }


def test_partitions_of_a_run_at_work_are_materializing_and_then_made(project: TempProject) -> None:
    seen: list[dict[str, set[str]]] = []
    engine = project.use(ScriptedEngine())
    engine.on_request = lambda _text: seen.append(look(project)) if not seen else None
    assert project.launch(Step.OUTPUTS, partitions=[B1, B2]).success
    assert seen == [{"made": set(), "failed": set(), "at work": {B1, B2}}]
    assert look(project) == {"made": {B1, B2}, "failed": set(), "at work": set()}


def test_partitions_that_a_run_failed_before_are_failed(project: TempProject) -> None:
    project.use(ScriptedEngine({"text of b2r1": EngineDead("gone")}))
    assert not project.launch(Step.OUTPUTS, partitions=[B1, B2]).success
    assert look(project)["failed"] >= {B2}
    assert look(project)["at work"] == set()
    project.use(ScriptedEngine())
    assert project.launch(Step.OUTPUTS, partitions=[B1, B2]).success
    assert look(project) == {"made": {B1, B2}, "failed": set(), "at work": set()}


def test_a_partition_that_another_run_works_on_does_not_look_failed(project: TempProject) -> None:
    with project.open_platform() as platform:
        book = LeaseBook(platform.database, "another")
        book.acquire("t", "b2", "v1--m1")
        failed = project.launch(Step.OUTPUTS, partitions=[B1, B2])
        book.release_all()
    assert "run another works on it" in find_error(failed)
    assert look(project) == {"made": {B1}, "failed": set(), "at work": set()}


def test_results_that_are_held_back_look_as_before(project: TempProject) -> None:
    assert project.launch(Step.OUTPUTS, partitions=[B1]).success
    assert project.launch(Step.RESULTS, partitions=[B1, B2]).success
    for asset in RESULT_NAMES:
        assert look(project, asset) == {"made": {B1}, "failed": set(), "at work": set()}
