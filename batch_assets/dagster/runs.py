"""Steps as runs of Dagster: names and configs of jobs, what unfinished runs are to do, putting one into the queue.

What is done next is for pipeline/dispatch.py.
"""

import datetime as dt
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster import DagsterEvent, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.definitions.repository_definition.valid_definitions import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.utils import make_new_run_id
from dagster._core.workspace.load_target import ModuleTarget, WorkspaceFileTarget

from batch_assets.core.asset_names import LLM_OUTPUTS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import ConfigError
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.pipeline.dispatch import InFlight, NextStep, wait_after

PLAN_JOB = "launch_missing_and_stale"
"""The planner as a job, for all tasks."""

COMMAND_LINE = "command line"
"""Who launched a run, if no other run did."""
DAEMON_ALIVE_S = 60.0
DEFINITIONS = "batch_assets.definitions"
"""The module that the webserver and the daemon load."""

ASSET_JOB = "__ASSET_JOB"
"""Dagster's name of the runs that people and backfills start on assets."""
TASK_TAG = "batch_assets/task"
LAUNCHED_BY_TAG = "launched_by"
"""Who launched a run, in words: the web UI shows it in its list of runs."""
LAUNCHED_BY_RUN_TAG = ".dagster/batch_assets_launched_by"
"""The id of the run that did. The web UI hides what begins so."""
RUN_ENDED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
UNFINISHED = [s for s in DagsterRunStatus if s not in RUN_ENDED]

SEEN_RUNS = 10


def job_name(task: str, step: Step, model_id: str = "") -> str:
    """Return the name of a task's job; the outputs job is one per model, since pool and tags are the model's."""
    model = f"__{re.sub(r'[^A-Za-z0-9_]', '_', model_id)}" if model_id else ""
    return f"{task}__launch_{step.value}{model}"


def op_name(job: str) -> str:
    """Return the name of a job's only op, under which its config goes."""
    return f"{job}_op"


def check_job_names(task: Task) -> None:
    """Raise ConfigError if two models of a task would have one job."""
    names: dict[str, str] = {}
    for model_id in task.models:
        other = names.setdefault(job_name(task.name, Step.OUTPUTS, model_id), model_id)
        if other != model_id:
            raise ConfigError(f"task {task.name}: models {other} and {model_id} differ in signs alone: rename one")


def op_config(job: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config of a job."""
    return {"ops": {op_name(job): {"config": dict(config)}}}


def read_config(run: DagsterRun) -> Mapping[str, Any]:
    """Return what the op of one of our jobs was given; empty for any other run."""
    ops = cast("dict[str, Any]", run.run_config.get("ops", {}))
    return ops.get(op_name(run.job_name), {}).get("config", {})


def find_in_flight(instance: DagsterInstance, task: Task, *, but: str = "") -> InFlight:
    """Look at the unfinished runs of a task's jobs, all `but` one."""
    found: dict[Step, set[str]] = {step: set() for step in Step}
    names = {
        job_name(task.name, Step.SOURCES): Step.SOURCES,
        job_name(task.name, Step.FALLBACKS): Step.FALLBACKS,
        job_name(task.name, Step.RESULTS): Step.RESULTS,
        **{job_name(task.name, Step.OUTPUTS, m): Step.OUTPUTS for m in task.models},
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


def step_job(task: Task, step: NextStep) -> str:
    """Return the name of the job that carries a step out."""
    return job_name(task.name, step.step, step.model_id if step.step is Step.OUTPUTS else "")


def step_config(step: NextStep, retry: RetryMode = RetryMode.NONE) -> dict[str, Any]:
    """Return the config of that job's op; what is as its default is left out."""
    if step.step is Step.SOURCES:
        return {"batches": list(step.batches), "variants": list(step.variants)}
    config: dict[str, Any] = {"partitions": [str(p) for p in step.partitions]}
    if retry is not RetryMode.NONE and step.step is not Step.RESULTS:
        config["retry"] = retry.value
    if step.records and step.step is Step.OUTPUTS:
        config["total"] = step.records
    return config


def step_request(task: Task, step: NextStep) -> dg.RunRequest:
    """Return the request of a run that carries a step out."""
    job = step_job(task, step)
    return dg.RunRequest(job_name=job, run_config=op_config(job, step_config(step)), tags={TASK_TAG: task.name})
