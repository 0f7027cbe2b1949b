"""`run`: the planner's work, launched in this process on the instance that the web UI shows."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError, find_cause
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.core.words import format_count
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.dagster.dead_runs import end_dead_runs, find_pool_holders, process_tags
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.dagster.project import Project
from batch_assets.dagster.runs import COMMAND_LINE, LAUNCHED_BY_TAG, op_config, op_name, step_config, step_job
from batch_assets.pipeline.dispatch import NextStep, bring_up_to_date
from batch_assets.pipeline.plan import PartitionNeed, Plan, Selection, make_plan
from batch_assets.pipeline.platform import Platform
from batch_assets.run.partition_run import Tally
from batch_assets.sources.base import Source
from batch_assets.store.batches import touch_batch
from batch_assets.store.heartbeats import keep_heartbeat

Say = Callable[[str], None]
POOL_POLL_S = 2.0
_ASKING = (Step.OUTPUTS, Step.FALLBACKS)
NEVER_RETRIED = {"dagster/max_retries": "0"}
"""Whoever called the command calls it again: the daemon has no part in its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A check that failed in this run."""

    asset: str
    check: str
    partition: str
    severity: str
    metadata: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class RunSummary:
    """What `run` did."""

    task: str
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    """What the variants' models were asked in this run."""
    fallback: Tally = field(default_factory=Tally)
    """What the fallback model was asked in this run."""
    partitions_done: int = 0
    partitions: list[PartitionKey] = field(default_factory=list[PartitionKey])
    passed_over: list[PartitionNeed] = field(default_factory=list[PartitionNeed])
    failed_checks: list[FailedCheck] = field(default_factory=list[FailedCheck])
    held_back: str = ""
    """Partitions whose results weren't made, and why."""
    run_ids: list[str] = field(default_factory=list[str])

    @property
    def requests_sent(self) -> int:
        """How many requests left in this run, to any model."""
        return self.tally.sent + self.fallback.sent


class Launcher:
    """Carries out a task's steps in this process, each as a run of its job on the instance that the web UI shows."""

    def __init__(self, project: Project, platform: Platform, instance: DagsterInstance, say: Say) -> None:
        self._project = project
        self._instance = instance
        self._say = say
        self._platform = platform

    def run(self, task: Task, source: Source, selection: Selection, retry: RetryMode) -> RunSummary:
        """Bring a task up to date. Raises the error that stopped it; what was done until then is committed."""
        started = time.monotonic()
        summary = RunSummary(task=task.name)
        sync_partitions(task, source, self._instance)

        def look(retry: RetryMode, fallback_retry: RetryMode, is_counting: bool) -> Plan:
            plan = make_plan(
                task, source, self._platform, load_recorded(self._instance, task),
                selection=selection, retry=retry, fallback_retry=fallback_retry, is_counting=is_counting,
            )  # fmt: skip
            self._touch(plan)
            return plan

        plans = bring_up_to_date(look, lambda step: self._carry_out(task, step, retry, summary), retry)
        first = next((p for p in plans if not p.unfrozen), plans[-1])  # what was there to be asked
        summary.passed_over = [n for n in first.needs if n.leased_by]
        summary.partitions = sorted([*first.done, *(n.partition for n in first.needs if not n.leased_by)])
        summary.partitions_done = len(first.done)
        summary.seconds = time.monotonic() - started
        return summary

    def _touch(self, plan: Plan) -> None:
        """Remember the change tokens of batches whose content is as it was, so that they aren't read again."""
        with self._platform.database.write() as connection:
            for ref in plan.touched:
                touch_batch(connection, plan.task.name, ref.batch, ref.change_token)

    def _carry_out(self, task: Task, step: NextStep, retry: RetryMode, summary: RunSummary) -> None:
        self._say(_format_step(step))
        if step.step in _ASKING:
            model = task.models.get(step.model_id) or task.fallback
            self._wait_for_pool(model.pool if model else "")
        asked = summary.fallback if step.step is Step.FALLBACKS else summary.tally  # counts at a failure too
        platform = replace(self._platform, asked=asked)
        result = self._execute(step_job(task, step), step_config(step, retry), platform, summary)
        if step.step is Step.RESULTS:
            summary.held_back = result.output_for_node(op_name(step_job(task, step)))

    def _wait_for_pool(self, pool: str) -> None:
        """Wait for a free slot in the pool, and say for whom: Dagster waits in silence and hears no signal."""
        said: set[str] = set()
        while holders := find_pool_holders(self._instance, pool):
            for run_id in end_dead_runs(self._instance, self._platform.database):
                self._say(f"run {run_id} was killed; its slot in pool {pool} is free again")
            for run_id in holders - said:
                self._say(f"waiting for run {run_id}, which holds the pool {pool}")
            said |= holders
            time.sleep(POOL_POLL_S)

    def _execute(
        self, job: str, config: Mapping[str, Any], platform: Platform, summary: RunSummary
    ) -> dg.ExecuteInProcessResult:
        definition = self._project.definitions.resolve_job_def(job)
        run_id = str(uuid.uuid4())
        try:
            with keep_heartbeat(platform.database, run_id):
                result = definition.execute_in_process(
                    run_config=op_config(job, config),
                    instance=self._instance,
                    resources={PLATFORM: platform},
                    run_id=run_id,
                    tags={**process_tags(run_id), LAUNCHED_BY_TAG: COMMAND_LINE, **NEVER_RETRIED},
                )
        except Exception as e:
            raise find_cause(e) or e from e
        summary.run_ids.append(result.run_id)
        summary.failed_checks += [_read_check(e) for e in result.all_events if _is_failed_check(e)]
        if not result.success:
            raise BatchAssetsError(f"run {result.run_id} failed; the web UI shows why")
        return result


def _format_step(step: NextStep) -> str:
    """Return what a step does, for a person who waits for it."""
    partitions = format_count(len(step.partitions), "partition")
    match step.step:
        case Step.SOURCES:
            frozen = format_count(len(step.batches), "batch", "batches")
            return f"freezing {frozen}, describing {format_count(len(step.variants), 'variant')}"
        case Step.OUTPUTS:
            return f"{partitions}, {format_count(step.records, 'record')} to do"
        case Step.FALLBACKS:
            return f"asking {step.model_id} for what {partitions} quarantined"
        case Step.RESULTS:
            return f"making the results of {partitions}"


def _is_failed_check(event: dg.DagsterEvent) -> bool:
    is_check = event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
    return is_check and not event.asset_check_evaluation_data.passed


def _read_check(event: dg.DagsterEvent) -> FailedCheck:
    data = event.asset_check_evaluation_data
    return FailedCheck(
        asset=data.asset_key.path[-1],
        check=data.check_name,
        partition=data.partition or "",
        severity=data.severity.value,
        metadata={k: v.value for k, v in data.metadata.items()},
    )
