"""The asset graph of the shipped tasks: loading it is quick, and it is the same graph for every task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from temp_project import TempProject

from batch_assets.core.steps import Step
from batch_assets.dagster.project import Project, load_project
from batch_assets.dagster.runs import job_name
from batch_assets.settings import Settings

TASKS = ("booking_fields", "ticket_triage")
BY_BATCH, BY_VARIANT = "dynamic {task}__batch", "dynamic {task}__variant"
BY_BOTH = "batch: dynamic {task}__batch, variant: dynamic {task}__variant"
GRAPH = {
    "llm_outputs": {
        "deps": ["source_records by batch", "variant_specs by variant"],
        "partitions": BY_BOTH,
        "checks": ["error_share!", "every_record_accounted!", "invalid_share!", "keys_unique!"],
        "kinds": ["sql", "vllm"],
        "pools": ["gpu"],
    },
    "qa_samples": {
        "deps": ["validated_results"], "partitions": BY_BOTH, "checks": [], "kinds": ["sql"], "pools": [],
    },
    "quarantine": {
        "deps": ["llm_outputs"], "partitions": BY_BOTH, "checks": [], "kinds": ["sql"], "pools": [],
    },
    "run_reports": {
        "deps": ["qa_samples"], "partitions": BY_BOTH, "checks": [], "kinds": ["sql"], "pools": [],
    },
    "source_records": {
        "deps": [],
        "partitions": BY_BATCH,
        "checks": ["contract!", "lines_readable"],
        "kinds": ["parquet", "polars"],
        "pools": [],
    },
    "validated_results": {
        "deps": ["llm_outputs"],
        "partitions": BY_BOTH,
        "checks": ["agrees_with_completions!", "contract!", "label_distribution"],
        "kinds": ["pandera", "parquet", "pydantic"],
        "pools": [],
    },
    "variant_specs": {
        "deps": [], "partitions": BY_VARIANT, "checks": [], "kinds": ["jinja", "yaml"], "pools": [],
    },
}  # fmt: skip
"""What a task becomes. `!` marks a blocking check."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return load_project(Settings(home=tmp_path_factory.mktemp("home")))


