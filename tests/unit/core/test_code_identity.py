"""What a judgement depends on is in its hash: nested and inherited models, helpers, constants; not where it lies."""

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest

from batch_assets.core.code_identity import read_code

MODULE = """
import re
from pydantic import BaseModel, field_validator

LIMIT = 3
NAMES = {"a", "b", "c"}
UNRELATED = 1

def is_short(text):
    return len(text) <= LIMIT

class Base(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, value):
        assert value in NAMES
        return value

class Part(BaseModel):
    note: str

class Answer(Base):
    parts: list[Part] | None

def rule(answer):
    return None if is_short(answer.name) else "long"

def other():
    return 1
"""
numbers = itertools.count()


def load(folder: Path, text: str) -> ModuleType:
    path = folder / f"module_{next(numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def read(folder: Path, text: str) -> list[tuple[str, str]]:
    module = load(folder, text)
    return read_code([module.Answer, module.rule])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ('"a", "b", "c"', '"a", "b"'),
        ("note: str", "note: int"),
        ("assert value in NAMES", "assert value not in NAMES"),
        ("len(text) <= LIMIT", "len(text) < LIMIT"),
        ('else "long"', 'else "too long"'),
    ],
)
def test_what_a_judgement_depends_on_changes_its_code(tmp_path: Path, old: str, new: str) -> None:
    assert read(tmp_path, MODULE) != read(tmp_path, MODULE.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("UNRELATED = 1", "UNRELATED = 2"), ("return 1\n", "return 2\n")])
def test_what_it_does_not_depend_on_changes_nothing(tmp_path: Path, old: str, new: str) -> None:
    assert read(tmp_path, MODULE) == read(tmp_path, MODULE.replace(old, new))
