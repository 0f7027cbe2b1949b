"""docs/input.md names tests that are there, and every reason that an answer can be refused for."""

import re
from pathlib import Path

from batch_assets.core.attempts import ErrorKind

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "input.md").read_text(encoding="utf-8")


def test_each_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:unit|contract|integration)/[a-z_/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    absent = [
        f"{path}::{function}"
        for path, function in named
        if f"def {function}" not in (ROOT / "tests" / path).read_text(encoding="utf-8")
    ]
    assert absent == []


def test_each_reason_for_an_invalid_answer_is_on_the_page() -> None:
    kinds = list(ErrorKind)
    invalid = kinds[kinds.index(ErrorKind.TRUNCATED) :]
    assert [kind for kind in invalid if f"`{kind}`" not in PAGE] == []
