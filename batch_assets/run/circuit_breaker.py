"""Tells a sick engine from bad records: a sick engine costs no record an attempt, pauses the run, at last stops it."""

import time
from collections import deque
from collections.abc import Callable

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.errors import EngineDead, RequestFailed

MAX_TRIES = 20
"""Tries of one request in one run, whoever is to blame for their failures."""

SPELL_FAILURES = 32
"""Failures in a row, with no answer between, that open the breaker."""

LOST_CONNECTIONS = 5
"""The same for connections that can't be made or are dropped: those seldom depend on the record."""

SLOW_FAILURES = 5
"""The same for failures spread over more than a quarter of `limit_s`, as timeouts in a small window are."""

WINDOW = 64
"""How many of the last outcomes are looked at."""

WINDOW_FAILURES = 45
"""How many failures among the last WINDOW outcomes open the breaker: seven in ten."""

PROBES_TO_CLOSE = 3
"""Answers in a row that close it. One may be luck; a server that fails 80 % gives three in a row 1 time in 125."""

PROBES_TO_STOP = 3
"""Probes that must have failed before a run is stopped. They are of different records, so no cluster stops a run."""

LONGEST_PAUSE_S = 15.0
LONGEST_SICKNESS = 10
"""How many times `limit_s` it may stay open although answers come now and then, or a Retry-After may last."""

FEW_LEFT = 64
"""If no more records than these are left in a run that had answers, the records are to blame, not the server."""

_THE_SERVERS = (ErrorKind.RATE_LIMITED, ErrorKind.CONNECTION)
"""Failures that no record can cause. A record can cause a dropped connection, though it seldom does."""


