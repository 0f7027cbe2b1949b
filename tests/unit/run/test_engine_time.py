"""EngineTimeMeter: every second in which the engine was busy is somebody's, and only once."""

import pytest
from clocks import Clock
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.run.engine_time import EngineTimeMeter


def test_a_request_alone_uses_all_of_its_time() -> None:
    clock = Clock()
    share = EngineTimeMeter(clock)
    clock.at += 5
    start = share.enter()
    clock.at += 3
    assert share.leave() - start == pytest.approx(3)


def test_two_requests_at_once_use_half_each() -> None:
    clock = Clock()
    share = EngineTimeMeter(clock)
    one = share.enter()
    clock.at += 2
    other = share.enter()
    clock.at += 4
    assert share.leave() - one == pytest.approx(2 + 4 / 2)
    clock.at += 1
    assert share.leave() - other == pytest.approx(4 / 2 + 1)


def test_time_without_a_request_is_nobodys() -> None:
    clock = Clock()
    share = EngineTimeMeter(clock)
    start = share.enter()
    clock.at += 1
    first = share.leave() - start
    clock.at += 100
    start = share.enter()
    clock.at += 1
    assert first + share.leave() - start == pytest.approx(2)


steps = st.lists(st.tuples(st.floats(0, 10), st.none() | st.integers(0, 30)), max_size=60)


@settings(deadline=None, max_examples=150)
@given(steps)
def test_all_shares_add_up_to_the_busy_time(schedule: list[tuple[float, int | None]]) -> None:
    """A step lets time pass; then a request comes in (None), or one of those inside goes out."""
    clock = Clock()
    share = EngineTimeMeter(clock)
    inside: list[tuple[float, float]] = []
    shares: list[float] = []
    busy = 0.0

    def leave(which: int) -> None:
        started, came = inside.pop(which)
        used = share.leave() - started
        assert -1e-9 <= used <= clock.at - came + 1e-9
        shares.append(used)

    for wait, going in [*schedule, *[(1.0, 0)] * len(schedule)]:
        clock.at += wait
        busy += wait if inside else 0
        if going is None:
            inside.append((share.enter(), clock.at))
        elif inside:
            leave(going % len(inside))
    assert inside == []
    assert sum(shares) == pytest.approx(busy)
