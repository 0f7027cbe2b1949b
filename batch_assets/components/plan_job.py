"""The planner as a job: freezes what is new, plans, and puts a run per model into the queue. Sensors launch it too."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster import DagsterInstance
from pydantic import Field

from batch_assets.assets.llm_outputs import parse_retry
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.assets.source_records import SourceCheck, freeze
from batch_assets.assets.variant_specs import specify
from batch_assets.components.launch_jobs import report
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.tasks import Task
from batch_assets.core.words import tell_count
from batch_assets.launches import (
    FAILURE_BUDGET,
    FALLBACKS_JOB,
    LAUNCHED_BY_TAG,
    OUTPUTS_JOB,
    PLAN_JOB,
    TASK_TAG,
    Choice,
    choose,
    enqueue,
    find_in_flight,
    find_rest_until,
    job_name,
    op_name,
)
from batch_assets.partitions import sync_partitions
from batch_assets.planner import Plan, Selection, make_plan
from batch_assets.resources import PLATFORM, Platform
from batch_assets.sources.base import Source
from batch_assets.store.database import now
from batch_assets.store.failures import load_failing, reset_failures

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
        """Return which part is meant. ConfigError for a moment that is none."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plannable:
    """A task as the planner's job needs it."""

    task: Task
    source: Source
    source_checks: Sequence[SourceCheck]


def build_plan_job(tasks: Mapping[str, Plannable], find_job: FindJob) -> dg.JobDefinition:
    """Build the job for all tasks. `find_job` returns a job of theirs by name."""

    @dg.op(name=op_name(PLAN_JOB), out=dg.Out(dg.Nothing), required_resource_keys={PLATFORM})
    def plan_op(context: dg.OpExecutionContext, config: PlanConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        if config.task and config.task not in tasks:
            raise ConfigError(f"task: {config.task!r}: there are {', '.join(sorted(tasks)) or 'none'}")
        broken: list[str] = []
        for name in [config.task] if config.task else sorted(tasks):
            with outlast_lost_store(context, platform):
                planning = _Planning(context, platform, tasks[name], config)
                try:
                    yield from planning.freeze()
                except SourceError as e:
                    broken.append(str(e))  # of some batches; the others go on, and the run tells of it at its end
                for job, launch in planning.launches():
                    tags = {TASK_TAG: name, LAUNCHED_BY_TAG: context.run.run_id}
                    run_id = enqueue(context.instance, find_job(job), launch, tags, context.run)
                    context.log.info(f"{job}: {len(launch['partitions'])} partitions, run {run_id} is in the queue")
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
        self, context: dg.OpExecutionContext, platform: Platform, plannable: Plannable, config: PlanConfig
    ) -> None:
        self._context = context
        self._instance: DagsterInstance = context.instance
        self._log: Callable[[str], object] = context.log.info
        self._platform = platform
        self._task, self._source, self._checks = plannable.task, plannable.source, plannable.source_checks
        self._config = config
        self._selection = config.selection()
        self._retry = parse_retry(config.retry)
        for variant in config.variants:
            platform.spec(self._task, variant)

    def freeze(self) -> Iterator[Any]:
        """Freeze what is new or changed, and describe the variants. Raises SourceError for what can't be read."""
        sync_partitions(self._task, self._source, self._instance, is_retiring=False)
        if self._config.reset_failures:
            with self._platform.database.write() as connection:
                count = reset_failures(connection, self._task.name)
            self._log(f"{self._task.name}: forgot the failures of {tell_count(count, 'partition')}")
        plan, choice = self._choose()
        batches = [r.batch for r in choice.unfrozen[: self._config.max_batches or None]]
        if batches or plan.unspecified:
            frozen, described = (
                tell_count(len(batches), "batch", "batches"),
                tell_count(len(plan.unspecified), "variant"),
            )
            self._log(f"{self._task.name}: freezing {frozen}, describing {described}")
        yield from report(self._task, self._context, specify(self._task, self._platform, plan.unspecified))
        run_id = self._context.run.run_id
        stamps = freeze(self._task, self._source, self._platform, batches, self._checks, run_id)
        yield from report(self._task, self._context, stamps)

    def launches(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the jobs to put into the queue, each with its config."""
        _, choice = self._choose()
        needs = choice.needs[: self._config.max_partitions or None]
        self._log(f"{self._task.name}: {len(needs)} output partitions to do; {choice.tell()}")
        for failing in choice.held:
            self._log(f"passed over: {failing.partition} failed {failing.failures} times: {failing.error or 'killed'}")
        for model_id in self._task.models:
            mine = [n for n in needs if self._task.variants[n.partition.variant].model.model_id == model_id]
            job = job_name(self._task.name, OUTPUTS_JOB, model_id)
            if mine and not self._rests(job, len(mine)):
                yield job, {"partitions": [str(n.partition) for n in mine], "retry": self._retry.value}
        job = job_name(self._task.name, FALLBACKS_JOB)
        fallbacks = choice.fallbacks[: self._config.max_partitions or None]
        if fallbacks and not needs and not self._rests(job, len(fallbacks)):
            yield job, {"partitions": [str(p) for p in fallbacks]}

    def _rests(self, job: str, partitions: int) -> bool:
        """Say whether a job is left alone since its last runs failed, and tell of it."""
        rest_until = find_rest_until(self._instance, job, self._task)
        if rest_until is None or now() >= rest_until:
            return False
        self._log(f"{job}: its last runs failed; {partitions} partitions wait until {rest_until:%H:%M:%S} UTC")
        return True

    def _choose(self) -> tuple[Plan, Choice]:
        plan = make_plan(
            self._task, self._source, self._platform, self._instance,
            selection=self._selection, retry=self._retry, is_counting=False,
        )  # fmt: skip
        with self._platform.database.read() as connection:
            failing = load_failing(connection, self._task.name)
        in_flight = find_in_flight(self._instance, self._task, but=self._context.run.run_id)
        budget, is_patient = self._config.failure_budget, self._config.is_patient
        return plan, choose(plan, failing, in_flight, now(), budget=budget, is_patient=is_patient)
