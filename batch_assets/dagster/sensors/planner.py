"""The planner as sensors: new data, whatever is missing or stale, the fallback and the results of what is finished.

They look, and launch the planner's job or a step's job, which does the reading: a tick has a minute. What is on the way
already is passed over, so that a tick too many does no harm.
"""

import datetime as dt

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.planning import View, look_at_task, open_for_tick
from batch_assets.dagster.runs import PLAN_JOB, find_rest_until, job_name, plan_request, step_job, step_request
from batch_assets.pipeline.dispatch import NextStep, list_next_steps
from batch_assets.pipeline.plan import EVERYTHING, Selection
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.store.database import now

MAX_BATCHES = 100
MAX_PARTITIONS = 10_000
MAX_RESULTS = 1000
FOLLOW_AT_ONCE, FOLLOW_AFTER_S = 500, 120.0
"""While outputs are being made, results follow when so many have gathered or the first has waited so long."""

Tick = dg.RunRequest | dg.SkipReason


def build_planner_sensors(task: Task, source: Source) -> list[dg.SensorDefinition]:
    """Build the sensors of one task: three, and one more if it has a fallback."""
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
        found = _request_plan(task, source, context.instance, Selection(since=since), since=since.isoformat())
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
        return _answer(_request_plan(task, source, context.instance, EVERYTHING))

    @dg.sensor(
        name=f"{task.name}__results_follow",
        job_name=job_name(task.name, Step.RESULTS),
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Makes the results of each output partition of {task.name} that is finished or has changed, but for those "
            "that a failing blocking check holds back. Asks no model."
        ),
    )
    def results_follow(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _answer(_request_results(task, source, context.instance))

    return [new_data, missing_and_stale, results_follow, *_build_fallback_sensor(task, source, interval_s)]


def _build_fallback_sensor(task: Task, source: Source, interval_s: int) -> list[dg.SensorDefinition]:
    if task.fallback is None:
        return []

    @dg.sensor(
        name=f"{task.name}__fallback_follows",
        job_name=job_name(task.name, Step.FALLBACKS),
        minimum_interval_seconds=interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Asks {task.fallback.model_id} for what finished output partitions of {task.name} have quarantined, when "
            "no run makes outputs any more. Passes over what failed too often."
        ),
    )
    def fallback_follows(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _answer(_request_fallback(task, source, context.instance))

    return [fallback_follows]


def _answer(tick: Tick, cursor: str | None = None) -> dg.SensorResult:
    if isinstance(tick, dg.SkipReason):
        return dg.SensorResult(skip_reason=tick, cursor=cursor)
    return dg.SensorResult(run_requests=[tick], cursor=cursor)


def _look(task: Task, source: Source, instance: DagsterInstance, selection: Selection = EVERYTHING) -> View:
    with open_for_tick() as platform:
        return look_at_task(task, source, platform, instance, selection=selection)


def _request_plan(task: Task, source: Source, instance: DagsterInstance, selection: Selection, **config: str) -> Tick:
    """Request a run of the planner's job, if it would find something to launch."""
    view = _look(task, source, instance, selection)
    if view.in_flight.is_planning:
        return dg.SkipReason("the planner is at work")
    rest_until = find_rest_until(instance, PLAN_JOB, task)
    if rest_until and now() < rest_until:
        return dg.SkipReason(f"the planner's last run failed; it rests until {rest_until:%H:%M:%S} UTC")
    outputs = _list_steps(view, Step.OUTPUTS)
    if not view.choice.unfrozen:
        if not outputs:
            return dg.SkipReason(view.choice.format_summary())
        if not any(_has_rested(task, instance, step) for step in outputs):
            return dg.SkipReason(f"{view.choice.format_summary()}; the last runs failed, and the next is later")
    return plan_request(task, max_batches=MAX_BATCHES, max_partitions=MAX_PARTITIONS, **config)


def _list_steps(view: View, kind: Step, max_partitions: int = 0) -> list[NextStep]:
    return [s for s in list_next_steps(view.plan, view.choice, max_partitions=max_partitions) if s.step is kind]


def _has_rested(task: Task, instance: DagsterInstance, step: NextStep) -> bool:
    """Say whether the job of a step may run now."""
    rest_until = find_rest_until(instance, step_job(task, step), task)
    return rest_until is None or rest_until <= now()


def _request_results(task: Task, source: Source, instance: DagsterInstance) -> Tick:
    view = _look(task, source, instance)
    steps = _list_steps(view, Step.RESULTS, MAX_RESULTS)
    if not steps:
        return dg.SkipReason("every finished output partition has its results, or a gate holds them back")
    found, since = len(view.choice.outdated), view.plan.outdated_since
    waited_s = (now() - since).total_seconds() if since else 0.0
    if view.in_flight.is_asking and found < FOLLOW_AT_ONCE and waited_s < FOLLOW_AFTER_S:
        return dg.SkipReason(f"{found} partitions are finished; their results follow with the next ones")
    return _request_rested(task, instance, steps[0])


def _request_fallback(task: Task, source: Source, instance: DagsterInstance) -> Tick:
    view = _look(task, source, instance)
    steps = _list_steps(view, Step.FALLBACKS, MAX_PARTITIONS)
    if not steps:
        waits = view.plan.fallbacks and view.in_flight.is_asking
        why = "outputs are being made; the fallback follows then" if waits else view.choice.format_summary()
        return dg.SkipReason(why)
    return _request_rested(task, instance, steps[0])


def _request_rested(task: Task, instance: DagsterInstance, step: NextStep) -> Tick:
    """Request a run of a step, unless its last runs failed."""
    job = step_job(task, step)
    rest_until = find_rest_until(instance, job, task)
    if rest_until and now() < rest_until:
        return dg.SkipReason(f"the last run of {job} failed; the next is at {rest_until:%H:%M:%S} UTC")
    return step_request(task, step)
