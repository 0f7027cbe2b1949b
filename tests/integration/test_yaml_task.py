"""A task said in YAML is the same task as one said in Python."""

from pathlib import Path

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.core.identity import variant_spec
from batch_assets.dagster.project import load_project
from batch_assets.settings import Settings
from batch_assets.sources.files import FileSource

MODELS = "made_up: {weights: fake, engine: fake}\n"
PROMPT = "---\ndescription: d\n---\n{{ text }}\n"
YAML = """\
type: batch_assets.dagster.llm_task.LlmTask
attributes:
  name: yaml_triage
  source: {files: "*.csv", key: id}
  output: batch_assets.defs.ticket_triage.task.Triage
  models: [made_up]
  rules: [batch_assets.defs.booking_fields.task.refuse_blank_names]
  thresholds: {max_error_share: 0.5}
"""


def write_defs(folder: Path, text: str) -> Settings:
    task = folder / "yaml_triage"
    (task / "prompts").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "models.yaml").write_text(MODELS)
    (task / "defs.yaml").write_text(text)
    (task / "prompts" / "v1.md").write_text(PROMPT)
    (task / "a.csv").write_text("id|text\n1|hello\n")
    return Settings(home=folder.parent / "home", defs=folder)


def test_a_task_in_yaml_has_everything_that_one_in_python_has(tmp_path: Path) -> None:
    project = load_project(write_defs(tmp_path / "yaml_defs_a", YAML))
    task, source = project.tasks["yaml_triage"]
    assert task.thresholds.max_error_share == 0.5
    assert [r.__name__ for r in task.rules] == ["refuse_blank_names"]
    assert [b.batch for b in source.list_batches()] == ["a"]
    assert variant_spec(task, task.variants["v1--made_up"], "model").request_spec
    keys = {s.key.to_user_string() for s in project.definitions.resolve_all_asset_specs()}
    assert "yaml_triage/llm_outputs" in keys


def test_settings_in_groups_are_those_of_the_spelling_before(tmp_path: Path) -> None:
    asking = "  asking: {ladder: {steps: 1}, required_fields: [text]}\n"
    operations = "  operations: {owners: [team:a]}\n"
    text = YAML.replace("rules: [", "acceptance:\n    rules: [").replace(
        "  thresholds", f"{asking}{operations}  thresholds"
    )
    task, _ = load_project(write_defs(tmp_path / "yaml_defs_groups", text)).tasks["yaml_triage"]
    assert [r.__name__ for r in task.rules] == ["refuse_blank_names"]
    assert (task.ladder.steps, task.required_fields, task.owners) == (1, ("text",), ("team:a",))


def test_a_source_in_yaml_has_every_field_of_one_in_python(tmp_path: Path) -> None:
    text = YAML.replace("key: id}", "key: id, encoding: cp1252, max_value_bytes: 99, delimiter: '|', settle_s: 3}")
    folder = tmp_path / "yaml_defs_source"
    _, source = load_project(write_defs(folder, text)).tasks["yaml_triage"]
    assert isinstance(source, FileSource)
    assert (source.encoding, source.max_value_bytes, source.delimiter, source.settle_s) == ("cp1252", 99, "|", 3.0)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("triage.task.Triage", "triage.task.Nothing", "output: 'batch_assets.defs.ticket_triage.task.Nothing'"),
        ("max_error_share: 0.5", "max_error_share: 2", "thresholds: max_error_share"),
        ("{files:", "{filez:", "source: one of files, table is wanted"),
        ("key: id}", "key: id, encoding: utf-99}", "encoding 'utf-99'"),
        ("key: id}", "key: id, max_value_bytes: 0}", "max_value_bytes 0"),
        ("models: [made_up]", "models: [unknown]", "unknown"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    folder = tmp_path / f"yaml_defs_{abs(hash(new))}"
    with pytest.raises(ConfigError) as caught:
        load_project(write_defs(folder, YAML.replace(old, new)))
    assert named in str(caught.value)
