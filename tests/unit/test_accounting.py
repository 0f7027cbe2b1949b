"""Ids without a row and rows without an id, found by joins that are made in parts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.pipeline.checks import llm_outputs
from batch_assets.pipeline.checks.llm_outputs import make_column, subtract

ids = st.sets(st.text(st.characters(codec="utf-8"), max_size=4), max_size=40)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> object:
    """Have joins of a few rows, as many as a million take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm_outputs, "ROWS_JOINED", 3)
        yield


@settings(deadline=None)
@given(ids, ids)
def test_what_is_left_is_what_sets_leave(these: set[str], those: set[str]) -> None:
    assert subtract(make_column(these), make_column(those)) == sorted(these - those)


def test_of_many_the_one_without_its_other_is_found() -> None:
    many = [f"r{n:05d}" for n in range(2000)]
    assert subtract(make_column(many), make_column(many[:1234] + many[1235:])) == ["r01234"]
    assert subtract(make_column(many), make_column(many)) == []
    assert subtract(make_column([]), make_column(many)) == []
    assert subtract(make_column(many), make_column([])) == many
