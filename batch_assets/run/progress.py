"""Says in words how far a run is, and estimates how long it will take yet."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from batch_assets.run.partition_run import Progress

_VISIBLE = dict.fromkeys((*range(32), *range(127, 160)), " ")
"""Control characters, each with a space in its place: a terminal would obey those in a server's message."""

WINDOW_S = 180.0
"""The time left is estimated from so many last seconds, since prompts get longer and servers slower."""

SAMPLE_EVERY_S = 1.0
ENOUGH_ANSWERS = 8
LOG_EVERY_S = 10.0


class Pace:
    """The rate at which a run's requests are answered, over the last minutes. The engine's start doesn't count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def record(self, progress: Progress) -> None:
        """Take a reading in. It may be called at any rate. A start of the engine begins the measurement anew."""
        if progress.is_starting:
            self._samples.clear()
            return
        t, at = progress.tally, self._clock()
        answered = t.ok + t.invalid + t.error - t.reused - t.rejudged
        if len(self._samples) > 1 and at - self._samples[-2][0] < SAMPLE_EVERY_S:
            self._samples.pop()
        self._samples.append((at, answered))
        while len(self._samples) > 1 and at - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """Records per second; None while there are too few answers to compute it."""
        if not self._samples:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        if last - first < ENOUGH_ANSWERS or last_at <= first_at:
            return None
        return (last - first) / (last_at - first_at)

    def left_s(self, progress: Progress) -> float | None:
        """Return the seconds until all is done at this rate; None if the rate or the total isn't known."""
        rate, left = self.per_s, progress.total - progress.done
        return left / rate if rate and left > 0 else None


class ProgressLog:
    """Writes lines into a run's log: at the engine's start, when a pause begins or ends, and else every LOG_EVERY_S."""

    def __init__(self, log: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._pace = Pace(clock)
        self._logged_at = clock()
        self._is_paused = False

    def observe(self, progress: Progress) -> None:
        """Take a reading in, and write a line if one is due."""
        self._pace.record(progress)
        is_paused = progress.pause_s is not None
        is_news = progress.is_starting or is_paused != self._is_paused
        if is_news or self._clock() - self._logged_at >= LOG_EVERY_S:
            self._logged_at, self._is_paused = self._clock(), is_paused
            self._log(format_progress(progress, self._pace.left_s(progress)))


def count_all(progress: Progress) -> Progress:
    """Return the progress with records that need nothing counted as done, for a run whose total includes them."""
    done = progress.done + progress.tally.already_done + progress.tally.superseded
    return replace(progress, done=done, total=max(progress.total, done))


def format_progress(progress: Progress, left_s: float | None) -> str:
    """Return a line for a person, as `1,200 of 9,800 records (12 %), about 6 min left; 64 in flight; 1,180 ok, …`."""
    t = progress.tally
    words = f"{progress.done:,} records"
    if progress.total:
        percent = progress.done * 100 // progress.total  # rounded down: 100 % is done
        words = f"{progress.done:,} of {progress.total:,} records ({percent} %)"
    if progress.is_starting:
        return f"starting the engine; {words}"
    if progress.pause_s is not None:
        words = f"{format_pause(progress.pause_s)}; {words}"
    elif left_s is not None:
        words += f", about {format_duration(left_s)} left"
    before = f", {t.already_done:,} done before" if t.already_done else ""
    last = f"; {format_failure(progress)}" if format_failure(progress) else ""
    counts = f"{t.ok:,} ok, {t.invalid:,} invalid, {t.error:,} error{before}"
    return f"{words}; {progress.in_flight:,} in flight; {counts}{last}"


def format_pause(pause_s: float) -> str:
    """Return a line about a pause, as `the server is failing: pausing, next probe in 4 s`."""
    probe = f"next probe in {format_duration(pause_s)}" if pause_s else "the next probe is due"
    return f"the server is failing: pausing, {probe}"


def format_failure(progress: Progress) -> str:
    """Return why a run is paused, as `the last failure: HTTP 503: …`; empty while it isn't."""
    if progress.pause_s is None or not progress.failure:
        return ""
    return "the last failure: " + " ".join(progress.failure.translate(_VISIBLE).split())[:200]


def format_duration(seconds: float) -> str:
    """Return a duration for a person: `40 s`, `6 min`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
