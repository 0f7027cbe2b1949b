"""What a run stands on: settings, store, frames, and Dagster's instance in its home. Opened once per process."""

import datetime as dt
import hashlib
import json
import logging
import os
import socket
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import dagster as dg
import yaml
from dagster import DagsterInstance, DagsterInvalidConfigError, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from batch_assets.core.errors import ConfigError, StoreError
from batch_assets.core.identity import VariantSpec, variant_spec
from batch_assets.core.tasks import Task
from batch_assets.engines.weights import find_revision
from batch_assets.runner.run import Observer
from batch_assets.settings import Settings, load_settings
from batch_assets.sources.base import Source, StreamSource
from batch_assets.sources.stream import Microbatched
from batch_assets.store.database import (
    Database,
    find_refusal,
    is_connection_lost,
    lock_task,
    open_database,
    parse_url,
)
from batch_assets.store.frames import FrameStore
from batch_assets.store.leases import LEASE_S, Holder, load_holders, this_process
from batch_assets.store.microbatches import MicrobatchLog

_log = logging.getLogger(__name__)

PLATFORM = "platform"
PID_TAG = "batch_assets/pid"
HOST_TAG, STARTED_TAG = ".dagster/batch_assets_host", ".dagster/batch_assets_process_started"
"""The web UI hides what begins so: tags that tell a person nothing would fill its list of runs."""
RUN_TAG = ".dagster/batch_assets_run"
"""Whose process it is: a run that Dagster launches anew inherits its parent's tags."""
LAUNCHER_TAG = ".dagster/grpc_info"
LAUNCHER_LOOKS_EVERY_S = 2.0
UNTAGGED_S = 120.0
DATABASE_RETURNS_S = 3600.0
"""How long a run waits for a database that went away."""
INSTANCE_URL = "BATCH_ASSETS_DAGSTER_DB_URL"
"""The environment variable by which Dagster's own processes learn where the instance lies, password included."""
_POSTGRESQL_STORAGE = f"""\
# `batch-assets` sets this variable for whatever it starts. Who starts dagster-daemon or dagster-webserver by hand sets
# it to postgresql+psycopg2://user:password@host/name, and DAGSTER_HOME to this folder.
storage:
  postgres:
    postgres_url:
      env: {INSTANCE_URL}
"""
_SEAL = "# Written by batch-assets; once you change this file, it is yours. Its checksum: "
_UNSEALED = {
    "b8e1b695cc5c2f1f736dd4fbac8dfc01f253b54364b029afaf1c4456beb25f4a",
    "0e7e0f6b182b1773e327e8f5d1d8975ccf5f13249aab1d93449dbdc4f6e9ea48",
}
"""The files of versions that wrote no checksum."""
_UNFINISHED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


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
        found = task.find_variant(variant)
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


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """The microbatches of a task in the store that the settings name, opened when somebody asks, not before."""

    task: str

    def batches(self) -> Sequence[tuple[str, int, dt.datetime]]:
        """Return all of them in the order of their forming: key, records, when."""
        with self._open() as log:
            return log.batches()

    def items(self, batch: str) -> Sequence[str]:
        """Return the ids in one."""
        with self._open() as log:
            return log.items(batch)

    @contextmanager
    def _open(self) -> Generator[MicrobatchLog]:
        database = open_database(load_settings().store_url)
        try:
            yield MicrobatchLog(database, self.task)
        finally:
            database.close()


def bind_source(task: str, source: Source | StreamSource) -> Source:
    """Return what a task reads batches from: a stream's microbatches in the store; any other source as it is."""
    return Microbatched(source, StoredBatches(task)) if isinstance(source, StreamSource) else source


def build_platform_resource() -> dg.ResourceDefinition:
    """Return the resource that assets name `platform`; it opens when a run needs it, not when definitions load.

    It tags the run with its process, so that `end_dead_runs` can tell when that is gone.
    """

    def open_for_run(context: dg.InitResourceContext) -> Iterator[Platform]:
        settings = load_settings()

        def open_once() -> Platform:
            if context.instance is not None and context.run is not None:
                context.instance.add_run_tags(context.run.run_id, process_tags(context.run.run_id))
            return open_platform(settings)

        try:
            platform = open_once()
        except Exception as e:
            if not is_connection_lost(e):
                raise
            wait_for_database(settings.store_url)
            platform = open_once()
        try:
            yield platform
        finally:
            platform.database.close()

    return dg.ResourceDefinition(open_for_run)


