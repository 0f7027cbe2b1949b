"""Splits an engine's busy time among the requests in it, so that seconds and cost add up over partitions."""

import time
from collections.abc import Callable


class EngineTimeMeter:
    """Processor sharing: while n requests are in the engine, each uses 1/n of its time.

    `enter()` and `leave()` return a reading in seconds. The difference of a request's two readings is its part of the
    busy time. All parts add up to the time in which at least one request was in the engine.
    Source: Kleinrock, Queueing Systems II, 1976, section 4.4 (egalitarian processor sharing).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside = 0
        self._reading = 0.0
        self._at = clock()

    def enter(self) -> float:
        """Count a request in; return the reading at its start."""
        self._advance()
        self._inside += 1
        return self._reading

    def leave(self) -> float:
        """Count a request out; return the reading at its end."""
        self._advance()
        self._inside -= 1
        return self._reading

    def _advance(self) -> None:
        at = self._clock()
        if self._inside:
            self._reading += (at - self._at) / self._inside
        self._at = at
