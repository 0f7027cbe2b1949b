"""The planner with Dagster's side of it: what is recorded, what is in flight, and what has failed."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from dagster import DagsterInstance

from batch_assets.core.attempts import RetryMode
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.dagster.moved_models import recognise_moved_models
from batch_assets.dagster.runs import find_in_flight
from batch_assets.pipeline.dispatch import FAILURE_BUDGET, Choice, InFlight, choose
from batch_assets.pipeline.plan import EVERYTHING, Plan, Selection, make_plan
from batch_assets.pipeline.platform import Platform, open_platform
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.store.database import now
from batch_assets.store.failures import load_failing


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A task as it is at one moment."""

    plan: Plan
    choice: Choice
    in_flight: InFlight


def look_at_task(
    task: Task,
    source: Source,
    platform: Platform,
    instance: DagsterInstance,
    *,
    selection: Selection = EVERYTHING,
    retry: RetryMode = RetryMode.NONE,
    budget: int = FAILURE_BUDGET,
    is_patient: bool = True,
    but: str = "",
) -> View:
    """Plan without counting records, and choose what is worth launching; the run `but` doesn't count as in flight."""
    recognise_moved_models([(task, source)], platform, instance)
    in_flight = find_in_flight(instance, task, but=but)
    recorded = load_recorded(instance, task)
    plan = make_plan(task, source, platform, recorded, selection=selection, retry=retry, is_counting=False)
    with platform.database.read() as connection:
        failing = load_failing(connection, task.name)
    choice = choose(plan, failing, in_flight, now(), budget=budget, is_patient=is_patient)
    return View(plan=plan, choice=choice, in_flight=in_flight)


@contextmanager
def open_for_tick() -> Generator[Platform]:
    """Open the platform for one tick of a sensor, and close it."""
    platform = open_platform(load_settings())
    try:
        yield platform
    finally:
        platform.database.close()
