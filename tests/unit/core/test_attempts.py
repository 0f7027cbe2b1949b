"""Retry modes and backoff."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batch_assets.core.attempts import ErrorKind, RetryMode, RetryPolicy, Status


@pytest.mark.parametrize(
    ("mode", "asked_again"),
    [
        (RetryMode.NONE, set[Status]()),
        (RetryMode.ERRORS, {Status.ERROR}),
        (RetryMode.FAILED, {Status.ERROR, Status.INVALID}),
        (RetryMode.ALL, {Status.ERROR, Status.INVALID, Status.OK}),
    ],
)
def test_each_retry_mode_asks_its_own_states_again(mode: RetryMode, asked_again: set[Status]) -> None:
    assert {status for status in Status if mode.selects(status)} == asked_again


@settings(deadline=None)
@given(
    st.integers(1, 10),
    st.floats(0, 100),
    st.floats(0, 100),
    st.none() | st.floats(0, 1000),
    st.integers(0, 2**32),
)
def test_a_wait_is_bounded_by_its_step_its_cap_and_the_server(
    attempt: int, base_s: float, cap_s: float, retry_after_s: float | None, seed: int
) -> None:
    policy = RetryPolicy(base_s=base_s, cap_s=cap_s)
    waited = policy.backoff_s(attempt, random.Random(seed), retry_after_s)
    full = min(cap_s, base_s * 2 ** (attempt - 1))
    assert max(full / 2, retry_after_s or 0) <= waited <= max(full, retry_after_s or 0)


def test_waits_double_until_the_cap() -> None:
    policy = RetryPolicy(base_s=1, cap_s=8, max_attempts=10)
    longest = [max(policy.backoff_s(n, random.Random(seed)) for seed in range(200)) for n in range(1, 7)]
    assert longest == pytest.approx([1, 2, 4, 8, 8, 8], rel=0.05)


def test_waits_are_jittered_over_half_of_their_range() -> None:
    policy = RetryPolicy(base_s=1, cap_s=8)
    waits = [policy.backoff_s(1, random.Random(seed)) for seed in range(500)]
    assert min(waits) < 0.55
    assert max(waits) > 0.95
    assert sum(waits) / len(waits) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"max_attempts": 11}, {"base_s": -1}, {"tries": 3}])
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        RetryPolicy.model_validate(wrong)


def test_the_reasons_have_names_of_their_own() -> None:
    assert len({kind.value for kind in ErrorKind}) == len(ErrorKind)
    assert all(len(kind.value) <= 20 for kind in ErrorKind)
