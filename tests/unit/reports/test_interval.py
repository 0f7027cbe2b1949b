"""Wilson's interval of a share."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.reports.interval import wilson_interval


@pytest.mark.parametrize(
    ("hits", "trials", "z", "low", "high"),
    [
        (0, 10, 1.96, 0.0, 0.277539),
        (10, 10, 1.96, 0.722461, 1.0),
        (81, 263, 1.959964, 0.255288, 0.366196),  # Newcombe, 1998, table I, method 3
        (15, 148, 1.959964, 0.062387, 0.160482),  # the same
        (60, 60, 3.0, 60 / 69, 1.0),
    ],
)
def test_the_bounds_are_those_of_the_literature(hits: int, trials: int, z: float, low: float, high: float) -> None:
    assert wilson_interval(hits, trials, z) == pytest.approx((low, high), abs=5e-5)


def test_of_no_trials_nothing_is_known() -> None:
    assert wilson_interval(0, 0, 3.0) == (0.0, 1.0)


@settings(deadline=None)
@given(st.integers(1, 5000), st.data(), st.floats(0.5, 4))
def test_the_bounds_are_where_the_score_test_turns(trials: int, data: st.DataObject, z: float) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = wilson_interval(hits, trials, z)
    assert 0 <= low <= hits / trials + 1e-12
    assert hits / trials - 1e-12 <= high <= 1
    for bound in (low, high):
        if 1e-9 < bound < 1 - 1e-9:
            score = abs(hits / trials - bound) / math.sqrt(bound * (1 - bound) / trials)
            assert score == pytest.approx(z, rel=1e-6)
