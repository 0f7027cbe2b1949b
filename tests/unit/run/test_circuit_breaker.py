"""The breaker: closed, open, half-open; whom it charges; when it stops a run. By a clock of its own."""

import random

import pytest
from clocks import Clock
from factories import pass_later

from batch_assets.core.errors import EngineDead, RequestFailed
from batch_assets.run.circuit_breaker import (
    FEW_LEFT,
    LONGEST_PAUSE_S,
    LOST_CONNECTIONS,
    PROBES_TO_CLOSE,
    SLOW_FAILURES,
    SPELL_FAILURES,
    CircuitBreaker,
)

LIMIT_S = 60.0


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(LIMIT_S, 1.0, clock)


def fail_times(breaker: CircuitBreaker, times: int, kind: str = "server_error") -> list[bool]:
    return [breaker.record_failure(object(), pass_later(kind)) for _ in range(times)]


def probe(breaker: CircuitBreaker, clock: Clock, failure: RequestFailed | None = None) -> float:
    """Wait for the next probe, send it, let it answer or fail; return how long the pause was."""
    waited_s = breaker.pause_s()
    assert waited_s is not None
    clock.at += waited_s
    assert breaker.free(64, 0) == 1
    ask = object()
    breaker.record_sent(ask)
    assert (breaker.free(64, 0), breaker.pause_s()) == (0, 0.0), "one at a time"
    if failure is None:
        breaker.record_answer(ask)
    else:
        assert breaker.record_failure(ask, failure) is False
    return waited_s


def test_a_closed_one_lets_the_whole_window_through(breaker: CircuitBreaker) -> None:
    assert (breaker.free(64, 0), breaker.free(64, 60), breaker.free(64, 70)) == (64, 4, 0)
    assert (breaker.is_open, breaker.pause_s()) == (False, None)


def test_failures_in_a_row_open_it_and_the_last_of_them_is_charged_to_nobody(breaker: CircuitBreaker) -> None:
    assert fail_times(breaker, SPELL_FAILURES) == [True] * (SPELL_FAILURES - 1) + [False]
    assert breaker.is_open
    assert breaker.free(64, 0) == 0


@pytest.mark.parametrize("kind", ["rate_limited", "connection", "dropped"])
def test_what_a_record_has_little_to_do_with_is_charged_to_nobody(breaker: CircuitBreaker, kind: str) -> None:
    assert fail_times(breaker, 4, kind) == [False] * 4


@pytest.mark.parametrize("kind", ["connection", "dropped"])
def test_few_lost_connections_open_it(breaker: CircuitBreaker, kind: str) -> None:
    fail_times(breaker, LOST_CONNECTIONS - 1, kind)
    assert not breaker.is_open
    fail_times(breaker, 1, kind)
    assert breaker.is_open


def test_few_failures_that_take_long_open_it(breaker: CircuitBreaker, clock: Clock) -> None:
    for n in range(SLOW_FAILURES):
        assert not breaker.is_open, n
        fail_times(breaker, 1, "timeout")
        clock.at += 10
    assert breaker.is_open


def test_a_server_that_fails_four_in_five_opens_it_and_one_that_fails_one_in_ten_never_does(clock: Clock) -> None:
    rng = random.Random(1)
    sick, well = CircuitBreaker(LIMIT_S, 1.0, clock), CircuitBreaker(LIMIT_S, 1.0, clock)
    for _ in range(400):
        for breaker, share in ((sick, 0.8), (well, 0.1)):
            if breaker.is_open:
                continue
            if rng.random() < share:
                fail_times(breaker, 1)
            else:
                breaker.record_answer(object())
    assert (sick.is_open, well.is_open) == (True, False)