class CircuitBreaker:
    """A circuit breaker between the run and its engine (Nygard, Release It!, 2nd ed. 2018, chapter 5).

    *Closed*: the whole window is sent. It opens after SPELL_FAILURES failures in a row, LOST_CONNECTIONS in a row,
    SLOW_FAILURES in a row that took a while, or WINDOW_FAILURES among the last WINDOW outcomes. An outcome is an answer
    (a refusal for good, as HTTP 400, is one: the server lives) or a passing failure.

    *Open*: nothing is sent until a pause is over. It lasts `probe_s`, doubled after each failed probe up to
    LONGEST_PAUSE_S and a quarter of `limit_s`, and no shorter than the server's Retry-After. *Half-open*: one record is
    then sent as a probe. It is picked at random, so that a cluster of bad ones isn't probed again and again. After an
    answer the next probe is sent at once. PROBES_TO_CLOSE answers in a row, of probes or of what was in flight before,
    close the breaker.

    `check` stops the run when there was no answer for `limit_s` and PROBES_TO_STOP probes have failed, when the breaker
    has been open for LONGEST_SICKNESS times `limit_s`, or when a Retry-After is longer than that. There is one
    exception: if all is read, FEW_LEFT records or fewer are left, the run had answers, and the last failure may be a
    record's. The breaker then closes for good, and these records answer for their failures.

    A failure costs a record one of its attempts. Exceptions are a rate limit, a connection that can't be made, one that
    is dropped while records aren't to blame, and any failure that the breaker met while open.
    """

    def __init__(self, limit_s: float, probe_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._probe_s = probe_s
        self._clock = clock
        self._window: deque[bool] = deque(maxlen=WINDOW)
        """Of each outcome, whether it was a failure."""
        self._spell = 0
        self._spell_since = 0.0
        self._connections = 0
        self._last: RequestFailed | None = None
        self._opened_at: float | None = None
        self._next_at = 0.0
        self._probe: object = None
        self._probes_failed = 0
        """In a row."""
        self._failed_since_opened = 0
        self._answers = 0
        """In a row, while open."""
        self._has_answered = False
        self._blames_records = False

    @property
    def is_open(self) -> bool:
        """Whether only probes are sent."""
        return self._opened_at is not None

    @property
    def is_probing(self) -> bool:
        """Whether a probe is under way."""
        return self._probe is not None

    def pause_s(self) -> float | None:
        """Return the seconds until the next probe may go, 0 while one is under way; None while it is closed."""
        if self._opened_at is None:
            return None
        return 0.0 if self.is_probing else max(0.0, self._next_at - self._clock())

    def last_failure(self) -> str:
        """Return the words of the last failure; empty if there was none."""
        return str(self._last or "")

    def free(self, window: int, in_flight: int) -> int:
        """Return how many requests may be sent now."""
        room = max(0, window - in_flight)
        if self._opened_at is None:
            return room
        return min(room, 1) if not self.is_probing and self._clock() >= self._next_at else 0

    def record_sent(self, ask: object) -> None:
        """Record a request; while the breaker is open it is the probe."""
        if self._opened_at is not None:
            self._probe = ask

    def record_answer(self, ask: object) -> None:
        """Count an answer."""
        self._has_answered = True
        self._spell = self._connections = self._probes_failed = 0
        self._window.append(False)
        if self._opened_at is None:
            return
        self._end_probe(ask)
        self._next_at = self._clock()
        self._answers += 1
        if self._answers >= PROBES_TO_CLOSE:
            self._close()

    def record_failure(self, ask: object, failure: RequestFailed) -> bool:
        """Count a passing failure; say whether the record is to be charged for it."""
        kind, at = failure.kind, self._clock()
        if not self._spell:
            self._spell_since = at
        self._spell += 1
        is_lost = kind is ErrorKind.CONNECTION or (kind is ErrorKind.DROPPED and not self._blames_records)
        self._connections = self._connections + 1 if is_lost else 0
        self._window.append(True)
        self._last = failure
        if self._opened_at is not None:
            self._answers = 0
            if self._end_probe(ask):
                self._probes_failed += 1
                self._failed_since_opened += 1
                self._pause(failure.retry_after_s)
            return False
        if self._is_sick(at):
            self._opened_at, self._probes_failed, self._failed_since_opened, self._answers = at, 0, 0, 0
            self._pause(failure.retry_after_s)
            return False
        return not is_lost and kind not in _THE_SERVERS

    def check(self, left: int | None) -> None:
        """Raise EngineDead if it has been open for too long; close if the few records left are to blame instead.

        `left` is how many records are left; None while some are unread.
        """
        if self._opened_at is None or self._last is None or left == 0:
            return
        at = self._clock()
        silent_s, open_s = at - self._spell_since, at - self._opened_at
        if silent_s >= self._limit_s and self._probes_failed >= PROBES_TO_STOP:
            is_few = left is not None and left <= FEW_LEFT
            if not (is_few and self._has_answered and self._last.kind not in _THE_SERVERS):
                words = f"no answer in {silent_s:.0f} s, {self._spell} requests failed in a row"
                raise EngineDead(f"{words}; the last: {self._last}")
            self._blames_records = True
            self._close()
        elif open_s >= self._limit_s * LONGEST_SICKNESS and self._failed_since_opened >= PROBES_TO_STOP:
            raise EngineDead(f"most requests have failed for {open_s:.0f} s; the last: {self._last}")
        elif (named_s := self._next_at - at) > max(self._limit_s * LONGEST_SICKNESS, self._probe_s):
            raise EngineDead(f"the server asks for a pause of {named_s:.0f} s; the last: {self._last}")

    def _is_sick(self, at: float) -> bool:
        if self._connections >= LOST_CONNECTIONS:
            return True
        if self._blames_records:
            return False
        if self._spell >= SPELL_FAILURES or sum(self._window) >= WINDOW_FAILURES:
            return True
        return self._spell >= SLOW_FAILURES and at - self._spell_since > self._limit_s / 4

    def _pause(self, retry_after_s: float | None) -> None:
        longest_s = min(LONGEST_PAUSE_S, self._limit_s / 4)
        pause_s = min(self._probe_s * 2**self._probes_failed, longest_s)
        self._next_at = self._clock() + max(pause_s, retry_after_s or 0.0)

    def _end_probe(self, ask: object) -> bool:
        is_probe = self._probe is ask
        if is_probe:
            self._probe = None
        return is_probe

    def _close(self) -> None:
        self._opened_at, self._probe = None, None
        self._spell = self._connections = self._probes_failed = 0
        self._window.clear()


def fail(failure: RequestFailed) -> Verdict:
    """Return the verdict that a failed request comes to."""
    return Verdict(status=Status.ERROR, error_kind=failure.kind, error=str(failure)[:500])
