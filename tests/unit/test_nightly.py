"""The nightly schedule: one run a night by the clock of a place, across both changes of the clock."""

import datetime as dt
from collections import Counter
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._utils.schedules import cron_string_iterator
from factories import make_task
from pydantic import ValidationError

from batch_assets.core.tasks import Nightly
from batch_assets.dagster.runs import PLAN_JOB
from batch_assets.dagster.schedules import build_nightly_schedule

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = dt.date(2026, 3, 29), dt.date(2026, 10, 25)  # 02:00 to 03:00 doesn't come; it comes twice


def run_keys(tmp_path: Path, at: str, first: dt.date, nights: int, timezone: str = "Europe/Berlin") -> list[str]:
    """Return the run key of each tick that Dagster makes in so many days."""
    schedule = build_nightly_schedule(make_task(tmp_path, nightly=Nightly(at=at, timezone=timezone)))
    start = dt.datetime.combine(first, dt.time(0), ZoneInfo(timezone))
    end = dt.datetime.combine(first + dt.timedelta(days=nights), dt.time(0), ZoneInfo(timezone))
    ticks = cron_string_iterator(start.timestamp(), str(schedule.cron_schedule), schedule.execution_timezone)
    keys = []
    for tick in ticks:
        if tick >= end:
            return keys
        request = schedule(dg.build_schedule_context(scheduled_execution_time=tick))
        assert isinstance(request, dg.RunRequest)
        keys.append(str(request.run_key))
    raise AssertionError("the iterator ended")


@pytest.mark.parametrize("at", ["00:30", "01:30", "02:00", "02:30", "02:59", "03:00"])
@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_there_is_one_run_per_night_whatever_the_clock_does(tmp_path: Path, at: str, change: dt.date) -> None:
    nights = [change + dt.timedelta(days=d) for d in (-1, 0, 1)]
    keys = run_keys(tmp_path, at, nights[0], 3)
    assert sorted(set(keys)) == [f"t:{night}" for night in nights]  # a key that comes again launches nothing


def test_a_time_that_comes_twice_is_no_second_run(tmp_path: Path) -> None:
    schedule = build_nightly_schedule(make_task(tmp_path, nightly=Nightly(at="02:30", timezone="Europe/Berlin")))
    keys = Counter()
    for fold in (0, 1):
        at = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        request = schedule(dg.build_schedule_context(scheduled_execution_time=at.astimezone(dt.UTC)))
        assert isinstance(request, dg.RunRequest)
        keys[str(request.run_key)] += 1
    assert keys == {"t:2026-10-25": 2}


def test_the_night_is_that_of_the_place(tmp_path: Path) -> None:
    keys = run_keys(tmp_path, "00:30", dt.date(2026, 11, 29), 1, "Pacific/Auckland")  # still the 28th in UTC
    assert keys == ["t:2026-11-29"]


def test_it_launches_the_planner_for_its_task(tmp_path: Path) -> None:
    schedule = build_nightly_schedule(make_task(tmp_path))
    request = schedule(dg.build_schedule_context(scheduled_execution_time=dt.datetime(2026, 11, 29, 2, tzinfo=dt.UTC)))
    assert isinstance(request, dg.RunRequest)
    assert (request.job_name, request.tags["batch_assets/task"]) == (PLAN_JOB, "t")
    assert request.run_config == {"ops": {f"{PLAN_JOB}_op": {"config": {"task": "t", "is_patient": True}}}}
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED


@pytest.mark.parametrize("fields", [{"at": "25:00"}, {"at": "2:00"}, {"at": "02:60"}, {"timezone": "Mars/Olympus"}])
def test_a_time_or_zone_that_there_is_not_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        Nightly(**fields)
