"""What a task's folder brings of its own, in one module each: an engine, and a source. The code is that of the docs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from temp_project import TempProject

from batch_assets.cli.main import cli
from batch_assets.core.errors import ConfigError
from batch_assets.engines.models_file import load_models

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
YAML_TASK = """
type: batch_assets.dagster.llm_task.LlmTask
attributes:
  name: t
  output: my_defs.t.answers.Answer
  models: [m1]
  thresholds: {min_records: 1}
"""
ANSWERS = """
from pydantic import BaseModel


class Answer(BaseModel):
    label: str
    score: int
"""


def find_code(first_line: str, language: str = "python") -> str:
    """Return the block of the page that has this in its first line."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    [found] = [b for b in blocks if first_line in b.splitlines()[0]]
    return found


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """One batch of four records."""
    found = TempProject(quick_path, monkeypatch)
    found.write("b1", ["1", "2", "impossible", "4"])
    yield found


def add_engine(project: TempProject, **fields: str) -> None:
    """Write the page's engine into the task's folder, and the page's entry into models.yaml."""
    (project.folder / "echo.py").write_text(find_code("An engine that answers"))
    entry = find_code("engine: my_defs", "yaml").replace("my_defs", project.defs.name)
    for old, new in fields.items():
        entry = entry.replace(old, new)
    (project.defs / "models.yaml").write_text(entry)


def test_an_engine_of_ones_own_answers_a_task(project: TempProject) -> None:
    add_engine(project)
    assert project.run().requests_sent == 8  # four records, two prompts
    with project.open_platform() as platform:
        frame = platform.frames.read("t", "validated_results", "b1", "v1--m1")
    assert frame is not None
    assert set(frame["out_label"]) == {"b"}
    assert project.plan().is_empty


def test_a_field_of_ones_own_is_part_of_the_models_identity(project: TempProject) -> None:
    add_engine(project)
    project.run()
    assert project.plan().is_empty
    add_engine(project, **{"label: b": "label: c"})
    assert not project.plan().is_empty


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"label: b": "lable: b"}, "m1: label: Field required; lable: Extra inputs are not permitted"),
        ({"EchoEntry": "EchoEngine"}, "EchoEngine is no EngineEntry"),
        ({"EchoEntry": "Echo"}, "can't be imported"),
        ({"label: b": "label: b, mode: apart"}, "m1: mode: it is for engine: vllm"),
    ],
)
def test_what_is_wrong_in_its_entry_is_named(project: TempProject, entry: dict[str, str], words: str) -> None:
    add_engine(project, **entry)
    with pytest.raises(ConfigError, match=words):
        project.load()


def test_the_doctor_knows_an_engine_of_ones_own(project: TempProject) -> None:
    add_engine(project)
    told = CliRunner().invoke(cli, ["doctor"]).output
    assert f"engine: {project.defs.name}.t.echo.EchoEntry, which has no probe here" in " ".join(told.split())


def test_a_source_of_ones_own_is_said_in_yaml(project: TempProject) -> None:
    (project.folder / "words.py").write_text(find_code("A source of one batch"))
    (project.folder / "answers.py").write_text(ANSWERS)
    (project.folder / "task.py").unlink()
    text = (YAML_TASK + find_code("source: {type", "yaml")).replace("my_defs", project.defs.name)
    (project.folder / "defs.yaml").write_text(text)
    assert project.run().requests_sent == 4  # two words, two prompts
    assert project.plan().is_empty
    (project.folder / "defs.yaml").write_text(text.replace("two]", "two, three]"))
    assert not project.plan().is_empty


def test_an_engine_is_looked_for_when_models_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("m: {weights: w, engine: nowhere.to.be.Found}")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: m: engine: 'nowhere.to.be.Found' can't be imported")):
        load_models(path)
