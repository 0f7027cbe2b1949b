"""`run`: the planner's work, launched in this process on the instance that the web UI shows."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from batch_assets.components.project import Project
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.errors import BatchAssetsError, find_cause
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.core.words import tell_count
from batch_assets.launches import (
    COMMAND_LINE,
    FALLBACKS_JOB,
    LAUNCHED_BY_TAG,
    OUTPUTS_JOB,
    RESULTS_JOB,
    SOURCES_JOB,
    job_name,
    op_config,
    op_name,
)
from batch_assets.partitions import PartitionKey, sync_partitions
from batch_assets.planner import Need, Plan, Selection, make_plan
from batch_assets.resources import PLATFORM, Platform, end_dead_runs, find_pool_holders, process_tags
from batch_assets.runner.work import Progress, Tally
from batch_assets.sources.base import Source
from batch_assets.store.batches import touch_batch
from batch_assets.store.fallbacks import load_fallbacks

Say = Callable[[str], None]
POOL_POLL_S = 2.0
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
    requests_sent: int = 0
    tally: Tally = field(default_factory=Tally)
    fallback: Tally = field(default_factory=Tally)
    """What the fallback model was asked in this run."""
    partitions_done: int = 0
    partitions: list[PartitionKey] = field(default_factory=list[PartitionKey])
    passed_over: list[Need] = field(default_factory=list[Need])
    failed_checks: list[FailedCheck] = field(default_factory=list[FailedCheck])
    held_back: str = ""
    """Partitions whose results weren't made, and why."""
    run_ids: list[str] = field(default_factory=list[str])


class Launcher:
    """Runs a task's jobs one after another: sources, outputs by model, the fallback, results."""

    def __init__(self, project: Project, platform: Platform, instance: DagsterInstance, say: Say) -> None:
        self._project = project
        self._instance = instance
        self._say = say
        self._tally = Tally()
        watched = platform.observer

        def observe(progress: Progress) -> None:
            self._tally = progress.tally
            if watched is not None:
                watched(progress)

        self._platform = replace(platform, observer=observe)

    def run(self, task: Task, source: Source, selection: Selection, retry: RetryMode) -> RunSummary:
        """Bring a task up to date. Raises the error that stopped it; what was done until then is committed.

        A fallback that can't be asked is told at the end: the results are made without it.
        """
        started = time.monotonic()
        summary = RunSummary(task=task.name)
        sync_partitions(task, source, self._instance)
        plan = make_plan(task, source, self._platform, self._instance, selection=selection, retry=retry)
        self._freeze(plan, summary)
        if plan.unfrozen:  # what a new batch takes over from an earlier one makes that one stale as well
            plan = make_plan(task, source, self._platform, self._instance, selection=selection, retry=retry)
        summary.passed_over = [n for n in plan.needs if n.leased_by]
        needs = [n for n in plan.needs if not n.leased_by]
        for model in task.models.values():
            mine = [n for n in needs if task.variants[n.partition.variant].model.model_id == model.model_id]
            self._ask(task, model, mine, retry, summary)
        try:
            self._fall_back(task, source, selection, plan, retry, summary)
        except BatchAssetsError:  # what the models before it have answered doesn't wait for it
            self._follow(task, source, selection, plan, needs, summary)
            raise
        self._follow(task, source, selection, plan, needs, summary)
        summary.partitions = sorted([*plan.done, *(n.partition for n in needs)])
        summary.partitions_done = len(plan.done)
        summary.seconds = time.monotonic() - started
        return summary

    def _freeze(self, plan: Plan, summary: RunSummary) -> None:
        with self._platform.database.write() as connection:
            for ref in plan.touched:
                touch_batch(connection, plan.task.name, ref.batch, ref.stamp)
        if plan.unfrozen or plan.unspecified:
            batches = tell_count(len(plan.unfrozen), "batch", "batches")
            self._say(f"freezing {batches}, describing {tell_count(len(plan.unspecified), 'variant')}")
            config = {"batches": [ref.batch for ref in plan.unfrozen], "variants": list(plan.unspecified)}
            self._execute(job_name(plan.task.name, SOURCES_JOB), config, summary)

    def _ask(self, task: Task, model: ModelEntry, needs: Sequence[Need], retry: RetryMode, summary: RunSummary) -> None:
        if not needs:
            return
        total = sum(n.to_ask + n.rejudged for n in needs)
        self._say(f"{tell_count(len(needs), 'partition')}, {tell_count(total, 'record')} to do")
        partitions = [str(n.partition) for n in needs]
        self._wait_for_pool(model.pool)
        self._tally = Tally()
        try:
            config = {"partitions": partitions, "retry": retry.value, "total": total}
            self._execute(job_name(task.name, OUTPUTS_JOB, model.model_id), config, summary)
        finally:
            summary.tally.add(self._tally)
            summary.requests_sent += self._tally.sent

    def _fall_back(
        self, task: Task, source: Source, selection: Selection, plan: Plan, retry: RetryMode, summary: RunSummary
    ) -> None:
        """Ask the fallback model for what is quarantined, now that the engines before it have closed."""
        if task.fallback is None:
            return
        if plan.needs:
            plan = make_plan(task, source, self._platform, self._instance, selection=selection)
        partitions = sorted({*plan.fallbacks, *self._find_retried(task, plan, retry)})
        if not partitions:
            return
        self._say(f"asking {task.fallback.model_id} for what {tell_count(len(partitions), 'partition')} quarantined")
        self._wait_for_pool(task.fallback.pool)
        self._tally = Tally()
        try:
            config = {"partitions": [str(p) for p in partitions], "retry": retry.value}
            self._execute(job_name(task.name, FALLBACKS_JOB), config, summary)
        finally:
            summary.fallback.add(self._tally)
            summary.requests_sent += self._tally.sent

    def _find_retried(self, task: Task, plan: Plan, retry: RetryMode) -> list[PartitionKey]:
        """Return the finished partitions whose fallback has rows that are to be asked again."""
        with self._platform.database.read() as connection:
            made = load_fallbacks(connection, task.name)
        done = {p: made[p.batch, p.variant].counts for p in plan.done if (p.batch, p.variant) in made}
        return [
            p
            for p, counts in done.items()
            if p.variant in task.fallbacks and any(counts.get(s) for s in Status if retry.selects(s))
        ]

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

    def _follow(
        self, task: Task, source: Source, selection: Selection, plan: Plan, needs: Sequence[Need], summary: RunSummary
    ) -> None:
        if needs or summary.run_ids:
            plan = make_plan(task, source, self._platform, self._instance, selection=selection)
        finished = {n.partition for n in needs} & set(plan.done)
        partitions = sorted({*plan.outdated, *finished})
        if partitions:
            self._say(f"making the results of {tell_count(len(partitions), 'partition')}")
            job = job_name(task.name, RESULTS_JOB)
            result = self._execute(job, {"partitions": [str(p) for p in partitions]}, summary)
            summary.held_back = result.output_for_node(op_name(job))

    def _execute(self, job: str, config: Mapping[str, Any], summary: RunSummary) -> dg.ExecuteInProcessResult:
        definition = self._project.definitions.resolve_job_def(job)
        run_id = str(uuid.uuid4())
        try:
            result = definition.execute_in_process(
                run_config=op_config(job, config),
                instance=self._instance,
                resources={PLATFORM: self._platform},
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
