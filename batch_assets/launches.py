"""From a plan to runs: the names of the jobs, what is in flight already, and what is worth launching now.

Sensors, schedules, the planner's job and the command line all go through here. It decides by level, as the planner
does: nothing is remembered between two looks but what the store and Dagster hold anyway.
"""

import datetime as dt
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster import DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.definitions.repository_definition.valid_definitions import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.utils import make_new_run_id
from dagster._core.workspace.load_target import ModuleTarget, WorkspaceFileTarget

from batch_assets.asset_keys import LLM_OUTPUTS, asset_key
from batch_assets.core.errors import ConfigError
from batch_assets.core.tasks import Task
from batch_assets.partitions import PartitionKey
from batch_assets.planner import Need, Plan
from batch_assets.sources.base import BatchRef
from batch_assets.store.failures import Failing, Step

PLAN_JOB = "launch_missing_and_stale"
"""The planner as a job, for all tasks."""

COMMAND_LINE = "command line"
"""Who launched a run, where no run did."""
DAEMON_ALIVE_S = 60.0
DEFINITIONS = "batch_assets.definitions"
"""The module that the webserver and the daemon load."""

SOURCES_JOB, OUTPUTS_JOB, FALLBACKS_JOB, RESULTS_JOB = "sources", "outputs", "fallbacks", "results"
ASSET_JOB = "__ASSET_JOB"
"""Dagster's name of the runs that people and backfills start on assets."""
TASK_TAG, LAUNCHED_BY_TAG = "batch_assets/task", "batch_assets/launched_by"
RUN_ENDED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
UNFINISHED = [s for s in DagsterRunStatus if s not in RUN_ENDED]

FAILURE_BUDGET = 3
RESULTS_BUDGET = 1
"""A gate that refused an output's results refuses them until the output changes."""
FIRST_WAIT_S, MAX_WAIT_S = 30.0, 3600.0
SEEN_RUNS = 10
SHOWN = 5


def job_name(task: str, job: str, model_id: str = "") -> str:
    """Return the name of a task's job; the outputs job is one per model, since pool and tags are the model's."""
    model = f"__{re.sub(r'[^A-Za-z0-9_]', '_', model_id)}" if model_id else ""
    return f"{task}__launch_{job}{model}"


def op_name(job: str) -> str:
    """Return the name of a job's only op, under which its config goes."""
    return f"{job}_op"


def check_job_names(task: Task) -> None:
    """Raise ConfigError where two models of a task would have one job."""
    names: dict[str, str] = {}
    for model_id in task.models:
        other = names.setdefault(job_name(task.name, OUTPUTS_JOB, model_id), model_id)
        if other != model_id:
            raise ConfigError(f"task {task.name}: models {other} and {model_id} differ in signs alone: rename one")


