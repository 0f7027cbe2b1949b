"""Tasks: their variants, their output schema, and the text of their rules."""

import functools
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.core.prompts import load_prompts
from batch_assets.core.tasks import Rule, Task, Thresholds


class Answer(BaseModel):
    label: str


def refuse_x(answer: Answer) -> str | None:
    """A rule."""
    return "x" if answer.label == "x" else None


def make_task(
    folder: Path, prompts: tuple[str, ...] = ("v1",), models: tuple[str, ...] = ("m",), **fields: Any
) -> Task:
    for prompt_ver in prompts:
        (folder / f"{prompt_ver}.md").write_text("---\ndescription: d\n---\n{{ text }}\n")
    entries = {m: ModelEntry(model_id=m, weights="w", engine="fake") for m in models}
    output = fields.pop("output", Answer)
    return Task(name="t", output=output, prompts=load_prompts(folder, output), models=entries, **fields)


def test_the_variants_are_all_prompts_by_all_models_in_their_order(tmp_path: Path) -> None:
    task = make_task(tmp_path, ("v1", "v2"), ("small", "large"))
    assert list(task.variants) == ["v1--small", "v1--large", "v2--small", "v2--large"]
    assert all(v.key == key for key, v in task.variants.items())
    assert {(v.prompt.prompt_ver, v.model.model_id) for v in task.variants.values()} == {
        (p, m) for p in task.prompts for m in task.models
    }


def test_a_variant_that_no_key_can_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="separates prompt and model"):
        _ = make_task(tmp_path, ("a--b",)).variants


def test_the_text_of_the_rules_is_their_source(tmp_path: Path) -> None:
    text = make_task(tmp_path, rules=(refuse_x,), rules_version="7").rules_text
    assert "class Answer(BaseModel)" in str(text["code"])
    assert text["version"] == "7"
    assert "'refuse_x'" in str(text["rules"])
    assert "answer.label ==" in str(text["code"])


def compile_rule() -> Rule:
    """Return a rule without a source that can be read, as a shell or a packed program makes them."""
    made: dict[str, Any] = {}
    exec("def check(answer):\n    return None", made)
    return made["check"]


def test_a_rule_whose_source_cannot_be_read_needs_a_version(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task t: the source of .* can't be read.*set rules_version"):
        _ = make_task(tmp_path, rules=(compile_rule(),)).rules_text


def test_a_rule_whose_source_cannot_be_read_goes_by_its_version(tmp_path: Path) -> None:
    text = make_task(tmp_path, rules=(compile_rule(),), rules_version="7").rules_text
    assert text["rules"] == ["check"]
    assert text["version"] == "7"


def test_a_model_whose_source_cannot_be_read_needs_a_version(tmp_path: Path) -> None:
    made: dict[str, Any] = {"BaseModel": BaseModel, "__name__": "builtins_of_a_test"}
    exec("class Made(BaseModel):\n    label: str", made)
    with pytest.raises(ConfigError, match="set rules_version"):
        _ = make_task(tmp_path, output=made["Made"]).rules_text


@pytest.mark.parametrize("version", ["", "7"])
def test_a_rule_without_a_name_is_refused(tmp_path: Path, version: str) -> None:
    partial = functools.partial(refuse_x)
    with pytest.raises(ConfigError, match="task t: a rule needs a name"):
        _ = make_task(tmp_path, rules=(partial,), rules_version=version).rules_text


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_error_share": 1.5},
        {"max_invalid_share": -0.1},
        {"min_records": 0},
        {"max_eror_share": 0.1},
        {"max_label_shift": 2},
    ],
)
def test_thresholds_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Thresholds.model_validate(wrong)
