"""docs/guarantees.md and the guards it is made from."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def guards() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("break_each", ROOT / "tests" / "guards" / "break_each.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_guard_names_a_line_that_is_there_once_and_a_test_that_is_there(guards: ModuleType) -> None:
    found = guards.load_guards()
    assert found
    assert [p for g in found if (p := g.find_problem())] == []


def test_no_guard_breaks_its_line_into_itself(guards: ModuleType) -> None:
    assert [g.fault for g in guards.load_guards() if g.line == g.broken] == []


def test_the_page_is_made_from_the_guards(guards: ModuleType) -> None:
    page = guards.TABLE.read_text(encoding="utf-8")
    table = guards.render_table(guards.load_guards())
    assert guards.fill_in(page, table) == page, "run: python tests/guards/break_each.py --write"
