"""SendQueue: equal questions are asked once, suspects last and alone, and no ask is ever lost."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from clocks import Clock
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.models import Sampling
from batch_assets.core.requests import Request
from batch_assets.run.partition_run import Ask
from batch_assets.run.retry_budget import RetryBudget
from batch_assets.run.send_queue import SendQueue

PARTITION: Any = object()
"""The queue never looks at it."""


def make_ask(item_id: str, key: str | None = None, *, is_suspect: bool = False) -> Ask:
    request = Request(request_key=key or item_id, messages=(), schema={}, sampling=Sampling())
    return Ask(
        partition=PARTITION,
        item_id=item_id,
        input_hash="",
        base=request,
        request=request,
        attempts_before=0,
        is_suspect=is_suspect,
    )


def names(asks: list[Ask]) -> list[str]:
    return [ask.item_id for ask in asks]


@pytest.fixture
def queue(clock: Clock) -> SendQueue:
    return SendQueue(clock=clock)


def test_asks_are_sent_in_their_order_as_far_as_there_is_room(queue: SendQueue) -> None:
    for item_id in "abcde":
        queue.add(make_ask(item_id))
    assert (len(queue), queue.ready) == (5, 5)
    assert names(queue.choose(2, [], is_last=False)) == ["a", "b"]
    assert names(queue.choose(0, [], is_last=True)) == []
    assert names(queue.choose(9, [], is_last=True)) == ["c", "d", "e"]
    assert queue.choose(9, [], is_last=True) == []
    assert len(queue) == 0


# Equal questions


def test_of_equal_questions_the_first_is_asked_and_the_others_take_its_answer(queue: SendQueue) -> None:
    for item_id, key in [("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")]:
        queue.add(make_ask(item_id, key))
    leader, other = queue.choose(9, [], is_last=True)
    assert names([leader, other]) == ["a", "c"]
    assert names(queue.settle(leader, is_shared=True)) == ["b", "d"]
    assert queue.settle(other, is_shared=True) == []
    assert len(queue) == 0


def test_a_question_follows_one_that_is_in_flight_or_waits_for_its_backoff(queue: SendQueue, clock: Clock) -> None:
    queue.add(make_ask("a", "x"))
    [leader] = queue.choose(9, [], is_last=False)
    queue.add(make_ask("b", "x"))
    queue.delay(leader, 5)
    queue.add(make_ask("c", "x"))
    assert queue.choose(9, [], is_last=True) == []
    clock.at += 5
    assert queue.choose(9, [], is_last=True) == [leader]
    assert names(queue.settle(leader, is_shared=True)) == ["b", "c"]


def test_where_the_answer_is_not_shared_the_first_follower_asks_and_leads_the_others(queue: SendQueue) -> None:
    for item_id in "abc":
        queue.add(make_ask(item_id, "x"))
    [leader] = queue.choose(9, [], is_last=True)
    assert queue.settle(leader, is_shared=False) == []
    assert leader.followers == []
    [heir] = queue.choose(9, [], is_last=True)
    assert heir.item_id == "b"
    queue.add(make_ask("d", "x"))
    assert names(queue.settle(heir, is_shared=True)) == ["c", "d"]


def test_a_question_that_is_settled_can_be_asked_again(queue: SendQueue) -> None:
    queue.add(make_ask("a", "x"))
    [first] = queue.choose(9, [], is_last=True)
    assert queue.settle(first, is_shared=True) == []
    queue.add(make_ask("b", "x"))
    assert names(queue.choose(9, [], is_last=True)) == ["b"]


# Backoff


def test_a_delayed_ask_holds_no_place_and_comes_back_first(queue: SendQueue, clock: Clock) -> None:
    for item_id in "abcd":
        queue.add(make_ask(item_id))
    a, b = queue.choose(2, [], is_last=False)
    queue.delay(b, 2)
    queue.delay(a, 1)
    assert queue.next_due_s() == 1
    assert queue.ready == 2
    assert names(queue.choose(1, [], is_last=False)) == ["c"]
    clock.at += 3
    assert queue.next_due_s() == 0
    assert names(queue.choose(9, [], is_last=False)) == ["a", "b", "d"]
    assert queue.next_due_s() is None


def test_an_ask_is_not_sent_before_its_backoff_is_over(queue: SendQueue, clock: Clock) -> None:
    queue.add(make_ask("a"))
    [ask] = queue.choose(9, [], is_last=True)
    queue.delay(ask, 1)
    clock.at += 0.999
    assert queue.choose(9, [], is_last=True) == []
    assert len(queue) == 1
    clock.at += 0.002
    assert queue.choose(9, [], is_last=True) == [ask]


# Suspects


def test_suspects_are_sent_when_nothing_else_is_left_and_one_at_a_time(queue: SendQueue) -> None:
    for item_id, is_suspect in [("s", True), ("a", False), ("t", True), ("b", False)]:
        queue.add(make_ask(item_id, is_suspect=is_suspect))
    assert queue.ready == 2
    sent = queue.choose(9, [], is_last=True)
    assert names(sent) == ["a", "b"]
    assert queue.choose(9, sent, is_last=True) == []
    assert queue.choose(9, [], is_last=False) == []
    [suspect] = queue.choose(9, [], is_last=True)
    assert suspect.item_id == "s"
    assert queue.choose(9, [suspect], is_last=True) == []
    assert names(queue.choose(9, [], is_last=True)) == ["t"]


def test_a_suspect_waits_for_those_that_wait_for_their_backoff(queue: SendQueue, clock: Clock) -> None:
    queue.add(make_ask("a"))
    [ask] = queue.choose(9, [], is_last=True)
    queue.add(make_ask("s", is_suspect=True))
    queue.delay(ask, 1)
    assert queue.choose(9, [], is_last=True) == []
    clock.at += 1
    assert queue.choose(9, [], is_last=True) == [ask]


def test_nothing_is_sent_beside_a_suspect(queue: SendQueue) -> None:
    queue.add(make_ask("s", is_suspect=True))
    [suspect] = queue.choose(9, [], is_last=True)
    queue.add(make_ask("a"))
    assert queue.choose(9, [suspect], is_last=True) == []
    assert names(queue.choose(9, [], is_last=True)) == ["a"]


def test_a_suspect_that_failed_for_now_stays_a_suspect(queue: SendQueue, clock: Clock) -> None:
    queue.add(make_ask("s", is_suspect=True))
    [suspect] = queue.choose(9, [], is_last=True)
    queue.delay(suspect, 1)
    queue.add(make_ask("a"))
    clock.at += 1
    assert names(queue.choose(9, [], is_last=True)) == ["a"]
    assert queue.choose(9, [], is_last=True) == [suspect]


def test_the_heir_of_a_suspect_is_none_if_it_never_died(queue: SendQueue) -> None:
    queue.add(make_ask("s", "x", is_suspect=True))
    queue.add(make_ask("a", "x"))
    [suspect] = queue.choose(9, [], is_last=True)
    queue.settle(suspect, is_shared=False)
    assert queue.ready == 1


# The law


class Simulation:
    """Drives a queue as the runner does, by random decisions, and checks its promises at each step."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        self.rng = rng
        self.clock = clock
        self.queue = SendQueue(clock=clock)
        self.in_flight: list[Ask] = []
        self.ended: Counter[str] = Counter()
        self.due: dict[str, float] = {}

    def send(self, *, is_last: bool) -> None:
        ready_before = self.queue.ready
        free = self.rng.randint(0, 4)
        sent = self.queue.choose(free, list(self.in_flight), is_last=is_last)
        for ask in sent:
            assert self.due.pop(ask.item_id, 0) <= self.clock.at
        if any(ask.is_suspect for ask in sent):
            assert (len(sent), self.in_flight, self.due, is_last) == (1, [], {}, True)
            assert ready_before == 0
        else:
            assert len(sent) <= free
        assert not (sent and any(ask.is_suspect for ask in self.in_flight))
        self.in_flight += sent
        keys = [ask.request.request_key for ask in self.in_flight]
        assert len(set(keys)) == len(keys)

    def end_one(self) -> None:
        ask = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        ending = self.rng.choice(["shared", "own", "delayed"])
        if ending == "delayed":
            wait_s = self.rng.choice([0.0, 1.0, 5.0])
            self.due[ask.item_id] = self.clock.at + wait_s
            self.queue.delay(ask, wait_s)
            return
        followers = self.queue.settle(ask, is_shared=ending == "shared")
        assert all(f.request.request_key == ask.request.request_key for f in followers)
        assert ending == "shared" or not followers
        for done in [ask, *followers]:
            self.ended[done.item_id] += 1

    def run(self, asks: Iterator[Ask]) -> None:
        is_last = False
        for _ in range(10_000):
            for _ in range(self.rng.randint(0, 3)):
                ask = next(asks, None)
                is_last = is_last or ask is None
                if ask is not None:
                    self.queue.add(ask)
            self.send(is_last=is_last)
            self.clock.at += self.rng.choice([0.0, 0.5, 5.0])
            if self.in_flight:
                self.end_one()
            elif is_last and not len(self.queue):
                return
        raise AssertionError("the queue never came to its end")


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=12), st.integers(0, 2**32))
def test_every_ask_ends_exactly_once_whatever_happens(kinds: list[tuple[str, bool]], seed: int) -> None:
    clock = Clock()
    asks = [make_ask(f"{n}", key, is_suspect=is_suspect) for n, (key, is_suspect) in enumerate(kinds)]
    simulation = Simulation(random.Random(seed), clock)
    simulation.run(iter(asks))
    assert simulation.ended == Counter(ask.item_id for ask in asks)
    assert len(simulation.queue) == 0