def test_pauses_grow_with_each_failed_probe_up_to_a_limit(breaker: CircuitBreaker, clock: Clock) -> None:
    fail_times(breaker, SPELL_FAILURES)
    pauses = [probe(breaker, clock, pass_later()) for _ in range(7)]
    assert pauses == [1, 2, 4, 8, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_servers_retry_after_makes_the_pause_longer(breaker: CircuitBreaker, clock: Clock) -> None:
    fail_times(breaker, SPELL_FAILURES)
    later = RequestFailed("rate_limited", "x", is_passing=True, retry_after_s=30)
    probe(breaker, clock, later)
    assert breaker.pause_s() == 30


def test_answers_in_a_row_close_it_with_no_pause_between_and_the_window_is_whole_again(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail_times(breaker, SPELL_FAILURES)
    assert [probe(breaker, clock) for _ in range(PROBES_TO_CLOSE)] == [1, 0, 0]
    assert (breaker.is_open, breaker.free(64, 0)) == (False, 64)
    assert fail_times(breaker, 1) == [True], "and records answer for themselves again"


def test_a_failure_between_two_answers_keeps_it_open(breaker: CircuitBreaker, clock: Clock) -> None:
    fail_times(breaker, SPELL_FAILURES)
    for _ in range(5):
        probe(breaker, clock)
        probe(breaker, clock)
        probe(breaker, clock, pass_later())
        assert breaker.is_open


def test_answers_of_what_was_in_flight_before_close_it_too(breaker: CircuitBreaker) -> None:
    fail_times(breaker, SPELL_FAILURES)
    for _ in range(PROBES_TO_CLOSE):
        breaker.record_answer(object())
    assert not breaker.is_open


def test_what_was_in_flight_before_and_fails_is_charged_to_nobody_and_lengthens_no_pause(
    breaker: CircuitBreaker,
) -> None:
    fail_times(breaker, SPELL_FAILURES)
    before = breaker.pause_s()
    assert fail_times(breaker, 30) == [False] * 30
    assert breaker.pause_s() == before


@pytest.mark.parametrize("kind", ["server_error", "timeout", "connection", "rate_limited"])
def test_a_server_that_answers_nothing_stops_the_run_within_a_minute_of_its_first_failure(
    breaker: CircuitBreaker, clock: Clock, kind: str
) -> None:
    fail_times(breaker, SPELL_FAILURES, kind)
    stopped_after_s = None
    for second in range(120):
        clock.at = 1000.0 + second
        if breaker.pause_s() == 0:
            probe(breaker, clock, pass_later(kind))
        try:
            breaker.check(None)
        except EngineDead as e:
            assert "no answer in 60 s" in str(e)
            assert f"{kind}, for now" in str(e)
            stopped_after_s = second
            break
    assert stopped_after_s == LIMIT_S


def test_a_closed_one_stops_nothing_however_long_ago_the_last_answer_was(breaker: CircuitBreaker, clock: Clock) -> None:
    fail_times(breaker, 4)
    clock.at += 1e6
    breaker.check(0)


def test_a_run_isnt_stopped_before_some_probes_have_failed(breaker: CircuitBreaker, clock: Clock) -> None:
    fail_times(breaker, SPELL_FAILURES)
    clock.at += 1000
    breaker.check(None)
    probe(breaker, clock, pass_later())
    probe(breaker, clock, pass_later())
    breaker.check(None)
    probe(breaker, clock, pass_later())
    with pytest.raises(EngineDead):
        breaker.check(None)


def test_a_server_that_answers_now_and_then_stops_the_run_after_ten_times_the_limit(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail_times(breaker, SPELL_FAILURES)
    opened_at = clock.at
    with pytest.raises(EngineDead, match="most requests have failed for 6"):
        while clock.at < opened_at + 3000:
            probe(breaker, clock, pass_later())
            probe(breaker, clock, pass_later())
            probe(breaker, clock)
            breaker.check(None)
    assert clock.at - opened_at >= 10 * LIMIT_S


@pytest.mark.parametrize(("retry_after_s", "is_stopped"), [(590, False), (610, True)])
def test_a_server_that_makes_us_wait_for_too_long_stops_the_run(
    breaker: CircuitBreaker, retry_after_s: float, is_stopped: bool
) -> None:
    fail_times(breaker, SPELL_FAILURES - 1)
    breaker.record_failure(object(), RequestFailed("rate_limited", "x", is_passing=True, retry_after_s=retry_after_s))
    if is_stopped:
        with pytest.raises(EngineDead, match="the server asks for a pause of 610 s"):
            breaker.check(None)
    else:
        breaker.check(None)


def test_a_run_with_nothing_left_to_ask_is_never_stopped(breaker: CircuitBreaker, clock: Clock) -> None:
    make_silent(breaker, clock, "connection")
    breaker.check(0)


def make_silent(breaker: CircuitBreaker, clock: Clock, kind: str) -> None:
    fail_times(breaker, SPELL_FAILURES, kind)
    for _ in range(7):
        probe(breaker, clock, pass_later(kind))
    clock.at += LIMIT_S


@pytest.mark.parametrize("kind", ["timeout", "dropped"])
def test_the_last_few_records_of_a_run_that_had_answers_are_to_blame_themselves(
    breaker: CircuitBreaker, clock: Clock, kind: str
) -> None:
    breaker.record_answer(object())
    make_silent(breaker, clock, kind)
    breaker.check(FEW_LEFT)
    assert not breaker.is_open
    assert fail_times(breaker, 3 * FEW_LEFT, kind) == [True] * 3 * FEW_LEFT


@pytest.mark.parametrize(
    ("left", "kind", "has_answered"),
    [
        (FEW_LEFT + 1, "timeout", True),
        (None, "timeout", True),
        (1, "timeout", False),
        (1, "connection", True),
        (1, "rate_limited", True),
    ],
)
def test_otherwise_the_server_is(
    breaker: CircuitBreaker, clock: Clock, left: int | None, kind: str, has_answered: bool
) -> None:
    if has_answered:
        breaker.record_answer(object())
    make_silent(breaker, clock, kind)
    with pytest.raises(EngineDead):
        breaker.check(left)


def test_a_server_that_vanishes_while_the_last_few_are_blamed_is_seen(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_answer(object())
    make_silent(breaker, clock, "timeout")
    breaker.check(3)
    make_silent(breaker, clock, "connection")
    with pytest.raises(EngineDead):
        breaker.check(3)
