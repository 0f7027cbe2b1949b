"""Limits how many retries a run may send, so that a sick server isn't hammered. The queue decides which are sent."""

import time
from collections.abc import Callable

CAPACITY = 100.0
PER_ANSWER = 0.5
PER_SECOND = 10.0


class RetryBudget:
    """A bucket of tokens that all records of a run share.

    It starts full, with `capacity` tokens. A retry costs one token. An answer gives `per_answer` tokens back, and each
    second gives `per_s`, so that a run never stands still. A retry waits while the bucket is empty; it is not lost. By
    default a run so sends, in the long run, one retry for two answers at most, and ten more a second.

    Answers earn tokens in the AWS SDKs' standard retry mode and in gRPC, too (proposal A6, "Throttling Retry
    Attempts"); seconds do in Finagle's RetryBudget. Those give up when the bucket is empty; this one waits.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        capacity: float = CAPACITY,
        per_answer: float = PER_ANSWER,
        per_s: float = PER_SECOND,
    ) -> None:
        self._clock = clock
        self._capacity = capacity
        self._per_answer = per_answer
        self._per_s = per_s
        self._tokens = capacity
        self._filled_at = clock()

    def record_answer(self) -> None:
        """Add the tokens that an answer earns."""
        self._fill(self._per_answer)

    def take(self) -> bool:
        """Pay for one retry; say whether there was enough."""
        self._fill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_s(self) -> float:
        """Return the seconds until the next retry can be paid without another answer."""
        self._fill()
        return max(0.0, (1 - self._tokens) / self._per_s)

    def _fill(self, tokens: float = 0.0) -> None:
        at = self._clock()
        self._tokens = min(self._capacity, self._tokens + tokens + (at - self._filled_at) * self._per_s)
        self._filled_at = at
