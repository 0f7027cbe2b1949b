"""The retries of a run are paid from one budget, which answers fill."""

import pytest
from clocks import Clock

from batch_assets.run.retry_budget import CAPACITY, PER_SECOND, RetryBudget


@pytest.fixture
def budget(clock: Clock) -> RetryBudget:
    return RetryBudget(clock)


def spend(budget: RetryBudget) -> int:
    paid = 0
    while budget.take():
        paid += 1
    return paid


def test_it_starts_full_and_has_an_end(budget: RetryBudget) -> None:
    assert spend(budget) == CAPACITY
    assert not budget.take()


def test_two_answers_pay_for_one_retry(budget: RetryBudget) -> None:
    spend(budget)
    budget.record_answer()
    assert not budget.take()
    budget.record_answer()
    assert (budget.take(), budget.take()) == (True, False)


def test_without_any_answer_some_are_paid_by_the_second_so_that_there_is_no_standstill(
    budget: RetryBudget, clock: Clock
) -> None:
    spend(budget)
    clock.at += 1
    assert spend(budget) == PER_SECOND


def test_it_says_how_long_the_next_one_waits(budget: RetryBudget, clock: Clock) -> None:
    assert budget.wait_s() == 0
    spend(budget)
    assert budget.wait_s() == pytest.approx(1 / PER_SECOND)
    clock.at += budget.wait_s() + 1e-9
    assert budget.take()


def test_it_never_holds_more_than_at_the_start(budget: RetryBudget, clock: Clock) -> None:
    for _ in range(1000):
        budget.record_answer()
    clock.at += 1e6
    assert spend(budget) == CAPACITY


def test_a_server_that_fails_half_of_all_requests_gets_a_bounded_share_of_retries(
    budget: RetryBudget, clock: Clock
) -> None:
    spend(budget)
    sent = retries = 0
    for n in range(10_000):  # 1,000 requests a second
        clock.at += 0.001
        sent += 1
        retries += budget.take()
        if n % 2:
            budget.record_answer()
    assert retries <= sent * 0.5 / 2 + 10 * PER_SECOND + 1
