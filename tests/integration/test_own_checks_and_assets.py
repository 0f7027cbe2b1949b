"""What a task brings of its own, in one place each: a check, and an asset after validated_results."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from factories import BAD, ScriptedEngine
from temp_project import RESULTS, TempProject, find_checks, find_held

from batch_assets.core.errors import ConfigError
from batch_assets.core.steps import Step

P = "b1|v1--m1"

# The examples of docs/extending.md, word for word: test_the_page_shows_what_is_tested holds them to it.
CHECK = '''\
def few_are_c(checked: CheckedResults) -> Finding:
    """Hold the share of one label to a limit."""
    frame = checked.scan().select((pl.col("out_label") == "c").mean().alias("share")).collect()
    share = frame["share"][0] or 0.0
    return Finding(passed=share <= 0.5, figures={"share": share, "limit": 0.5})


FEW_ARE_C = Check(
    asset="validated_results",
    name="few_are_c",
    description="At most half of the answers are c.",
    is_blocking=True,
    run=few_are_c,
)
'''
ASSET = '''\
"""label_counts [batch × variant]: how often each label was answered."""

import dagster as dg

from batch_assets.dagster.partitions import output_partitions


@dg.asset(
    key=["t", "label_counts"],
    deps=[dg.AssetKey(["t", "validated_results"])],
    partitions_def=output_partitions("t"),
    required_resource_keys={"platform"},
    group_name="t",
)
def label_counts(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Count the labels of one partition."""
    batch, _, variant = context.partition_key.partition("|")
    frame = context.resources.platform.frames.read("t", "validated_results", batch, variant)
    counts = dict(frame["out_label"].value_counts().iter_rows())
    return dg.MaterializeResult(metadata={"counts": counts})
'''


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """One batch of four records."""
    found = TempProject(quick_path, monkeypatch)
    found.write("b1", ["1", "2", "3", "4"])
    found.use(ScriptedEngine())
    yield found


def add_check(project: TempProject, check: str = CHECK, name: str = "FEW_ARE_C") -> None:
    """Write a check into task.py, and name it."""
    path = project.folder / "task.py"
    text = path.read_text().replace("class Answer(", f"{check}\n\nclass Answer(")
    imports = (
        "import polars as pl\nfrom batch_assets.core.checks import Check, Finding\n"
        "from batch_assets.pipeline.checks.validated_results import CheckedResults\n"
    )
    text = text.replace("import dagster as dg\n", f"import dagster as dg\n{imports}")
    path.write_text(text.replace('models=["m1"],', f'models=["m1"], checks=[{name}],'))


def test_a_check_of_ones_own_is_shown_and_passes(project: TempProject) -> None:
    add_check(project)
    project.run(variant="v1--m1")
    done = project.launch(Step.RESULTS, partitions=[P])
    assert ("validated_results", "few_are_c", P, True) in find_checks(done)


def test_a_check_of_ones_own_that_blocks_holds_results_back(project: TempProject) -> None:
    add_check(project)
    project.use(ScriptedEngine(default='{"label":"c","score":1}'))
    summary = project.run(variant="v1--m1")
    assert summary.held_back == f"{P}: validated_results.few_are_c fails"
    assert [(c.check, c.metadata["share"]) for c in summary.failed_checks] == [("few_are_c", 1.0)]
    with project.open_platform() as platform:
        assert platform.frames.read("t", "validated_results", "b1", "v1--m1") is None


def test_a_check_of_ones_own_can_be_a_gate_of_the_outputs(project: TempProject) -> None:
    gate = """
OUTPUTS = Check(
    asset="llm_outputs", name="all_ok", description="Every answer is ok.", is_blocking=True,
    run=lambda checked: Finding(passed=checked.report.ok == checked.report.total),
)
"""
    add_check(project, gate, "OUTPUTS")
    project.use(ScriptedEngine({"text of 1": BAD}))
    project.run(variant="v1--m1")
    assert find_held(project.launch(Step.RESULTS, partitions=[P])) == f"{P}: all_ok fails"


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("len", "is no Check"),
        ('Check(asset="qa_samples", name="a", description="", run=len)', "use one of source_records, llm_outputs"),
        ('Check(asset="llm_outputs", name="a b", description="", run=len)', "use letters, digits and _"),
        ('Check(asset="llm_outputs", name="error_share", description="", run=len)', "has a check of that name already"),
    ],
)
def test_a_check_that_cant_be_used_is_refused_when_the_definitions_load(
    project: TempProject, check: str, words: str
) -> None:
    add_check(project, "", check)
    with pytest.raises(ConfigError, match=words):
        project.load()


def test_an_asset_of_ones_own_follows_the_results(project: TempProject) -> None:
    (project.folder / "label_counts.py").write_text(ASSET)
    done = project.materialize(["llm_outputs", *RESULTS, "label_counts"], partition=P)
    assert done.success
    (event,) = [e for e in done.get_asset_materialization_events() if e.asset_key.path[-1] == "label_counts"]
    assert event.materialization.metadata["counts"].value == {"a": 4}
    graph = project.load().definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["t", "label_counts"])).parent_keys == {dg.AssetKey(["t", "validated_results"])}


def test_the_page_shows_what_is_tested() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    assert CHECK in page
    assert ASSET in page
