"""Runs whose process is gone are ended, and their pool slots freed; live ones are left alone."""

import datetime as dt
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
import sqlalchemy as sa
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from factories import ScriptedEngine, run_at_once
from temp_project import TempProject

from batch_assets.dagster.dead_runs import (
    HOST_TAG,
    PID_TAG,
    RUN_TAG,
    STARTED_TAG,
    end_dead_runs,
    find_pool_holders,
    process_tags,
)
from batch_assets.dagster.instance import open_instance
from batch_assets.dagster.platform_resource import PLATFORM, build_platform_resource
from batch_assets.settings import Settings
from batch_assets.store.database import Database, find_moment, now, open_database
from batch_assets.store.heartbeats import DOUBT_S, SILENT_S
from batch_assets.store.leases import LEASE_S
from batch_assets.store.tables import leases, runs


@dg.op(pool="gpu")
def an_op() -> None:
    """Do nothing."""


@dg.job
def a_job() -> None:
    an_op()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    overrides = {"concurrency": {"pools": {"default_limit": 1}}}
    with DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=overrides) as found:
        yield found


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path / 'store.db'}")


def start_run(instance: DagsterInstance, *, state: DagsterRunStatus = DagsterRunStatus.STARTED, **tags: str) -> str:
    """Leave a run as one that was killed leaves it: STARTED, with a slot of the pool."""
    run = instance.create_run_for_job(a_job, status=state)
    instance.add_run_tags(run.run_id, {RUN_TAG: run.run_id, **process_tags(run.run_id), **tags})
    instance.event_log_storage.initialize_concurrency_limit_to_default("gpu")
    instance.event_log_storage.claim_concurrency_slot("gpu", run.run_id, "an_op")
    return run.run_id


def make_dead_process() -> dict[str, str]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tags = {PID_TAG: str(process.pid), STARTED_TAG: repr(psutil.Process(process.pid).create_time())}
    process.kill()
    process.wait()
    return tags


def status(instance: DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_killed_run_is_ended_and_its_slot_is_free(instance: DagsterInstance, database: Database) -> None:
    run_id = start_run(instance, **make_dead_process())
    assert find_pool_holders(instance, "gpu") == {run_id}
    assert end_dead_runs(instance, database) == [run_id]
    assert status(instance, run_id) is DagsterRunStatus.FAILURE
    assert find_pool_holders(instance, "gpu") == set()
    assert end_dead_runs(instance, database) == []


def test_the_slot_of_a_run_that_somebody_else_ended_is_free_once_its_process_is_gone(
    instance: DagsterInstance, database: Database
) -> None:
    """A code server tells of its dead run, and leaves the slot."""
    dead, alive = start_run(instance, **make_dead_process()), start_run(instance)
    for run_id in (dead, alive):
        run = instance.get_run_by_id(run_id)
        assert run is not None
        instance.report_run_failed(run)
    assert instance.event_log_storage.get_concurrency_run_ids() == {dead, alive}
    assert end_dead_runs(instance, database) == []
    assert instance.event_log_storage.get_concurrency_run_ids() == {alive}, "its engine may still be there"


def test_a_live_run_is_left_alone(instance: DagsterInstance, database: Database) -> None:
    run_id = start_run(instance)
    assert end_dead_runs(instance, database) == []
    assert find_pool_holders(instance, "gpu") == {run_id}


def test_tags_that_a_run_inherited_from_another_say_nothing_of_it(
    instance: DagsterInstance, database: Database
) -> None:
    run_id = start_run(instance, **make_dead_process(), **{RUN_TAG: "its parent"})
    assert end_dead_runs(instance, database) == []
    assert status(instance, run_id) is DagsterRunStatus.STARTED


def test_a_run_that_was_to_be_terminated_ends_as_canceled(instance: DagsterInstance, database: Database) -> None:
    run_id = start_run(instance, state=DagsterRunStatus.CANCELING, **make_dead_process())
    assert end_dead_runs(instance, database) == [run_id]
    assert status(instance, run_id) is DagsterRunStatus.CANCELED
    assert find_pool_holders(instance, "gpu") == set()


def test_the_daemon_retries_a_dead_run_and_none_of_the_command_line(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batch_assets.cli.launch import NEVER_RETRIED

    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))  # taken back in the end, as open_instance sets it
    with open_instance(Settings(home=tmp_path)) as instance:
        for tags, is_retried in (({}, "true"), (NEVER_RETRIED, "false")):
            run_id = start_run(instance, **make_dead_process(), **tags)
            assert end_dead_runs(instance, database) == [run_id]
            run = instance.get_run_by_id(run_id)
            assert run is not None
            assert run.tags["dagster/will_retry"] == is_retried


