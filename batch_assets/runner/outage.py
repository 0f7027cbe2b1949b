"""Failures that are the engine's, not the record's: they cost no record an attempt, and a long spell stops the run."""

import time
from collections.abc import Callable

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.errors import EngineDead, RequestFailed

MAX_TRIES = 20
"""Tries of one request in one run, whoever is to blame for their failures."""

SPELL_FAILURES = 32
"""Failures in a row, with no answer between, that no cluster of bad records explains."""

LOST_CONNECTIONS = 5
"""The same for connections that aren't even made: a record has little to do with those."""


class Outage:
    """Counts failures since the last answer.

    A failure costs a record one of its attempts, unless it is a rate limit, a lost connection, or one of a spell. A
    spell that lasts longer than `limit_s` is an outage.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._since = 0.0
        self._failures = 0
        self._connections = 0

    def hear_answer(self) -> None:
        """End the spell."""
        self._failures = 0
        self._connections = 0

    def hear_failure(self, kind: ErrorKind) -> bool:
        """Count a passing failure; say whether the record is to be charged for it."""
        if not self._failures:
            self._since = self._clock()
        self._failures += 1
        self._connections = self._connections + 1 if kind is ErrorKind.CONNECTION else 0
        return self._failures < SPELL_FAILURES and kind not in (ErrorKind.RATE_LIMITED, ErrorKind.CONNECTION)

    def check(self, last_words: str) -> None:
        """Raise EngineDead if the engine has answered nothing for too long."""
        is_spell = self._failures >= SPELL_FAILURES or self._connections >= LOST_CONNECTIONS
        lasted_s = self._clock() - self._since
        if is_spell and lasted_s >= self._limit_s:
            raise EngineDead(
                f"no answer in {lasted_s:.0f} s, {self._failures} requests failed in a row; the last: {last_words}"
            )


def fail(failure: RequestFailed) -> Verdict:
    """Return the verdict that a failed request comes to."""
    return Verdict(status=Status.ERROR, error_kind=ErrorKind(failure.kind), error=str(failure)[:500])
