"""What a run stands on: settings, store, frames, and Dagster's instance in its home. Opened once per process."""

import os
import shutil
import socket
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from batch_assets.core.errors import ConfigError
from batch_assets.core.identity import VariantSpec, variant_spec
from batch_assets.core.tasks import Task
from batch_assets.engines.weights import find_revision
from batch_assets.runner.run import Observer
from batch_assets.settings import Settings, load_settings
from batch_assets.store.database import Database, open_database
from batch_assets.store.frames import FrameStore
from batch_assets.store.leases import LEASE_S, Holder, load_holders, this_process

PLATFORM = "platform"
PID_TAG, HOST_TAG, STARTED_TAG = "batch_assets/pid", "batch_assets/host", "batch_assets/process_started"
RUN_TAG = "batch_assets/run"
"""Whose process it is: a run that Dagster launches anew inherits its parent's tags."""
_UNFINISHED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Everything outside of Dagster that an asset touches. `observer` hears of progress; the command line sets it."""

    settings: Settings
    database: Database
    frames: FrameStore
    observer: Observer | None = None
    _specs: dict[tuple[str, str], VariantSpec] = field(default_factory=dict[tuple[str, str], VariantSpec])

    def spec(self, task: Task, variant: str) -> VariantSpec:
        """Return the identity of a variant. ConfigError where the task has no such variant."""
        found = task.variants.get(variant)
        if found is None:
            raise ConfigError(f"task {task.name} has no variant {variant!r}; it has {', '.join(task.variants)}")
        key = (task.name, variant)
        if key not in self._specs:
            self._specs[key] = variant_spec(task, found, find_revision(found.model, self.settings.cache_dir))
        return self._specs[key]


def open_platform(settings: Settings, observer: Observer | None = None) -> Platform:
    """Open the store (and bring its schema up to date) and the frames' folder."""
    return Platform(
        settings=settings,
        database=open_database(settings.store_url),
        frames=FrameStore(settings.frames_dir),
        observer=observer,
    )


def build_platform_resource() -> dg.ResourceDefinition:
    """Return the resource that assets name `platform`; it opens when a run needs it, not when definitions load."""
    return dg.ResourceDefinition(lambda _context: open_platform(load_settings()))


def install_instance(settings: Settings) -> Path:
    """Put the template dagster.yaml into the instance's home and return that folder.

    A file that someone has changed there is left alone.
    """
    home = settings.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    target = home / "dagster.yaml"
    if not target.exists():
        shutil.copyfile(_find_template(), target)
    return home


def _find_template() -> Path:
    package = Path(__file__).resolve().parent
    for candidate in (package / "dagster.yaml", package.parent / "dagster.yaml"):
        if candidate.exists():
            return candidate
    raise ConfigError("dagster.yaml is missing from the installation: reinstall batch-assets")


def open_instance(settings: Settings) -> DagsterInstance:
    """Open Dagster's instance, the same that the web UI shows."""
    home = install_instance(settings)
    os.environ["DAGSTER_HOME"] = str(home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DagsterInstance.from_config(str(home))


def process_tags(run_id: str) -> dict[str, str]:
    """Return the tags by which a run's process can be found later."""
    me = this_process()
    return {RUN_TAG: run_id, PID_TAG: str(me.pid), HOST_TAG: me.host, STARTED_TAG: repr(me.process_started)}


def end_dead_runs(instance: DagsterInstance, database: Database) -> list[str]:
    """Mark the runs of dead processes as failed and free their pool slots; return their ids.

    Dagster's status never tells: a run killed in process stays STARTED and keeps its slot, and the next one waits
    for it for ever. Of a process on another host only its leases tell: one that
    holds a slot and has let all leases run out is dead.
    """
    ended: list[str] = []
    with database.read() as connection:
        leasing = load_holders(connection)
    storage = instance.event_log_storage
    pools = [storage.get_concurrency_info(key) for key in storage.get_concurrency_keys()]
    in_pool = {slot.run_id for pool in pools for slot in pool.claimed_slots}
    for record in instance.get_run_records(RunsFilter(statuses=_UNFINISHED)):
        run = record.dagster_run
        if run.tags.get(RUN_TAG) != run.run_id:
            continue
        if run.tags[HOST_TAG] == socket.gethostname():
            started = float(run.tags[STARTED_TAG])
            holder = Holder(host=run.tags[HOST_TAG], pid=int(run.tags[PID_TAG]), process_started=started)
            is_dead = holder.is_dead()
        else:
            idle_s = time.time() - (record.update_timestamp or record.create_timestamp).timestamp()
            is_dead = run.run_id in in_pool and run.run_id not in leasing and idle_s > LEASE_S
        if is_dead:
            where = f"{run.tags[PID_TAG]} on {run.tags[HOST_TAG]}"
            instance.report_run_failed(run, f"its process ({where}) is gone")
            storage.free_concurrency_slots_for_run(run.run_id)
            ended.append(run.run_id)
    return ended


def find_pool_holders(instance: DagsterInstance, pool: str) -> set[str]:
    """Return the runs that hold the slots of a pool that has none left; empty where one is free."""
    storage = instance.event_log_storage
    if pool not in storage.get_concurrency_keys():
        return set()
    info = storage.get_concurrency_info(pool)
    return {slot.run_id for slot in info.claimed_slots} if len(info.claimed_slots) >= info.slot_count else set()
