"""Dagster's instance: its settings beside the template, its storage, daemon, pools and dead runs. Never made here."""

import hashlib
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from dagster import DagsterInstance, DagsterInvalidConfigError, DagsterRun, DagsterRunStatus, RunsFilter

from batch_assets.cli.probes.findings import Finding, Level, count, first_line
from batch_assets.dagster.dead_runs import HOST_TAG, RUN_TAG, STARTED_TAG, read_pid
from batch_assets.dagster.instance import INSTANCE_URL, render_instance_file
from batch_assets.settings import Settings
from batch_assets.store.database import parse_url
from batch_assets.store.inspection import StoreInspection
from batch_assets.store.leases import Holder

ABOUT = "dagster"
ALIVE_S = 90.0
"""The daemon tells that it lives each 30 s."""
OWN_STORAGE = "a storage of its own"
_SPLIT_STORAGE = {"run_storage", "event_log_storage", "schedule_storage"}


def probe_instance(settings: Settings, store: StoreInspection | None) -> Iterator[Finding]:
    """Yield what there is of the instance. `store`: the store, which is the instance's database too, if
    that is PostgreSQL; None if it can't be reached.
    """
    file = settings.dagster_home / "dagster.yaml"
    if not file.exists():
        yield Finding(about=ABOUT, says=f"no instance in {settings.dagster_home} yet: made at the first run")
        return
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        content = read_settings(text)
    except ValueError as e:
        mend = f"rm {file}  # the next start makes it anew"
        yield Finding(about=ABOUT, says=f"{file}: {e}", level=Level.WRONG, mend=mend)
        return
    kind = find_storage(content)
    yield Finding(about=ABOUT, says=f"instance in {settings.dagster_home}, history in {kind}")
    yield from probe_settings(text, render_instance_file(settings), file)
    if kind == OWN_STORAGE or not _is_made(settings, kind, store):
        yield Finding(about=ABOUT, says="its history is not looked into")
        return
    yield from _look_into(settings)


def read_settings(text: str) -> dict[str, Any]:
    """Return the settings of a dagster.yaml. Raises ValueError if it is none."""
    try:
        found: object = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ValueError(f"not YAML: {first_line(e)}") from e
    if not isinstance(found, dict):
        raise ValueError("not a mapping of settings")
    return cast("dict[str, Any]", found)


def find_storage(content: Mapping[str, Any]) -> str:
    """Return where the history lies, in a word."""
    storage = cast("dict[str, Any]", content.get("storage") or {})
    if _SPLIT_STORAGE & content.keys() or not storage.keys() <= {"sqlite", "postgres"}:
        return OWN_STORAGE
    return "PostgreSQL" if "postgres" in storage else "SQLite"


def probe_settings(text: str, wanted: str, file: Path) -> Iterator[Finding]:
    """Yield how an installed dagster.yaml differs from the one that the settings ask for; keys, never values."""
    if text == wanted:
        yield Finding(about=ABOUT, says=f"{file.name} is as the template")
        return
    first, _, body = text.partition("\n")
    if first.endswith(hashlib.sha256(body.encode()).hexdigest()):  # sealed, so nobody changed it
        yield Finding(about=ABOUT, says=f"{file.name} is of an earlier version or setting: the next start renews it")
        return
    here, there = read_settings(text), read_settings(wanted)
    changed = list_changes(here, there)
    if find_storage(here) not in (find_storage(there), OWN_STORAGE):
        yield Finding(
            about=ABOUT,
            says=f"{file.name} keeps the history in {find_storage(here)}, and BATCH_ASSETS_DB_URL asks for "
            f"{find_storage(there)}",
            level=Level.WRONG,
            mend=f"mv {file} {file}.old  # the next start makes it anew",
        )
    if changed:
        yield Finding(
            about=ABOUT,
            says=f"{file.name} is yours: it differs from the template in {', '.join(changed)}",
            level=Level.WARN,
            mend=f"mv {file} {file}.old  # if that isn't meant: the next start makes it anew",
        )
    else:
        yield Finding(about=ABOUT, says=f"{file.name} says the same as the template")


