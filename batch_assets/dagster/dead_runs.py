"""Runs whose process is gone: told apart from live ones, ended, and their pool slots freed."""

import json
import socket
import time
from collections.abc import Mapping

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from batch_assets.dagster.kept import describe_kept
from batch_assets.store.database import Database, lock_task
from batch_assets.store.heartbeats import SILENT_S, doubt_silent, forget_run
from batch_assets.store.leases import LEASE_S, Holder, load_holders, this_process

PID_TAG = ".dagster/batch_assets_pid"
OLD_PID_TAG = "batch_assets/pid"
"""Of runs of versions before, which may be at work still."""
HOST_TAG, STARTED_TAG = ".dagster/batch_assets_host", ".dagster/batch_assets_process_started"
"""The web UI hides what begins so: tags that tell a person nothing would fill its list of runs."""
RUN_TAG = ".dagster/batch_assets_run"
"""Whose process it is: a run that Dagster launches anew inherits its parent's tags."""
LAUNCHER_TAG = ".dagster/grpc_info"
LAUNCHER_LOOKS_EVERY_S = 2.0
UNTAGGED_S = 120.0
_UNFINISHED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def process_tags(run_id: str) -> dict[str, str]:
    """Return the tags by which a run's process can be found later."""
    me = this_process()
    return {RUN_TAG: run_id, PID_TAG: str(me.pid), HOST_TAG: me.host, STARTED_TAG: repr(me.process_started)}


def read_pid(tags: Mapping[str, str]) -> str:
    """Return the pid of a run's process, under the name that this or an earlier version gave it."""
    return tags[PID_TAG] if PID_TAG in tags else tags[OLD_PID_TAG]


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
    beating = doubt_silent(database, [r.dagster_run.run_id for r in records if _is_elsewhere(r.dagster_run)])
    dead = {r.dagster_run.run_id: why for r in records if (why := _find_death(r, in_pool, leasing, beating))}
    if not dead:
        return []
    if any(LAUNCHER_TAG in r.dagster_run.tags for r in records if r.dagster_run.run_id in dead):
        time.sleep(LAUNCHER_LOOKS_EVERY_S)  # a code server sees its own dead, and would say so a second time
    with database.write() as connection:
        lock_task(connection, "dead runs")
        ended = [run_id for run_id, why in dead.items() if _end_run(instance, database, run_id, why)]
        for run_id in ended:
            forget_run(connection, run_id)
    return ended


def _free_slots_of_dead(instance: DagsterInstance) -> None:
    """Free what ended runs still hold whose process is gone: Dagster looks for that too, up to 40 s later.

    That is needed if a code server reported the death of its run before we did. A run that ended may have its engine
    still if its process lives.
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
    return Holder(host=run.tags[HOST_TAG], pid=int(read_pid(run.tags)), process_started=started)


def _is_elsewhere(run: DagsterRun) -> bool:
    """Say whether a run's process is one of another host."""
    holder = _find_holder(run)
    return holder is not None and not holder.is_here


def _find_death(record: RunRecord, in_pool: set[str], leasing: set[str], beating: Mapping[str, bool]) -> str:
    """Say how a run is known to be dead; empty if it isn't.

    Of a process on another host only its heartbeat tells, `beating`: by run, whether it has ended. A run of an earlier
    version has none: it is dead if it holds a slot and has let all leases run out.
    A run that was killed before it could tell of its process is dead when its code server is gone too.
    """
    run = record.dagster_run
    idle_s = time.time() - (record.update_timestamp or record.create_timestamp).timestamp()
    holder = _find_holder(run)
    if holder is None:
        is_dead = LAUNCHER_TAG in run.tags and idle_s > UNTAGGED_S and not _answers(run.tags[LAUNCHER_TAG])
        return "it never said which process it has, and the code server that launched it is gone" if is_dead else ""
    where = f"its process ({holder.pid} on {holder.host}) is gone"
    if holder.is_here:
        return where if holder.is_dead() else ""
    if run.run_id in beating:
        silence = f"its process ({holder.pid} on {holder.host}) has given no sign of life for {SILENT_S:.0f} s"
        return silence if beating[run.run_id] else ""
    return where if run.run_id in in_pool and run.run_id not in leasing and idle_s > LEASE_S else ""


def _answers(launcher: str) -> bool:
    """Say whether the code server that a run's tag names is there; True if it can't be known."""
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


def _end_run(instance: DagsterInstance, database: Database, run_id: str, why: str) -> bool:
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return False
    why = f"{why}. {describe_kept(database, run)}"
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return True


def find_pool_holders(instance: DagsterInstance, pool: str) -> set[str]:
    """Return the runs that hold the slots of a pool that has none left; empty if one is free."""
    storage = instance.event_log_storage
    if pool not in storage.get_concurrency_keys():
        return set()
    info = storage.get_concurrency_info(pool)
    return {slot.run_id for slot in info.claimed_slots} if len(info.claimed_slots) >= info.slot_count else set()