def op_config(job: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config of a job."""
    return {"ops": {op_name(job): {"config": dict(config)}}}


def read_config(run: DagsterRun) -> Mapping[str, Any]:
    """Return what the op of one of our jobs was given; empty for any other run."""
    ops = cast("dict[str, Any]", run.run_config.get("ops", {}))
    return ops.get(op_name(run.job_name), {}).get("config", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """What unfinished runs of a task's jobs are to do, begun or still in the queue: keys of partitions by step."""

    partitions: Mapping[Step, frozenset[str]] = field(default_factory=dict[Step, frozenset[str]])
    is_planning: bool = False
    is_asking: bool = False
    """Whether some run makes outputs, the asset's own runs included."""

    def has(self, step: Step, partition: str) -> bool:
        """Say whether some run has it on its list."""
        return partition in self.partitions.get(step, frozenset())


def find_in_flight(instance: DagsterInstance, task: Task, *, but: str = "") -> InFlight:
    """Look at the unfinished runs of a task's jobs, all `but` one."""
    found: dict[Step, set[str]] = {step: set() for step in Step}
    names = {
        job_name(task.name, SOURCES_JOB): Step.SOURCES,
        job_name(task.name, FALLBACKS_JOB): Step.FALLBACKS,
        job_name(task.name, RESULTS_JOB): Step.RESULTS,
        **{job_name(task.name, OUTPUTS_JOB, m): Step.OUTPUTS for m in task.models},
    }
    for job, step in names.items():
        for run in instance.get_runs(RunsFilter(job_name=job, statuses=UNFINISHED)):
            if run.run_id != but:
                config = read_config(run)
                found[step] |= {*config.get("batches", ()), *config.get("partitions", ())}
    planning = [
        run
        for run in instance.get_runs(RunsFilter(job_name=PLAN_JOB, statuses=UNFINISHED))
        if run.run_id != but and read_config(run).get("task", "") in ("", task.name)
    ]
    outputs = asset_key(task, LLM_OUTPUTS)
    by_hand = instance.get_runs(RunsFilter(job_name=ASSET_JOB, statuses=UNFINISHED))
    return InFlight(
        partitions={s: frozenset(p) for s, p in found.items()},
        is_planning=bool(planning),
        is_asking=bool(found[Step.OUTPUTS]) or any(outputs in (run.asset_selection or ()) for run in by_hand),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a plan is worth launching now, and what is passed over with its reason.

    `held`: failed as often as the budget allows. `waiting`: failed, and to be tried again later. `busy`: leased by a
    live run or on the list of one. `unsettled`: batches that somebody may still be writing.
    """

    unfrozen: tuple[BatchRef, ...] = ()
    needs: tuple[Need, ...] = ()
    fallbacks: tuple[PartitionKey, ...] = ()
    outdated: tuple[PartitionKey, ...] = ()
    held: tuple[Failing, ...] = ()
    waiting: tuple[Failing, ...] = ()
    busy: int = 0
    unsettled: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to launch."""
        return not (self.unfrozen or self.needs or self.fallbacks or self.outdated)

    def tell(self) -> str:
        """Say in a line what is left and why."""
        words = [
            f"{self.busy} partitions are at work or in the queue" if self.busy else "",
            f"waiting for {', '.join(self.unsettled[:SHOWN])} to be written" if self.unsettled else "",
            f"{len(self.waiting)} failed and are tried again later" if self.waiting else "",
            _name(self.held, (Step.SOURCES, Step.OUTPUTS, Step.FALLBACKS), "failed too often"),
            _name(self.held, (Step.RESULTS,), "have results that a check holds back"),
        ]
        return "; ".join(w for w in words if w) or "nothing is missing or stale"


def _name(held: Sequence[Failing], steps: Sequence[Step], words: str) -> str:
    names = [f.partition for f in held if f.step in steps]
    more = ", …" if len(names) > SHOWN else ""
    return f"{len(names)} {words}: {', '.join(names[:SHOWN])}{more}" if names else ""


def choose(
    plan: Plan,
    failing: Mapping[tuple[Step, str], Failing],
    in_flight: InFlight,
    now: dt.datetime,
    *,
    budget: int = FAILURE_BUDGET,
    is_patient: bool = True,
) -> Choice:
    """Pass over what is busy, what has just failed, what failed too often, and (patient) files that are being written.

    Output partitions of a batch that is to be frozen first are not among the needs: they come with the next look. The
    fallback comes when no run makes outputs any more: the first model's engine has closed then.
    A partition's failures count for what was being made of it: a changed record, prompt or model starts anew. Those
    that failed least go first, so that one that takes its run down doesn't hold up the others.
    """
    look = _Look(failing, in_flight, now)
    unsettled = [r.batch for r in plan.unfrozen if is_patient and not r.is_settled(now.timestamp())]
    unfrozen = [
        r for r in plan.unfrozen if r.batch not in unsettled and look.admits(Step.SOURCES, r.batch, r.stamp, budget)
    ]
    fallbacks = [
        p
        for p in plan.fallbacks
        if not in_flight.is_asking and look.admits(Step.FALLBACKS, str(p), plan.fallback_fingerprints[p], budget)
    ]
    outdated = [p for p in plan.outdated if look.admits(Step.RESULTS, str(p), plan.versions[p], RESULTS_BUDGET)]
    to_freeze = {r.batch for r in plan.unfrozen}
    needs = [
        n
        for n in plan.needs
        if n.partition.batch not in to_freeze
        and look.admits(Step.OUTPUTS, str(n.partition), n.fingerprint, budget, is_leased=n.leased_by is not None)
    ]
    needs.sort(key=lambda n: look.count(Step.OUTPUTS, str(n.partition)))
    return Choice(
        unfrozen=tuple(unfrozen),
        needs=tuple(needs),
        fallbacks=tuple(fallbacks),
        outdated=tuple(outdated),
        held=tuple(look.held),
        waiting=tuple(look.waiting),
        busy=look.busy,
        unsettled=tuple(unsettled),
    )


class _Look:
    """Sorts partitions into those to launch and those to pass over."""

    def __init__(self, failing: Mapping[tuple[Step, str], Failing], in_flight: InFlight, now: dt.datetime) -> None:
        self._failing = failing
        self._in_flight = in_flight
        self._now = now
        self.held: list[Failing] = []
        self.waiting: list[Failing] = []
        self.busy = 0

    def count(self, step: Step, partition: str) -> int:
        found = self._failing.get((step, partition))
        return found.failures if found else 0

    def admits(self, step: Step, partition: str, wanted: str, budget: int, *, is_leased: bool = False) -> bool:
        if is_leased or self._in_flight.has(step, partition):
            self.busy += 1
            return False
        found = self._failing.get((step, partition))
        if found is None or found.wanted != wanted:
            return True
        if found.failures >= budget:
            self.held.append(found)
            return False
        if self._now < found.failed_at + wait_after(found.failures):
            self.waiting.append(found)
            return False
        return True


def wait_after(failures: int) -> dt.timedelta:
    """Return how long to wait after so many failures in a row: 30 s, doubled each time, an hour at most."""
    return dt.timedelta(seconds=min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (max(failures, 1) - 1)))


def find_rest_until(instance: DagsterInstance, job: str, task: Task) -> dt.datetime | None:
    """Return until when a job whose last runs for a task failed is left alone; None if it may run.

    A server that is down fails each run for no fault of the partitions: they aren't counted, so the job itself rests.
    """
    ended = RunsFilter(job_name=job, statuses=list(RUN_ENDED), tags={TASK_TAG: task.name})
    records = instance.get_run_records(ended, limit=SEEN_RUNS)
    failed = 0
    for record in records:
        if record.dagster_run.status is not DagsterRunStatus.FAILURE:
            break
        failed += 1
    if not failed:
        return None
    at = records[0].end_time or records[0].update_timestamp.timestamp()
    return dt.datetime.fromtimestamp(at, dt.UTC) + wait_after(failed)


def enqueue(
    instance: DagsterInstance,
    job: dg.JobDefinition,
    config: Mapping[str, Any],
    tags: Mapping[str, str],
    launched_by: DagsterRun | None = None,
) -> str:
    """Put a run of one of our jobs into the queue, for the daemon to start; return its id.

    Dagster offers this to sensors, schedules and the web UI alone. The daemon finds the job by its code location: that
    of the run which launches it, or ours.
    """
    origin = launched_by.remote_job_origin if launched_by is not None else None
    repository = origin.repository_origin if origin else find_repository()
    run = instance.create_run_for_job(
        job_def=job,
        run_id=make_new_run_id(),
        run_config=op_config(job.name, config),
        tags=tags,
        remote_job_origin=RemoteJobOrigin(repository_origin=repository, job_name=job.name),
        status=DagsterRunStatus.NOT_STARTED,
    )
    instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
    return run.run_id


def has_daemon(instance: DagsterInstance) -> bool:
    """Say whether a daemon has shown a sign of life lately."""
    beats = instance.get_daemon_heartbeats().values()
    return any(time.time() - beat.timestamp < DAEMON_ALIVE_S for beat in beats)


def find_repository() -> RemoteRepositoryOrigin:
    """Return where the webserver and the daemon find our definitions when they are started here."""
    workspace = Path("workspace.yaml")
    target = (
        WorkspaceFileTarget(paths=[str(workspace)])
        if workspace.exists()
        else ModuleTarget(module_name=DEFINITIONS, attribute=None, working_directory=None, location_name=None)
    )
    location = target.create_origins()[0]
    return RemoteRepositoryOrigin(code_location_origin=location, repository_name=SINGLETON_REPOSITORY_NAME)


def plan_request(task: Task, *, run_key: str | None = None, **config: Any) -> dg.RunRequest:
    """Return the request of a run of the planner's job for one task, which nobody waits for."""
    return dg.RunRequest(
        run_key=run_key,
        job_name=PLAN_JOB,
        run_config=op_config(PLAN_JOB, {"task": task.name, "is_patient": True, **config}),
        tags={TASK_TAG: task.name},
    )


def fallbacks_request(task: Task, partitions: Iterable[PartitionKey]) -> dg.RunRequest:
    """Return the request of a run that asks the fallback model for what finished output partitions quarantined."""
    job = job_name(task.name, FALLBACKS_JOB)
    return dg.RunRequest(
        job_name=job,
        run_config=op_config(job, {"partitions": [str(p) for p in partitions]}),
        tags={TASK_TAG: task.name},
    )


def results_request(task: Task, partitions: Iterable[PartitionKey]) -> dg.RunRequest:
    """Return the request of a run that makes results of finished output partitions."""
    job = job_name(task.name, RESULTS_JOB)
    return dg.RunRequest(
        job_name=job,
        run_config=op_config(job, {"partitions": [str(p) for p in partitions]}),
        tags={TASK_TAG: task.name},
    )