def install_instance(settings: Settings) -> Path:
    """Put the template dagster.yaml, with the storage that the settings choose, into the instance's home; return that.

    A file that someone has changed there is left alone. ConfigError where it keeps the history elsewhere than the
    settings say, and where the home can't be written.
    """
    home = settings.dagster_home
    target = home / "dagster.yaml"
    wanted = render_instance_file(settings)
    try:
        home.mkdir(parents=True, exist_ok=True)
        found = target.read_text(encoding="utf-8") if target.exists() else ""
        if not found or _is_unchanged(found):
            if found != wanted:
                temporary = target.with_suffix(f".{os.getpid()}")
                temporary.write_text(wanted, encoding="utf-8")
                temporary.replace(target)
            return home
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"BATCH_ASSETS_HOME: {target} can't be used: {e}") from e
    _require_storage(found, target, settings)
    return home


def render_instance_file(settings: Settings) -> str:
    """Return the dagster.yaml that the settings ask for."""
    template = _find_template().read_text(encoding="utf-8")
    body = f"{template}\n{_POSTGRESQL_STORAGE}" if settings.is_postgresql else template
    return f"{_SEAL}{_digest(body)}\n{body}"


def _is_unchanged(text: str) -> bool:
    """Say whether a dagster.yaml is as some version of us has written it."""
    first, _, body = text.partition("\n")
    return first == f"{_SEAL}{_digest(body)}" or _digest(text) in _UNSEALED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _require_storage(text: str, file: Path, settings: Settings) -> None:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ConfigError(f"{file}: not YAML: {e}; delete it, and it is made anew") from e
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not a mapping of settings; delete it, and it is made anew")
    settings_there = cast(dict[str, Any], content)
    if {"run_storage", "event_log_storage", "schedule_storage"} & settings_there.keys():
        return
    storage = cast(dict[str, Any], settings_there.get("storage") or {})
    if settings.is_postgresql and storage.keys() <= {"sqlite"}:
        raise ConfigError(
            f"BATCH_ASSETS_DB_URL names PostgreSQL, but {file}, which somebody changed, keeps Dagster's history in "
            f"SQLite: delete the file, or let it end with\n{_POSTGRESQL_STORAGE}"
        )
    if not settings.is_postgresql and "postgres" in storage:
        raise ConfigError(
            f"BATCH_ASSETS_DB_URL: {file}, which somebody changed, keeps Dagster's history in PostgreSQL, and the "
            f"setting doesn't name it: set it to postgresql://user@host/name, or delete the file"
        )


def _find_template() -> Path:
    package = Path(__file__).resolve().parent
    for candidate in (package / "dagster.yaml", package.parent / "dagster.yaml"):
        if candidate.exists():
            return candidate
    raise ConfigError("dagster.yaml is missing from the installation: reinstall batch-assets")


def open_instance(settings: Settings) -> DagsterInstance:
    """Open Dagster's instance, the same that the web UI shows; child processes find it by the environment.

    ConfigError names the dagster.yaml that Dagster refuses.
    """
    home = install_instance(settings)
    os.environ["DAGSTER_HOME"] = str(home)
    if settings.is_postgresql:
        os.environ[INSTANCE_URL] = parse_url(settings.store_url).render_as_string(hide_password=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return DagsterInstance.from_config(str(home))
        except DagsterInvalidConfigError as e:
            raise ConfigError(f"{home / 'dagster.yaml'}: {e}") from e


def wait_for_database(url: str, limit_s: float = DATABASE_RETURNS_S) -> None:
    """Wait, with growing pauses, until the database takes connections; StoreError where it doesn't come back in time.

    Said on stderr alone: Dagster's log lies in that database.
    """
    give_up_at, pause_s = time.monotonic() + limit_s, 0.5
    while why := find_refusal(url):
        if time.monotonic() >= give_up_at:
            raise StoreError(why)
        _log.warning("waiting for the database: %s", why)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 15.0)