def test_a_failed_ask_waits_until_the_runs_budget_pays_for_it(clock: Clock) -> None:
    class Budget(RetryBudget):
        left = 1

        def take(self) -> bool:
            self.left -= 1
            return self.left >= 0

        def wait_s(self) -> float:
            return 0.0 if self.left > 0 else 3.0

    budget = Budget()
    queue = SendQueue(budget, clock=clock)
    for item_id in "ab":
        queue.delay(make_ask(item_id), 1.0)
    clock.at += 1.0
    assert names(queue.choose(5, [], is_last=True)) == ["a"]
    assert (len(queue), queue.delayed, queue.next_due_s()) == (1, 1, 3.0)
    budget.left = 1
    assert names(queue.choose(5, [], is_last=True)) == ["b"]


def test_a_probe_is_any_of_those_that_wait_and_the_others_keep_their_places(clock: Clock) -> None:
    first: set[str] = set()
    for seed in range(60):
        queue = SendQueue(rng=random.Random(seed), clock=clock)
        for item_id in "abcde":
            queue.add(make_ask(item_id))
        (probe,) = names(queue.choose(1, [], is_last=False, is_probe=True))
        first.add(probe)
        assert sorted(names(queue.choose(9, [], is_last=False)) + [probe]) == list("abcde")
    assert first == set("abcde")