def test_the_definitions_load_without_torch_or_vllm(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from batch_assets.definitions import defs\n"
        "loaded = defs()\n"
        "heavy = {'torch', 'vllm', 'transformers', 'tokenizers', 'safetensors', 'gguf'}\n"
        "keys = sorted(k.to_user_string() for k in loaded.resolve_asset_graph().get_all_asset_keys())\n"
        "print(json.dumps({'heavy': sorted(heavy & set(sys.modules)), 'keys': keys}))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BATCH_ASSETS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "BATCH_ASSETS_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found["heavy"] == []
    assert found["keys"] == [f"{task}/{name}" for task in TASKS for name in sorted(GRAPH)]
    assert not (tmp_path / "home").exists()  # loading opens nothing


def test_the_shipped_tasks_are_those_that_are_snapshotted(project: Project) -> None:
    assert tuple(sorted(project.tasks)) == TASKS


@pytest.mark.parametrize("task", TASKS)
def test_every_task_becomes_the_same_graph(project: Project, task: str) -> None:
    graph = project.definitions.resolve_asset_graph()
    keys = sorted(k for k in graph.get_all_asset_keys() if k.path[0] == task)
    found = {k.path[1]: _describe(graph, k) for k in keys}
    expected = {
        name: {**asset, "partitions": str(asset["partitions"]).format(task=task)} for name, asset in GRAPH.items()
    }
    assert found == expected


@pytest.mark.parametrize("task", TASKS)
def test_every_asset_tells_its_group_its_owners_and_its_grain(project: Project, task: str) -> None:
    graph = project.definitions.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        if key.path[0] == task:
            assert node.group_name == task
            assert list(node.owners) == list(project.tasks[task][0].owners) != []
            assert (node.description or "").startswith(("One row per", "One partition per"))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_jobs_and_a_sensor_that_is_on(project: Project, task: str) -> None:
    definitions = project.definitions
    jobs = {j.name for j in definitions.resolve_all_job_defs() if j.name.startswith(f"{task}__")}
    assert jobs == {f"{task}__launch_{name}" for name in ("sources", "outputs__smollm2_135m", "results")}
    sensor = definitions.resolve_sensor_def(f"{task}__sync_partitions")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


def test_a_task_that_asks_three_engines_shows_as_many_kinds_as_dagster_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = TempProject(tmp_path, monkeypatch)
    entries = ["m1:\n  engine: fake", "m2:\n  engine: openai\n  base_url: http://127.0.0.1:1/v1", "m3:\n  engine: vllm"]
    (project.defs / "models.yaml").write_text("".join(f"{entry}\n  weights: none\n" for entry in entries))
    task = project.folder / "task.py"
    task.write_text(task.read_text().replace('models=["m1"]', 'models=["m1", "m2", "m3"], description="Sort texts."'))
    node = project.load().definitions.resolve_asset_graph().get(dg.AssetKey(["t", "llm_outputs"]))
    assert node.kinds == {"fake", "openai", "sql"}
    for words in ("`m1`, `m2`, `m3`", "The task: Sort texts.", "`launch_missing_and_stale`", "`t__new_data`"):
        assert words in (node.description or "")


def _describe(graph: AssetGraph, key: dg.AssetKey) -> dict[str, object]:
    node = graph.get(key)
    checks = [node.assets_def.get_spec_for_check_key(c) for c in graph.asset_check_keys if c.asset_key == key]
    return {
        "deps": sorted(_describe_dep(graph, key, parent) for parent in node.parent_keys),
        "partitions": _describe_partitions(node.partitions_def),
        "checks": sorted(c.name + ("!" if c.blocking else "") for c in checks),
        "kinds": sorted(node.kinds),
        "pools": sorted(node.pools or ()),
    }


def _describe_dep(graph: AssetGraph, key: dg.AssetKey, parent: dg.AssetKey) -> str:
    mapping = graph.get(key).partition_mappings.get(parent)
    how = (
        f" by {mapping.partition_dimension_name}"
        if isinstance(mapping, dg.MultiToSingleDimensionPartitionMapping)
        else ""
    )
    return parent.path[1] + how


def _describe_partitions(definition: dg.PartitionsDefinition | None) -> str:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return ", ".join(f"{d.name}: {_describe_partitions(d.partitions_def)}" for d in definition.partitions_defs)
    assert isinstance(definition, dg.DynamicPartitionsDefinition)
    return f"dynamic {definition.name}"


def test_a_models_pool_and_tags_reach_the_step_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TempProject(tmp_path, monkeypatch)
    place.write("b1", ["r1"])
    gpu = "{nvidia.com/gpu: '2', node: large}"
    (place.defs / "models.yaml").write_text(
        f"m1:\n  weights: none\n  engine: fake\n  op_tags: {gpu}\n"
        "m2:\n  weights: none\n  engine: fake\n  pool: api\n  op_tags: {node: small}\n"
    )
    task = place.folder / "task.py"
    task.write_text(task.read_text().replace('models=["m1"]', 'models=["m1", "m2"]'))
    definitions = place.load().definitions
    found = {}
    for model in ("m1", "m2"):
        (node,) = definitions.resolve_job_def(job_name("t", Step.OUTPUTS, model)).nodes
        found[model] = (node.definition.pool, dict(node.definition.tags))
    assert found == {"m1": ("gpu", {"nvidia.com/gpu": "2", "node": "large"}), "m2": ("api", {"node": "small"})}
    asset = definitions.resolve_assets_def(dg.AssetKey(["t", "llm_outputs"]))
    assert (asset.op.pool, dict(asset.op.tags)) == ("gpu", {"nvidia.com/gpu": "2", "node": "small"})