def process_tags(run_id: str) -> dict[str, str]:
    """Return the tags by which a run's process can be found later."""
    me = this_process()
    return {RUN_TAG: run_id, PID_TAG: str(me.pid), HOST_TAG: me.host, STARTED_TAG: repr(me.process_started)}


def end_dead_runs(instance: DagsterInstance, database: Database) -> list[str]:
    """End the runs of dead processes and free their pool slots; return their ids.

    Dagster's status never tells: a run killed in process stays STARTED and keeps its slot, and the next one waits
    for it for ever. One that was to be terminated ends as canceled, any other as failed, and Dagster's daemon then
    retries those that it launched. Each is ended once, however many look at the same time.
    """
    with database.read() as connection:
        leasing = load_holders(connection)
    storage = instance.event_log_storage
    _free_slots_of_dead(instance)
    pools = [storage.get_concurrency_info(key) for key in storage.get_concurrency_keys()]
    in_pool = {slot.run_id for pool in pools for slot in pool.claimed_slots}
    records = instance.get_run_records(RunsFilter(statuses=_UNFINISHED))
    dead = {r.dagster_run.run_id: why for r in records if (why := _find_death(r, in_pool, leasing))}
    if not dead:
        return []
    if any(LAUNCHER_TAG in r.dagster_run.tags for r in records if r.dagster_run.run_id in dead):
        time.sleep(LAUNCHER_LOOKS_EVERY_S)  # a code server sees its own dead, and would say so a second time
    with database.write() as connection:
        lock_task(connection, "dead runs")
        return [run_id for run_id, why in dead.items() if _end_run(instance, run_id, why)]


def _free_slots_of_dead(instance: DagsterInstance) -> None:
    """Free what ended runs still hold whose process is gone: Dagster looks for that too, up to 40 s later.

    So it is where a code server was quicker than we to tell that its run died. A run that ended and whose process lives
    may have its engine still.
    """
    storage = instance.event_log_storage
    if held := storage.get_concurrency_run_ids():
        for run in instance.get_runs(RunsFilter(run_ids=list(held), statuses=_ENDED)):
            if (holder := _find_holder(run)) is not None and holder.is_dead():
                storage.free_concurrency_slots_for_run(run.run_id)


def _find_holder(run: DagsterRun) -> Holder | None:
    """Return the process of a run, if it has told."""
    if run.tags.get(RUN_TAG) != run.run_id:
        return None
    started = float(run.tags[STARTED_TAG])
    return Holder(host=run.tags[HOST_TAG], pid=int(run.tags[PID_TAG]), process_started=started)


def _find_death(record: RunRecord, in_pool: set[str], leasing: set[str]) -> str:
    """Say how a run is known to be dead; empty where it isn't.

    Of a process on another host only its leases tell: one that holds a slot and has let all leases run out is dead.
    A run that was killed before it could tell of its process is dead when its code server is gone too.
    """
    run = record.dagster_run
    idle_s = time.time() - (record.update_timestamp or record.create_timestamp).timestamp()
    holder = _find_holder(run)
    if holder is None:
        is_dead = LAUNCHER_TAG in run.tags and idle_s > UNTAGGED_S and not _answers(run.tags[LAUNCHER_TAG])
        return "it never said which process it has, and the code server that launched it is gone" if is_dead else ""
    where = f"its process ({holder.pid} on {holder.host}) is gone"
    if holder.host == socket.gethostname():
        return where if holder.is_dead() else ""
    return where if run.run_id in in_pool and run.run_id not in leasing and idle_s > LEASE_S else ""


def _answers(launcher: str) -> bool:
    """Say whether the code server that a run's tag names is there; True where it can't be known."""
    path = json.loads(launcher).get("socket")
    if not path:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def _end_run(instance: DagsterInstance, run_id: str, why: str) -> bool:
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return True


def find_pool_holders(instance: DagsterInstance, pool: str) -> set[str]:
    """Return the runs that hold the slots of a pool that has none left; empty where one is free."""
    storage = instance.event_log_storage
    if pool not in storage.get_concurrency_keys():
        return set()
    info = storage.get_concurrency_info(pool)
    return {slot.run_id for slot in info.claimed_slots} if len(info.claimed_slots) >= info.slot_count else set()