def list_changes(here: object, there: object, path: str = "") -> list[str]:
    """Return the dotted keys whose values differ, the deepest that do."""
    if not isinstance(here, dict) or not isinstance(there, dict):
        return [] if here == there else [path]
    ours, theirs = cast("dict[str, Any]", here), cast("dict[str, Any]", there)
    return [
        change
        for key in sorted(ours.keys() | theirs.keys(), key=str)
        for change in list_changes(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
    ]


def _is_made(settings: Settings, kind: str, store: StoreInspection | None) -> bool:
    """Say whether the history is there: to open one that isn't would make it."""
    if kind == "SQLite":
        names = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")
        return all((settings.dagster_home / name).is_file() for name in names)
    if not settings.is_postgresql or store is None:
        return False
    return store.has_tables(("runs", "event_logs", "jobs"))


def _look_into(settings: Settings) -> Iterator[Finding]:
    if settings.is_postgresql:
        os.environ[INSTANCE_URL] = parse_url(settings.store_url).render_as_string(hide_password=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opened = DagsterInstance.from_config(str(settings.dagster_home))
        except DagsterInvalidConfigError as e:
            mend = f"correct {settings.dagster_home / 'dagster.yaml'}"
            yield Finding(
                about=ABOUT, says=f"Dagster refuses dagster.yaml: {first_line(e)}", level=Level.WRONG, mend=mend
            )
            return
    with opened as instance:
        yield from probe_daemon(instance, time.time())
        yield from probe_runs(instance)


def probe_daemon(instance: DagsterInstance, at: float) -> Iterator[Finding]:
    """Yield whether the daemon lives, which sensors, schedules, backfills and the queue need."""
    beats = instance.get_daemon_heartbeats()
    ages = {name: at - beat.timestamp for name, beat in beats.items()}
    queue = instance.get_runs_count(RunsFilter(statuses=[DagsterRunStatus.QUEUED]))
    waiting = f"; {count(queue, 'run waits', 'runs wait')} in the queue" if queue else ""
    if not ages or min(ages.values()) > ALIVE_S:
        since = f", last seen {_format_age(min(ages.values()))} ago" if ages else ""
        yield Finding(
            about=ABOUT,
            says=f"no daemon{since}: sensors, schedules, backfills and alerts wait{waiting}",
            level=Level.WARN,
            mend="batch-assets up",
        )
        return
    yield Finding(about=ABOUT, says=f"the daemon lives, seen {_format_age(min(ages.values()))} ago{waiting}")
    for name, beat in sorted(beats.items()):
        if ages[name] <= ALIVE_S and beat.errors:
            words = beat.errors[0].message.strip().splitlines()
            yield Finding(about=ABOUT, says=f"the daemon's {name} fails: {words[0] if words else ''}", level=Level.WARN)


def probe_runs(instance: DagsterInstance) -> Iterator[Finding]:
    """Yield the pools, and the runs that a dead process of this host has left unfinished."""
    unfinished = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    runs = instance.get_runs(RunsFilter(statuses=unfinished))
    dead = {run.run_id for run in runs if _is_dead(run)}
    storage = instance.event_log_storage
    pools: list[str] = []
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        holders = sorted({slot.run_id for slot in info.claimed_slots})
        by = f" by run {', '.join(holders)}" if holders else ""
        pools.append(f"{pool} {len(info.claimed_slots)} of {info.slot_count} slots taken{by}")
    in_progress = count(len(runs) - len(dead), "run in progress", "runs in progress")
    yield Finding(about=ABOUT, says=f"{in_progress}; pools: {'; '.join(pools) or 'none used yet'}")
    if dead:
        yield Finding(
            about=ABOUT,
            says=f"{count(len(dead), 'run', 'runs')} whose process is gone: {', '.join(sorted(dead))}",
            level=Level.WARN,
            mend="batch-assets up  # or `batch-assets run`: either ends them and frees what they hold",
        )


def _is_dead(run: DagsterRun) -> bool:
    tags = run.tags
    if tags.get(RUN_TAG) != run.run_id or tags.get(HOST_TAG) != socket.gethostname():
        return False
    return Holder(host=tags[HOST_TAG], pid=int(read_pid(tags)), process_started=float(tags[STARTED_TAG])).is_dead()


def _format_age(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
