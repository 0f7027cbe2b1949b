"""Decides what is sent next: failed records whose backoff is over, then fresh ones, suspects last and alone."""

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from batch_assets.run.partition_run import Ask
from batch_assets.run.retry_budget import RetryBudget


class SendQueue:
    """Asks that wait. Equal requests are asked once: the first leads, the others follow it."""

    def __init__(
        self,
        budget: RetryBudget | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._budget = budget or RetryBudget()
        self._rng = rng or random.Random()
        self._ready: deque[Ask] = deque()
        self._suspects: deque[Ask] = deque()
        self._delayed: list[tuple[float, int, Ask]] = []
        self._leaders: dict[str, Ask] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._suspects) + len(self._delayed)

    @property
    def ready(self) -> int:
        """How many could be sent at once."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """How many wait for the end of their backoff, or for the run's retry budget."""
        return len(self._delayed)

    def add(self, ask: Ask) -> None:
        """Take an ask in. If one with the same request key waits or is in flight, the new one follows it."""
        leader = self._leaders.setdefault(ask.request.request_key, ask)
        if leader is not ask:
            leader.followers.append(ask)
        else:
            self._put(ask)

    def delay(self, ask: Ask, wait_s: float) -> None:
        """Take a failed ask back. It is sent when its backoff is over and the run's retry budget pays for it.

        It takes up no place in the window until then.
        """
        self._number += 1
        heapq.heappush(self._delayed, (self._clock() + wait_s, self._number, ask))

    def choose(self, free: int, in_flight: Sequence[Ask], *, is_last: bool, is_probe: bool = False) -> list[Ask]:
        """Return up to `free` asks to send now. A probe is picked at random.

        A suspect is sent only if nothing else is left (`is_last` says that no more will come) and nothing is in flight.
        """
        at = self._clock()
        due: list[Ask] = []
        while self._delayed and self._delayed[0][0] <= at and self._budget.take():
            due.append(heapq.heappop(self._delayed)[2])
        for ask in reversed(due):
            self._put(ask, is_first=True)
        if len(in_flight) == 1 and in_flight[0].is_suspect:
            return []
        if is_probe and free and self._ready:
            self._ready.rotate(-self._rng.randrange(len(self._ready)))
        chosen = [self._ready.popleft() for _ in range(min(free, len(self._ready)))]
        if free and not chosen and not in_flight and not self._delayed and is_last and self._suspects:
            chosen = [self._suspects.popleft()]
        return chosen

    def settle(self, ask: Ask, *, is_shared: bool) -> list[Ask]:
        """Forget a settled ask; return the followers that take its answer. If none may, the first of them asks next."""
        del self._leaders[ask.request.request_key]
        followers, ask.followers = ask.followers, []
        if is_shared or not followers:
            return followers
        heir, *heir.followers = followers
        self._leaders[heir.request.request_key] = heir
        self._put(heir)
        return []

    def next_due_s(self) -> float | None:
        """Return the seconds until the first backoff ends and is paid for, or None if nothing waits for one."""
        return max(self._budget.wait_s(), self._delayed[0][0] - self._clock()) if self._delayed else None

    def _put(self, ask: Ask, *, is_first: bool = False) -> None:
        queue = self._suspects if ask.is_suspect else self._ready
        if is_first:
            queue.appendleft(ask)
        else:
            queue.append(ask)