def test_many_that_look_at_once_end_a_dead_run_once(instance: DagsterInstance, store_url: str) -> None:
    run_id = start_run(instance, **make_dead_process())
    ended: list[str] = []

    def look() -> None:
        own = open_database(store_url)
        ended.extend(end_dead_runs(instance, own))
        own.close()

    assert run_at_once(*[look] * 4) == []
    assert ended == [run_id]
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert len(events) == 1


@pytest.mark.parametrize("state", [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
@pytest.mark.parametrize(
    ("launcher", "idle_s", "is_ended"), [("gone", 120, True), ("gone", 5, False), ("there", 120, False)]
)
def test_of_a_run_that_never_told_its_process_its_code_server_tells(
    instance: DagsterInstance,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: DagsterRunStatus,
    launcher: str,
    idle_s: int,
    is_ended: bool,
) -> None:
    from batch_assets.dagster import dead_runs

    path = tmp_path / "launcher"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        if launcher == "there":
            server.listen()
        tag = json.dumps({"host": "localhost", "socket": str(path)})
        run_id = start_run(instance, state=state, **{RUN_TAG: "its parent", GRPC_INFO_TAG: tag})
        real = dead_runs.time.time
        monkeypatch.setattr(dead_runs.time, "time", lambda: real() + idle_s)
        monkeypatch.setattr(dead_runs, "LAUNCHER_LOOKS_EVERY_S", 0.0)
        assert end_dead_runs(instance, database) == ([run_id] if is_ended else [])
    assert (status(instance, run_id) is DagsterRunStatus.FAILURE) is is_ended


def test_a_code_server_that_ends_its_own_dead_run_is_not_spoken_over(
    instance: DagsterInstance, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batch_assets.dagster import dead_runs

    run_id = start_run(instance, **make_dead_process(), **{GRPC_INFO_TAG: "{}"})

    def end_meanwhile(_seconds: float) -> None:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        instance.report_run_failed(run)

    monkeypatch.setattr(dead_runs.time, "sleep", end_meanwhile)
    assert end_dead_runs(instance, database) == []
    assert len(instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_FAILURE)) == 1


def beat_elsewhere(database: Database, run_id: str, *, ago_s: float, doubted_ago_s: float | None = None) -> None:
    """Leave the heartbeat of a run of another host, as it is so long after its last sign of life."""
    with database.write() as connection:
        at = find_moment(connection)
        doubted_at = None if doubted_ago_s is None else at - dt.timedelta(seconds=doubted_ago_s)
        row = {"host": "elsewhere", "pid": 1, "process_started": 0.0, "doubted_at": doubted_at}
        connection.execute(sa.delete(runs).where(runs.c.run_id == run_id))
        beat_at = at - dt.timedelta(seconds=ago_s)
        connection.execute(sa.insert(runs).values(run_id=run_id, beat_at=beat_at, **row))


def test_a_live_run_on_another_host_that_holds_no_lease_any_more_is_left_alone(
    instance: DagsterInstance, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has finished its partitions and still reports, or makes results; its slot is taken all the same."""
    from batch_assets.dagster import dead_runs

    run_id = start_run(instance, **{HOST_TAG: "elsewhere"})
    beat_elsewhere(database, run_id, ago_s=10)
    real = dead_runs.time.time
    monkeypatch.setattr(dead_runs.time, "time", lambda: real() + 600)
    assert end_dead_runs(instance, database) == []
    assert find_pool_holders(instance, "gpu") == {run_id}


@pytest.mark.parametrize("has_slot", [True, False])
def test_a_run_on_another_host_that_falls_silent_is_ended_at_the_second_look(
    instance: DagsterInstance, database: Database, has_slot: bool
) -> None:
    run_id = start_run(instance, **{HOST_TAG: "elsewhere"})
    if not has_slot:  # as a run that makes results
        instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    beat_elsewhere(database, run_id, ago_s=SILENT_S + 60)
    assert end_dead_runs(instance, database) == [], "the database may have been away until now"
    beat_elsewhere(database, run_id, ago_s=SILENT_S + 60, doubted_ago_s=DOUBT_S + 1)
    assert end_dead_runs(instance, database) == [run_id]
    assert status(instance, run_id) is DagsterRunStatus.FAILURE
    assert find_pool_holders(instance, "gpu") == set()
    with database.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(runs)) == 0


def test_a_silent_heartbeat_ends_no_run_whose_process_lives_here(instance: DagsterInstance, database: Database) -> None:
    run_id = start_run(instance)
    beat_elsewhere(database, run_id, ago_s=3600, doubted_ago_s=3600)
    assert end_dead_runs(instance, database) == []


def test_a_run_keeps_its_heartbeat_from_the_opening_of_its_platform_to_its_end(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BATCH_ASSETS_DB_URL", raising=False)
    found: list[list[str]] = []

    @dg.op(required_resource_keys={PLATFORM})
    def look(context: dg.OpExecutionContext) -> None:
        with getattr(context.resources, PLATFORM).database.read() as connection:
            found.append([context.run_id, *connection.scalars(sa.select(runs.c.run_id))])
        raise ValueError("as ugly as it gets")

    @dg.job(resource_defs={PLATFORM: build_platform_resource({})})
    def looking() -> None:
        look()

    assert not looking.execute_in_process(instance=instance, raise_on_error=False).success
    assert [len(set(ids)) for ids in found] == [1] and len(found[0]) == 2
    opened = open_database(f"sqlite:///{tmp_path / 'home' / 'store.db'}")
    with opened.read() as connection:
        assert list(connection.scalars(sa.select(runs.c.run_id))) == []
    opened.close()


def test_each_run_of_the_command_line_keeps_its_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = TempProject(tmp_path, monkeypatch)
    project.write("b1", ["1"])
    found: set[str] = set()

    def look(_text: str) -> None:
        opened = open_database(f"sqlite:///{tmp_path / 'home' / 'store.db'}")
        with opened.read() as connection:
            found.update(connection.scalars(sa.select(runs.c.run_id)))
        opened.close()

    engine = project.use(ScriptedEngine())
    engine.on_request = look
    summary = project.run()
    assert len(found) == 1 and found < set(summary.run_ids)
    with project.open_platform() as platform, platform.database.read() as connection:
        assert list(connection.scalars(sa.select(runs.c.run_id))) == []


@pytest.mark.parametrize(("lease_s", "idle_s", "is_ended"), [(60, 600, False), (-1, 600, True), (-1, 5, False)])
def test_of_a_run_of_an_earlier_version_on_another_host_its_leases_tell(
    instance: DagsterInstance,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    lease_s: int,
    idle_s: int,
    is_ended: bool,
) -> None:
    run_id = start_run(instance, **{HOST_TAG: "elsewhere"})
    with database.write() as connection:
        expires_at = now() + dt.timedelta(seconds=lease_s)
        row = {"task": "t", "batch": "b", "variant": "v", "run_id": run_id, "host": "elsewhere", "pid": 1}
        connection.execute(sa.insert(leases).values(**row, process_started=0.0, expires_at=expires_at))
    from batch_assets.dagster import dead_runs

    real = dead_runs.time.time
    monkeypatch.setattr(dead_runs.time, "time", lambda: real() + idle_s)
    assert LEASE_S < 600
    assert end_dead_runs(instance, database) == ([run_id] if is_ended else [])


def test_the_sensor_ends_dead_runs_of_a_task_whose_source_is_broken(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batch_assets.core.errors import SourceError
    from batch_assets.dagster.project import load_project
    from batch_assets.dagster.sensors import sync
    from batch_assets.settings import load_settings

    def refuse(*_args: object, **_options: object) -> None:
        raise SourceError("broken")

    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sync, "sync_partitions", refuse)
    sensor = sync.build_sync_sensor(*load_project(load_settings()).tasks["ticket_triage"])
    run_id = start_run(instance, **make_dead_process())
    with pytest.raises(SourceError):
        sensor(dg.build_sensor_context(instance=instance))
    assert status(instance, run_id) is DagsterRunStatus.FAILURE


def test_the_sensor_registers_new_files_retires_nothing_and_ends_dead_runs(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batch_assets.dagster.project import load_project
    from batch_assets.dagster.sensors.sync import build_sync_sensor
    from batch_assets.settings import load_settings

    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path / "home"))
    task, source = load_project(load_settings()).tasks["ticket_triage"]
    instance.add_dynamic_partitions("ticket_triage__variant", ["v9--a_newer_one"])
    run_id = start_run(instance, **make_dead_process())
    skipped = build_sync_sensor(task, source)(dg.build_sensor_context(instance=instance))
    assert isinstance(skipped, dg.SkipReason) and run_id in str(skipped.skip_message)
    assert len(instance.get_dynamic_partitions("ticket_triage__batch")) == 3
    assert "v9--a_newer_one" in instance.get_dynamic_partitions("ticket_triage__variant")
    assert status(instance, run_id) is DagsterRunStatus.FAILURE
