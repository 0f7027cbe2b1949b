"""The planner as sensors: new data, whatever is missing or stale, the fallback and the results of what is finished.

They look, and launch the planner's job, which does the reading: a tick has a minute. What is on the way already is
passed over, so that a tick too many does no harm.
"""

import datetime as dt
from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.tasks import Task
from batch_assets.launches import (
    FALLBACKS_JOB,
    OUTPUTS_JOB,
    PLAN_JOB,
    RESULTS_JOB,
    Choice,
    InFlight,
    choose,
    fallbacks_request,
    find_in_flight,
    find_rest_until,
    job_name,
    plan_request,
    results_request,
)
from batch_assets.planner import Plan, Selection, make_plan
from batch_assets.resources import Platform, open_platform
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.store.database import now
from batch_assets.store.failures import load_failing

MAX_BATCHES = 100
MAX_PARTITIONS = 10_000
MAX_RESULTS = 1000
FOLLOW_AT_ONCE, FOLLOW_AFTER_S = 500, 120.0
"""While outputs are being made, results follow when so many have gathered or the first has waited so long."""

Tick = dg.RunRequest | dg.SkipReason


def build_planner_sensors(task: Task, source: Source) -> list[dg.SensorDefinition]:
    """Build the sensors of one task: three, and one more where it has a fallback."""
    interval_s = load_settings().sensor_interval_s

    @dg.sensor(
        name=f"{task.name}__new_data",
        job_name=PLAN_JOB,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Asks all variants of each batch of {task.name} that is new or changed since this was turned on, as soon "
            f"as it is whole. Launches {PLAN_JOB}; what is up to date is not asked again."
        ),
    )
    def new_data(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        since = dt.datetime.fromisoformat(context.cursor) if context.cursor else now()
        found = _request(task, source, context.instance, Selection(since=since), since=since.isoformat())
        return _answer(found, cursor=since.isoformat())

    @dg.sensor(
        name=f"{task.name}__missing_and_stale",
        job_name=PLAN_JOB,
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Asks whatever is missing or stale in {task.name}: new and changed records, the partitions of an edited "
            f"prompt or model. Launches {PLAN_JOB}; passes over what failed too often."
        ),
    )
    def missing_and_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _answer(_request(task, source, context.instance, Selection()))

    @dg.sensor(
        name=f"{task.name}__results_follow",
        job_name=job_name(task.name, RESULTS_JOB),
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Makes the results of each output partition of {task.name} that is finished or has changed, but for those "
            "that a failing blocking check holds back. Asks no model."
        ),
    )
    def results_follow(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _answer(_follow(task, source, context.instance))

    return [new_data, missing_and_stale, results_follow, *_build_fallback_sensor(task, source, interval_s)]


def _build_fallback_sensor(task: Task, source: Source, interval_s: int) -> list[dg.SensorDefinition]:
    if task.fallback is None:
        return []

    @dg.sensor(
        name=f"{task.name}__fallback_follows",
        job_name=job_name(task.name, FALLBACKS_JOB),
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Asks {task.fallback.model_id} for what finished output partitions of {task.name} have quarantined, when "
            "no run makes outputs any more. Passes over what failed too often."
        ),
    )
    def fallback_follows(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _answer(_fall_back(task, source, context.instance))

    return [fallback_follows]


def _answer(tick: Tick, cursor: str | None = None) -> dg.SensorResult:
    if isinstance(tick, dg.SkipReason):
        return dg.SensorResult(skip_reason=tick, cursor=cursor)
    return dg.SensorResult(run_requests=[tick], cursor=cursor)


def _request(task: Task, source: Source, instance: DagsterInstance, selection: Selection, **config: str) -> Tick:
    """Request a run of the planner's job, if it would find something to launch."""
    with _open() as platform:
        in_flight = find_in_flight(instance, task)
        if in_flight.is_planning:
            return dg.SkipReason("the planner is at work")
        _, choice = _look(task, source, platform, instance, in_flight, selection)
    rest_until = find_rest_until(instance, PLAN_JOB, task)
    if rest_until and now() < rest_until:
        return dg.SkipReason(f"the planner's last run failed; it rests until {rest_until:%H:%M:%S} UTC")
    if not choice.unfrozen and not _has_rested(task, instance, choice):
        return dg.SkipReason(f"{choice.tell()}; the last runs failed, and the next is later")
    if not choice.unfrozen and not choice.needs:
        return dg.SkipReason(choice.tell())
    return plan_request(task, max_batches=MAX_BATCHES, max_partitions=MAX_PARTITIONS, **config)


def _has_rested(task: Task, instance: DagsterInstance, choice: Choice) -> bool:
    """Say whether some model that is needed may be launched now."""
    models = {task.variants[n.partition.variant].model.model_id for n in choice.needs}
    rests = [find_rest_until(instance, job_name(task.name, OUTPUTS_JOB, m), task) for m in models]
    return not rests or any(until is None or until <= now() for until in rests)


def _follow(task: Task, source: Source, instance: DagsterInstance) -> Tick:
    with _open() as platform:
        in_flight = find_in_flight(instance, task)
        plan, choice = _look(task, source, platform, instance, in_flight, Selection())
    if not choice.outdated:
        return dg.SkipReason("every finished output partition has its results, or a gate holds them back")
    job = job_name(task.name, RESULTS_JOB)
    waited_s = (now() - plan.outdated_since).total_seconds() if plan.outdated_since else 0.0
    if in_flight.is_asking and len(choice.outdated) < FOLLOW_AT_ONCE and waited_s < FOLLOW_AFTER_S:
        return dg.SkipReason(f"{len(choice.outdated)} partitions are finished; their results follow with the next ones")
    rest_until = find_rest_until(instance, job, task)
    if rest_until and now() < rest_until:
        return dg.SkipReason(f"the last run of {job} failed; the next is at {rest_until:%H:%M:%S} UTC")
    return results_request(task, choice.outdated[:MAX_RESULTS])


def _fall_back(task: Task, source: Source, instance: DagsterInstance) -> Tick:
    with _open() as platform:
        in_flight = find_in_flight(instance, task)
        plan, choice = _look(task, source, platform, instance, in_flight, Selection())
    if not choice.fallbacks:
        waits = plan.fallbacks and in_flight.is_asking
        why = "outputs are being made; the fallback follows then" if waits else choice.tell()
        return dg.SkipReason(why)
    job = job_name(task.name, FALLBACKS_JOB)
    rest_until = find_rest_until(instance, job, task)
    if rest_until and now() < rest_until:
        return dg.SkipReason(f"the last run of {job} failed; the next is at {rest_until:%H:%M:%S} UTC")
    return fallbacks_request(task, choice.fallbacks[:MAX_PARTITIONS])


def _look(
    task: Task,
    source: Source,
    platform: Platform,
    instance: DagsterInstance,
    in_flight: InFlight,
    selection: Selection,
) -> tuple[Plan, Choice]:
    plan = make_plan(task, source, platform, instance, selection=selection, is_counting=False)
    with platform.database.read() as connection:
        failing = load_failing(connection, task.name)
    return plan, choose(plan, failing, in_flight, now())


@contextmanager
def _open() -> Generator[Platform, None, None]:
    platform = open_platform(load_settings())
    try:
        yield platform
    finally:
        platform.database.close()
