"""A task's settings in groups, and in the spelling of task folders made before version 0.2: the same task."""

from pathlib import Path

import pytest
from temp_project import TempProject

from batch_assets.core.errors import ConfigError
from batch_assets.core.identity import variant_spec
from batch_assets.core.tasks import Task

BEFORE = """
        rules=[refuse_c], rules_version="2", required_fields=["text"], retry=RetryPolicy(base_s=0, cap_s=0),
        ladder=Ladder(steps=1), qa_sample_size=2, description="d", owners=["team:a"], nightly=Nightly(at="03:00"),
"""
GROUPED = """
        acceptance=Acceptance(rules=[refuse_c], rules_version="2"),
        asking=Asking(required_fields=["text"], retry=RetryPolicy(base_s=0, cap_s=0), ladder=Ladder(steps=1)),
        operations=Operations(qa_sample_size=2, description="d", owners=["team:a"], nightly=Nightly(at="03:00")),
"""
TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.components.llm_task import LlmTask
from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.task_settings import Acceptance, Asking, Operations
from batch_assets.core.tasks import Nightly
from batch_assets.sources.files import FileSource


class Answer(BaseModel):
    label: Literal["a", "b", "c"]
    score: int


def refuse_c(answer):
    return "c" if answer.label == "c" else None


@dg.component_instance
def t(_context) -> LlmTask:
    return LlmTask(name="t", source=FileSource("files/*.csv"), output=Answer, models=["m1"], SETTINGS)
"""


def load(root: Path, monkeypatch: pytest.MonkeyPatch, settings: str) -> Task:
    root.mkdir()
    project = TempProject(root, monkeypatch)
    project.write("b1", ["1"])
    (project.folder / "task.py").write_text(TASK.replace("SETTINGS", settings))
    return project.bind()[0]


def test_both_spellings_are_one_task_of_one_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, grouped = (load(tmp_path / name, monkeypatch, s) for name, s in (("b", BEFORE), ("g", GROUPED)))
    names = (
        "rules_version",
        "required_fields",
        "retry",
        "ladder",
        "qa_sample_size",
        "description",
        "owners",
        "nightly",
    )
    assert {n: getattr(before, n) for n in names} == {n: getattr(grouped, n) for n in names}
    assert [r.__name__ for r in before.rules] == [r.__name__ for r in grouped.rules] == ["refuse_c"]
    assert before.ladder.steps == 1
    specs = [variant_spec(t, t.variants["v1--m1"], "model") for t in (before, grouped)]
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("rules=[], acceptance=Acceptance(rules=[])", "task t: rules: given by itself and in acceptance"),
        ("asking=3", "task t: asking: expected Asking(…)"),
        ("asking=Asking(laddr=3)", "laddr"),
        ("operations=Operations(qa_sample_size=True)", "qa_sample_size"),
    ],
)
def test_a_wrong_group_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "x", monkeypatch, settings)
    assert named in str(caught.value)
