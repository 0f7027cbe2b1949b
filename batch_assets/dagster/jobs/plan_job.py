"""The planner as a job: freezes what is new, plans, and puts a run per model into the queue. Sensors launch it too."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
from dagster import DagsterInstance
from pydantic import Field

from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.core.words import format_count
from batch_assets.dagster.jobs.launch_jobs import report
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.planning import View, look_at_task
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.dagster.runs import (
    LAUNCHED_BY_RUN_TAG,
    LAUNCHED_BY_TAG,
    PLAN_JOB,
    TASK_TAG,
    enqueue,
    find_rest_until,
    op_name,
    step_config,
    step_job,
)
from batch_assets.pipeline.ask_partitions import parse_retry
from batch_assets.pipeline.carry_out import carry_out
from batch_assets.pipeline.dispatch import FAILURE_BUDGET, NextStep, list_next_steps
from batch_assets.pipeline.plan import Selection
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source
from batch_assets.store.database import now
from batch_assets.store.failures import reset_failures

FindJob = Callable[[str], dg.JobDefinition]


class PlanConfig(dg.Config):
    """What to bring up to date. Without any of it: whatever is missing or stale, of every task."""

    task: str = Field("", description="The task; empty means all.")
    batches: list[str] = Field([], description="Only these batches; empty means all.")
    variants: list[str] = Field([], description="Only these variants, <prompt_ver>--<model_id>; empty means all.")
    retry: str = Field("none", description="Ask again although nothing changed: none, errors, failed or all.")
    failure_budget: int = Field(
        FAILURE_BUDGET, ge=1, description="Pass over a partition that failed so often since it last succeeded."
    )
    reset_failures: bool = Field(False, description="First forget how often partitions have failed.")
    max_partitions: int = Field(0, ge=0, description="Launch so many output partitions at most; 0 means all.")
    max_batches: int = Field(0, ge=0, description="Freeze so many batches at most; 0 means all.")
    is_patient: bool = Field(
        False, description="Leave files alone that were written in the last seconds: they may be half there."
    )
    since: str = Field("", description="Only batches frozen since this moment (ISO 8601), and those to be frozen.")

    def selection(self) -> Selection:
        """Return which part is meant. Raises ConfigError for a moment that is none."""
        return Selection(
            batches=frozenset(self.batches) or None,
            variants=frozenset(self.variants) or None,
            since=_parse_moment(self.since),
        )


def _parse_moment(text: str) -> dt.datetime | None:
    if not text:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError(f"since: {text!r} is no moment, such as 2026-11-29T02:00:00+00:00") from e
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def build_plan_job(tasks: Mapping[str, tuple[Task, Source]], find_job: FindJob) -> dg.JobDefinition:
    """Build the job for all tasks, which come by name with their sources. `find_job` returns a job of theirs."""

    @dg.op(name=op_name(PLAN_JOB), out=dg.Out(dg.Nothing), required_resource_keys={PLATFORM})
    def plan_op(context: dg.OpExecutionContext, config: PlanConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with plain_failures(context, platform):
            if config.task and config.task not in tasks:
                raise ConfigError(f"task: {config.task!r}: there are {', '.join(sorted(tasks)) or 'none'}")
            broken: list[str] = []
            for name in [config.task] if config.task else sorted(tasks):
                planning = _Planning(context, platform, *tasks[name], config)
                try:
                    yield from planning.freeze()
                except SourceError as e:
                    broken.append(str(e))  # of some batches; the others go on, and the run raises at its end
                for step in planning.list_launches():
                    job = step_job(tasks[name][0], step)
                    by_run = f"run {context.run.run_id[:8]} of {PLAN_JOB}"
                    tags = {TASK_TAG: name, LAUNCHED_BY_TAG: by_run, LAUNCHED_BY_RUN_TAG: context.run.run_id}
                    launch = step_config(step, planning.retry)
                    run_id = enqueue(context.instance, find_job(job), launch, tags, context.run)
                    context.log.info(f"{job}: {len(step.partitions)} partitions, run {run_id} is in the queue")
            if broken:
                raise SourceError("; ".join(broken))
        yield dg.Output(None)

    words = (
        "Freezes what is new or changed, then launches whatever is missing or stale: one run per task and model, whose "
        "config lists the partitions. Its own config says of what task, batches and variants, and how much; none of "
        "it is everything."
    )

    @dg.job(name=PLAN_JOB, description=words, executor_def=dg.in_process_executor)
    def plan_job() -> None:
        plan_op()

    return plan_job


class _Planning:
    """The planning of one task in one run."""

    def __init__(
        self, context: dg.OpExecutionContext, platform: Platform, task: Task, source: Source, config: PlanConfig
    ) -> None:
        self._context = context
        self._instance: DagsterInstance = context.instance
        self._log: Callable[[str], object] = context.log.info
        self._platform = platform
        self._task, self._source = task, source
        self._config = config
        self._selection = config.selection()
        self.retry = parse_retry(config.retry)
        for variant in config.variants:
            platform.spec(task, variant)

    def freeze(self) -> Iterator[Any]:
        """Freeze what is new or changed, and describe the variants. Raises SourceError for what can't be read."""
        sync_partitions(self._task, self._source, self._instance, is_retiring=False)
        if self._config.reset_failures:
            with self._platform.database.write() as connection:
                count = reset_failures(connection, self._task.name)
            self._log(f"{self._task.name}: forgot the failures of {format_count(count, 'partition')}")
        for step in self._list_steps(self._look()):
            if step.step is Step.SOURCES:
                frozen = format_count(len(step.batches), "batch", "batches")
                described = format_count(len(step.variants), "variant")
                self._log(f"{self._task.name}: freezing {frozen}, describing {described}")
                run_id = self._context.run.run_id
                made = carry_out(self._task, self._source, self._platform, step, run_id=run_id)
                yield from report(self._task, self._context, made)

    def list_launches(self) -> list[NextStep]:
        """Return the steps whose jobs go into the queue: outputs, or else the fallback. Results are a sensor's."""
        view = self._look()
        steps = self._list_steps(view)
        outputs = [s for s in steps if s.step is Step.OUTPUTS]
        count = sum(len(s.partitions) for s in outputs)
        self._log(f"{self._task.name}: {count} output partitions to do; {view.choice.format_summary()}")
        for failing in view.choice.over_budget:
            self._log(f"passed over: {failing.partition} failed {failing.failures} times: {failing.error or 'killed'}")
        chosen = outputs or [s for s in steps if s.step is Step.FALLBACKS]
        return [s for s in chosen if not self._rests(step_job(self._task, s), len(s.partitions))]

    def _rests(self, job: str, partitions: int) -> bool:
        """Say whether a job is left alone since its last runs failed, and log that."""
        rest_until = find_rest_until(self._instance, job, self._task)
        if rest_until is None or now() >= rest_until:
            return False
        self._log(f"{job}: its last runs failed; {partitions} partitions wait until {rest_until:%H:%M:%S} UTC")
        return True

    def _list_steps(self, view: View) -> list[NextStep]:
        limits = self._config
        return list_next_steps(
            view.plan, view.choice, max_batches=limits.max_batches, max_partitions=limits.max_partitions
        )

    def _look(self) -> View:
        return look_at_task(
            self._task, self._source, self._platform, self._instance,
            selection=self._selection, retry=self.retry,
            budget=self._config.failure_budget, is_patient=self._config.is_patient, but=self._context.run.run_id,
        )  # fmt: skip
