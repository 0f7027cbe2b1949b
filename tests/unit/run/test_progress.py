"""Progress in words, and the time left."""

from dataclasses import replace
from typing import Any

import pytest
from clocks import Clock

from batch_assets.run.partition_run import Progress, Tally
from batch_assets.run.progress import Pace, ProgressLog, count_all, format_duration, format_progress


def make_progress(done: int = 0, total: int = 0, *, is_starting: bool = False, **tally: Any) -> Progress:
    counts = Tally(**(tally or {"ok": done}))
    return Progress(total=total, done=done, tally=counts, in_flight=64, is_starting=is_starting)


def test_a_line_says_all_that_a_person_asks() -> None:
    progress = make_progress(1200, 9800, ok=1180, invalid=15, error=5)
    assert format_progress(progress, 360.0) == (
        "1,200 of 9,800 records (12 %), about 6 min left; 64 in flight; 1,180 ok, 15 invalid, 5 error"
    )


def test_what_isnt_known_is_left_out() -> None:
    assert format_progress(make_progress(3), None) == "3 records; 64 in flight; 3 ok, 0 invalid, 0 error"
    assert format_progress(make_progress(is_starting=True), None) == "starting the engine; 0 records"


def test_a_pause_is_told_first() -> None:
    progress = replace(make_progress(1200, 9800), pause_s=4.2)
    assert format_progress(progress, 360.0).startswith(
        "the server is failing: pausing, next probe in 4 s; 1,200 of 9,800 "
    )
    assert "about" not in format_progress(progress, 360.0)
    assert "the next probe is due; 1,200" in format_progress(replace(progress, pause_s=0.0), None)


def test_a_pause_says_what_failed_in_visible_letters() -> None:
    progress = replace(make_progress(1, 2), failure="HTTP 429: \x1b[31mslow\ndown")
    assert "429" not in format_progress(progress, None), "without a pause it is some record's affair"
    assert format_progress(replace(progress, pause_s=1.0), None).endswith("; the last failure: HTTP 429: [31mslow down")


def test_a_log_tells_at_once_when_a_pause_begins_and_ends_but_not_all_the_time() -> None:
    lines: list[str] = []
    clock = Clock()
    log = ProgressLog(lines.append, clock)
    for pause_s in (None, 4.0, 3.0, 0.0, 8.0, None, None):
        clock.at += 1
        log.observe(replace(make_progress(1, 2), pause_s=pause_s))
    assert ["failing" in line for line in lines] == [True, False]


def test_a_run_is_at_100_percent_when_it_is_done_and_not_before() -> None:
    assert "(99 %)" in format_progress(make_progress(9999, 10000), None)
    assert "(100 %)" in format_progress(make_progress(10000, 10000), None)


def test_records_that_need_nothing_are_done_too_where_all_are_counted() -> None:
    progress = count_all(make_progress(10, 100, ok=10, already_done=40, superseded=5))
    assert format_progress(progress, None).startswith("55 of 100 records (55 %); ")
    assert format_progress(progress, None).endswith("10 ok, 0 invalid, 0 error, 40 done before")
    assert count_all(make_progress(10, 10, ok=10, already_done=1)).total == 11


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"), (59, "59 s"), (60, "1 min"), (89, "1 min"), (91, "2 min"), (3540, "59 min"), (3590, "1 h"),
        (7800, "2 h 10 min"), (86400, "1 d"), (100000, "1 d 3 h"),
    ],
)  # fmt: skip
def test_a_duration_is_said_as_a_person_says_it(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_the_time_left_goes_by_the_rate_of_the_last_minutes() -> None:
    clock = Clock()
    pace = Pace(clock)
    done = 0
    for _ in range(600):  # ten minutes at 10/s
        pace.record(make_progress(done, 10000))
        clock.at += 1
        done += 10
    assert pace.per_s == pytest.approx(10)
    assert pace.left_s(make_progress(done, 10000)) == pytest.approx(400)
    for _ in range(190):  # then at 2/s
        pace.record(make_progress(done, 10000))
        clock.at += 1
        done += 2
    assert pace.per_s == pytest.approx(2, rel=0.05)


def test_the_start_of_the_engine_is_not_in_the_rate() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.record(make_progress(0, 100))
    pace.record(make_progress(0, 100, is_starting=True))
    clock.at += 500
    for done in range(0, 50, 10):
        pace.record(make_progress(done, 100))
        clock.at += 2
    assert pace.per_s == pytest.approx(5)


def test_answers_that_cost_nothing_are_not_in_the_rate() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.record(make_progress(0, 1000, ok=0))
    clock.at += 10
    pace.record(make_progress(520, 1000, ok=520, reused=400, rejudged=100))
    assert pace.per_s == pytest.approx(2)


@pytest.mark.parametrize(("done", "seconds"), [(7, 100), (100, 0)])
def test_too_few_answers_tell_no_rate(done: int, seconds: float) -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.per_s is None
    pace.record(make_progress(0, 100))
    clock.at += seconds
    pace.record(make_progress(done, 100))
    assert pace.per_s is None
    assert pace.left_s(make_progress(done, 100)) is None


def test_a_million_readings_are_kept_as_a_few() -> None:
    clock = Clock()
    pace = Pace(clock)
    for n in range(20000):
        pace.record(make_progress(n, 20000))
        clock.at += 0.05
    assert len(pace._samples) <= 182
    assert pace.per_s == pytest.approx(20)


def test_the_log_gets_one_line_in_ten_seconds_and_the_engines_start() -> None:
    clock = Clock()
    lines: list[tuple[float, str]] = []
    log = ProgressLog(lambda line: lines.append((clock.at, line)), clock)
    log.observe(make_progress(0, 400, is_starting=True))
    for n in range(400):
        clock.at += 0.1
        log.observe(make_progress(n, 400))
    assert [line for _, line in lines][0].startswith("starting the engine; 0 of 400 records")
    times = [at for at, _ in lines]
    assert 4 <= len(times) <= 5
    assert all(later - earlier >= 10 for earlier, later in zip(times, times[1:], strict=False))
    assert "about 30 s left" in lines[1][1]
