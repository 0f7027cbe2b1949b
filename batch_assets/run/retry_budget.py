"""How many retries a run may send, so that a sick server isn't hammered. Which record is retried is not its matter."""

import time
from collections.abc import Callable

CAPACITY = 100.0
PER_ANSWER = 0.5
PER_SECOND = 10.0


class RetryBudget:
    """A bucket of tokens that all records of a run share.

    It starts full, with CAPACITY tokens. A retry costs one; an answer gives PER_ANSWER back, each second PER_SECOND, so
    that there is no standstill. With it empty a retry waits: it is neither lost nor an error. So in the long run there
    is one retry for two answers at most, and ten a second beside.

    Tokens that answers earn are those of the AWS SDKs' standard retry mode and of gRPC (proposal A6, "Throttling Retry
    Attempts"), the steady trickle is that of Finagle's RetryBudget; those give up where this one waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = CAPACITY
        self._filled_at = clock()

    def record_answer(self) -> None:
        """Fill it for an answer."""
        self._fill(PER_ANSWER)

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
        return max(0.0, (1 - self._tokens) / PER_SECOND)

    def _fill(self, tokens: float = 0.0) -> None:
        at = self._clock()
        self._tokens = min(CAPACITY, self._tokens + tokens + (at - self._filled_at) * PER_SECOND)
        self._filled_at = at
