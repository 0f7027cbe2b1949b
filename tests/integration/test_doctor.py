"""`batch-assets doctor` on real homes, stores and definitions: it names what is wrong, and changes nothing."""

import datetime as dt
import hashlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from click.testing import CliRunner
from dagster import DagsterRunStatus
from dagster._core.utils import make_new_run_id
from dagster._daemon.types import DaemonHeartbeat
from factories import ScriptedEngine
from temp_project import TASK, TempProject

from batch_assets.cli.examination import examine
from batch_assets.cli.main import cli
from batch_assets.cli.probes.findings import Finding, Level
from batch_assets.dagster.dead_runs import HOST_TAG, PID_TAG, RUN_TAG, STARTED_TAG, process_tags
from batch_assets.dagster.instance import INSTANCE_URL, open_instance, render_instance_file
from batch_assets.settings import load_settings
from batch_assets.store.database import VERSION_TABLE, Database, now, open_database
from batch_assets.store.frame_folders import FrameFolder, load_frame_folders
from batch_assets.store.tables import frame_folders, microbatches

OK, WARN, WRONG = Level.OK, Level.WARN, Level.WRONG
SECRET = "geh3im"


@pytest.fixture
def project(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """Yield a project of one batch and two variants whose home isn't there yet."""
    made = TempProject(quick_path, monkeypatch)
    made.instance.dispose()
    made.write("b1", ["1", "2"])
    for name in ("BATCH_ASSETS_ALERT_URLS", "BATCH_ASSETS_DB_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(INSTANCE_URL, "")  # what a probe sets is gone after the test
    monkeypatch.delenv(INSTANCE_URL)
    monkeypatch.setenv("BATCH_ASSETS_CACHE", str(quick_path / "cache"))
    yield made


def find(found: list[Finding], about: str) -> list[tuple[Level, str]]:
    return [(f.level, f.says) for f in found if f.about == about]


def find_wrong(found: list[Finding]) -> list[str]:
    return [f"{f.about}: {f.says}" for f in found if f.level is WRONG]


def has(found: list[Finding], about: str, level: Level, words: str) -> bool:
    return any(lvl is level and words in says for lvl, says in find(found, about))


def snapshot(folder: Path) -> Mapping[str, str]:
    """Return every file and folder, with a hash of what is in it."""
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in sorted(folder.rglob("*"))
        if not p.is_socket()
    }


def run_once(project: TempProject) -> None:
    """Do all there is to do, in the home that the doctor looks at."""
    with open_instance(load_settings()) as instance:
        project.instance = instance
        project.use(ScriptedEngine())
        project.run()


def test_on_a_fresh_home_it_is_well_and_makes_nothing(
    project: TempProject, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as it is for a person
    monkeypatch.setattr(sys, "pycache_prefix", None)
    before = snapshot(quick_path)
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.exception is None
    assert result.return_value == 0
    assert snapshot(quick_path) == before
    assert not (quick_path / "home").exists()
    assert "store.db: made at the first run" in result.stdout
    assert "no instance in" in result.stdout
    assert "1 batch, 2 variants: v1, v2 × m1" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("0 wrong, ")


def test_a_home_in_use_is_described_and_stays_as_it_is_to_the_byte(project: TempProject, quick_path: Path) -> None:
    run_once(project)
    before = snapshot(quick_path)
    found = examine()
    assert snapshot(quick_path) == before
    assert find_wrong(found) == []
    assert has(found, "store", OK, "4 results, 1 batch, 2 finished partitions")
    assert has(found, "store", OK, ", current")
    assert has(found, "dagster", OK, "history in SQLite")
    assert has(found, "dagster", OK, "dagster.yaml is as the template")
    assert has(found, "dagster", WARN, "no daemon")
    assert has(found, "dagster", OK, "0 runs in progress; pools: gpu 0 of 1 slots taken")


def test_a_store_that_others_write_to_is_read_all_the_same(project: TempProject) -> None:
    run_once(project)
    with project.open_platform() as platform, platform.database.write() as connection:
        connection.execute(sa.text("DELETE FROM llm_partitions"))
        assert has(examine(), "store", OK, "4 results, 1 batch, 2 finished partitions")
    assert has(examine(), "store", OK, "0 finished partitions")


def test_json_holds_the_same_and_the_exit_code_says_what_is_wrong(project: TempProject) -> None:
    (project.folder / "task.py").write_text("import no_such_module_7\n")
    result = CliRunner().invoke(cli, ["doctor", "--json"], standalone_mode=False)
    assert result.return_value == 1
    document = json.loads(result.stdout)
    assert document["is_well"] is False
    (wrong,) = [f for f in document["findings"] if f["level"] == "wrong"]
    assert wrong["about"] == "tasks"
    assert "no_such_module_7" in wrong["says"]


# Definitions


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def broken(:\n", "task.py, line 1: invalid syntax"),
        ("raise SystemExit(7)\n", "SystemExit: 7"),
        ("print('hello')\nraise RuntimeError('why')\n", "RuntimeError: why"),
    ],
)
def test_code_that_doesnt_load_is_told_and_the_rest_too(
    project: TempProject, code: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (project.folder / "task.py").write_text(code)
    found = examine()
    (wrong,) = find_wrong(found)
    assert wrong.startswith("tasks: the definitions in ")
    assert words in wrong
    assert {"python", "model m1", "store", "alerts", "dagster", "disk", "clock"} <= {f.about for f in found}
    assert capfd.readouterr().out == ""


def test_mistakes_in_prompts_models_and_folders_are_named(project: TempProject) -> None:
    project.write_prompts(v3="{{ nothing_there }}")
    assert "nothing_there" in find_wrong(examine())[0]
    project.write_prompts(v3="{{ text }}")
    project.write_models(max_in_flight=0)
    assert any("m1: max_in_flight" in line for line in find_wrong(examine()))
    project.write_models()
    (project.defs / "__init__.py").unlink()
    assert any("needs an __init__.py" in line for line in find_wrong(examine()))
    shutil.rmtree(project.defs)
    assert any("models.yaml: no such file" in line for line in find_wrong(examine()))


def test_a_task_without_files_is_a_warning(project: TempProject) -> None:
    shutil.rmtree(project.folder / "files")
    assert has(examine(), "task t", WARN, "0 batches, 2 variants")


def test_microbatches_are_counted_in_the_store_and_make_none(project: TempProject, quick_path: Path) -> None:
    rows = quick_path / "rows.db"
    with sqlite3.connect(rows) as source:
        source.execute("CREATE TABLE rows (item_id TEXT, text TEXT, n INTEGER)")
        source.execute("INSERT INTO rows VALUES ('1', 'a', 1)")
    source.close()
    code = TASK.replace("sources.files import FileSource", "sources.sql import SqlSource")
    wanted = f'SqlSource(url="sqlite:///{rows}", table="rows", cursor="n")'
    (project.folder / "task.py").write_text(code.replace('FileSource("files/*.csv")', wanted))
    found = examine()
    assert any(says.startswith("0 microbatches of ") for _, says in find(found, "task t")), find_wrong(found)
    assert not (quick_path / "home").exists()
    with project.open_platform() as platform, platform.database.write() as connection:
        connection.execute(sa.insert(microbatches).values(task="t", batch="x", seq=1, records=1, formed_at=now()))
    assert any(says.startswith("1 microbatch of ") for _, says in find(examine(), "task t"))


def test_missing_weights_are_wrong_where_a_task_asks_for_them(project: TempProject) -> None:
    with (project.defs / "models.yaml").open("a") as f:
        f.write("m2:\n  weights: ./nowhere\n  engine: vllm\n")
    assert has(examine(), "model m2", WARN, f"no folder {project.defs / 'nowhere'} (no task asks it)")
    task = project.folder / "task.py"
    task.write_text(task.read_text().replace('["m1"]', '["m1", "m2"]'))
    project.load()  # the modules of a defs folder stay loaded
    assert has(examine(), "model m2", WRONG, f"no folder {project.defs / 'nowhere'}")


def test_a_key_that_isnt_set_and_a_server_that_isnt_there(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    models = "m1:\n  weights: w\n  engine: openai\n  base_url: http://127.0.0.1:1/v1\n  api_key_env: SOME_KEY\n"
    (project.defs / "models.yaml").write_text(models)
    found = examine()
    assert has(found, "model m1", WRONG, "the API key is not set: its variable is SOME_KEY")
    assert has(found, "model m1", WRONG, "http://127.0.0.1:1/v1/models: the server can't be reached")
    monkeypatch.setenv("SOME_KEY", SECRET)
    found = examine()
    assert len(find(found, "model m1")) == 1
    assert SECRET not in str(found)


# Settings and the store


def test_a_wrong_setting_is_named_and_the_machine_described(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_UI_URL", "nonsense")
    found = examine()
    assert find_wrong(found)[0].startswith("settings: BATCH_ASSETS_UI_URL: ")
    assert {"python", "packages", "clock"} <= {f.about for f in found}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"mysql://u:{SECRET}@h/d", "the store is SQLite or PostgreSQL"),
        (f"non:sense/{SECRET}", "not a SQLAlchemy URL"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/d", "can't be opened"),
        (f"postgresql://u@127.0.0.1:1/d?password={SECRET}", "can't be opened"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1", "no database is named"),
    ],
)
def test_a_store_that_cant_be_is_wrong_by_name_and_without_its_password(
    project: TempProject, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", url)
    found = examine()
    assert has(found, "store", WRONG, words)
    assert SECRET not in str(found)
    assert has(found, "task t", OK, "1 batch")


def test_the_password_of_the_environment_is_used_and_not_shown(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", "postgresql://u@127.0.0.1:1/d")
    monkeypatch.setenv("BATCH_ASSETS_DB_PASSWORD", SECRET)
    found = examine()
    assert has(found, "store", WRONG, "can't be opened")
    assert SECRET not in str(found)


def test_a_file_that_is_no_store(project: TempProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "100% mine#.db"
    path.write_bytes(b"not a database" * 100)
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", f"sqlite:///{path}")
    assert has(examine(), "store", WRONG, "file is not a database")


def test_schemas_of_other_versions(project: TempProject, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", store_url)
    engine = sa.create_engine(store_url, poolclass=sa.NullPool)

    def set_revision(revision: str) -> None:
        with engine.begin() as connection:
            connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))

    with engine.connect() as connection:
        head = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
    try:
        assert has(examine(), "store", OK, f"schema {head}, current")
        set_revision("0001")
        assert has(examine(), "store", OK, f"schema 0001: the next run brings it to {head}")
        set_revision("9999")
        assert has(examine(), "store", WRONG, "schema 9999 is newer")
    finally:
        set_revision(str(head))


def test_a_database_without_a_schema_stays_without(
    project: TempProject, empty_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", empty_store_url)
    engine = sa.create_engine(empty_store_url, poolclass=sa.NullPool)
    found = examine()
    assert find_wrong(found) == []
    if engine.dialect.name == "postgresql":
        assert has(found, "store", OK, "no schema yet: made at the first run")
        assert has(found, "store", OK, "its clock is ")
        assert sa.inspect(engine).get_table_names() == []
    else:
        assert not Path(str(engine.url.database)).exists()


@pytest.mark.parametrize("empty_store_url", ["postgresql"], indirect=True)
def test_an_instance_in_postgresql_is_looked_into(
    project: TempProject, empty_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", empty_store_url)
    settings = load_settings()
    open_database(settings.store_url).close()
    with open_instance(settings) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), "SENSOR", "1", []))
    monkeypatch.delenv(INSTANCE_URL)
    found = examine()
    assert has(found, "dagster", OK, "history in PostgreSQL")
    assert has(found, "dagster", OK, "the daemon lives")
    assert find_wrong(found) == []


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
def test_hosts_whose_frames_lie_in_different_folders_are_told_of_each_other(
    project: TempProject, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", store_url)
    with project.open_platform() as platform:
        (mine,) = load_folders(platform.database)
        assert has(examine(), "frames", OK, f"in {mine.folder}, the one folder of {mine.host}")
        row = {"host": "elsewhere", "folder": "/srv/frames", "seen_at": now()}
        for marker, seen_at, is_apart in (
            (mine.marker, now(), False),
            ("m" * 32, now(), True),
            ("m" * 32, now() - dt.timedelta(days=31), False),
        ):
            with platform.database.write() as connection:
                connection.execute(sa.delete(frame_folders).where(frame_folders.c.host == "elsewhere"))
                values = {**row, "marker": marker, "seen_at": seen_at}
                connection.execute(sa.insert(frame_folders).values(**values))
            found = examine()
            assert has(found, "frames", WARN, "elsewhere has them in /srv/frames") is is_apart
            assert has(found, "frames", OK, "the one folder of ") is not is_apart
            assert find_wrong(found) == []


def load_folders(database: Database) -> list[FrameFolder]:
    with database.read() as connection:
        return load_frame_folders(connection)


def test_a_store_of_an_earlier_version_is_described_as_far_as_it_goes(
    project: TempProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    upgrade = command.upgrade
    with monkeypatch.context() as patched:
        patched.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0001"))
        open_database(url).close()
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", url)
    found = examine()
    assert has(found, "store", OK, "schema 0001: the next run brings it to ")
    assert has(found, "store", OK, "0 results, 0 batches, 0 finished partitions")
    assert find_wrong(found) == []
    assert find(found, "frames") == []


# Dagster's instance


def test_an_instance_that_was_never_opened_stays_so(
    project: TempProject, quick_path: Path, empty_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DB_URL", empty_store_url)
    change(quick_path / "home", render_instance_file(load_settings()))
    before = snapshot(quick_path)
    found = examine()
    assert has(found, "dagster", OK, "its history is not looked into")
    assert snapshot(quick_path) == before
    engine = sa.create_engine(empty_store_url, poolclass=sa.NullPool)
    assert engine.dialect.name == "sqlite" or sa.inspect(engine).get_table_names() == []


def change(home: Path, text: str) -> None:
    (home / "dagster").mkdir(parents=True, exist_ok=True)
    (home / "dagster" / "dagster.yaml").write_text(text)


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        ("telemetry: [", WRONG, "not YAML"),
        ("just words", WRONG, "not a mapping"),
        (f"storage: {{postgres: {{postgres_url: 'postgresql://u:{SECRET}@h/d'}}}}", WRONG, "asks for SQLite"),
        (f"storage: {{custom: {{module: m, class: C, config: {{p: {SECRET}}}}}}}", OK, "not looked into"),
    ],
)
def test_a_dagster_yaml_that_cant_work_is_wrong(
    project: TempProject, quick_path: Path, text: str, level: Level, words: str
) -> None:
    change(quick_path / "home", text)
    found = examine()
    assert has(found, "dagster", level, words)
    assert bool(find_wrong(found)) is (level is WRONG)
    assert SECRET not in str(found)


def test_changed_keys_of_dagster_yaml_are_named_and_what_dagster_refuses(
    project: TempProject, quick_path: Path
) -> None:
    run_once(project)
    file = quick_path / "home" / "dagster" / "dagster.yaml"
    original = file.read_text()
    file.write_text(original.replace("max_retries: 3", "max_retries: 7") + "\npython_logs: {python_log_level: INFO}\n")
    found = examine()
    assert has(found, "dagster", WARN, "differs from the template in python_logs, run_retries.max_retries")
    assert find_wrong(found) == []
    file.write_text(original + "\nno_such_key: 1\n")
    assert has(examine(), "dagster", WRONG, "Dagster refuses dagster.yaml")


def test_dead_runs_taken_pools_and_a_daemon_that_fails(project: TempProject) -> None:
    run_once(project)
    with open_instance(load_settings()) as instance:
        ids = [make_new_run_id() for _ in range(2)]
        gone = {PID_TAG: str(os.getpid()), HOST_TAG: os.uname().nodename, STARTED_TAG: "1.0"}
        for run_id, tags in zip(ids, (process_tags(ids[0]), {**gone, RUN_TAG: ids[1]}), strict=True):
            instance.create_run(
                job_name="j", run_id=run_id, run_config=None, status=DagsterRunStatus.STARTED, tags=tags,
                root_run_id=None, parent_run_id=None, step_keys_to_execute=None, execution_plan_snapshot=None,
                job_snapshot=None, parent_job_snapshot=None, asset_selection=None, asset_check_selection=None,
                resolved_op_selection=None, op_selection=None, remote_job_origin=None, job_code_origin=None,
                asset_graph=None,
            )  # fmt: skip
        instance.event_log_storage.set_concurrency_slots("gpu", 1)
        instance.event_log_storage.claim_concurrency_slot("gpu", ids[1], "step")
        for daemon, errors in (("SENSOR", []), ("SCHEDULER", [make_error("its words")])):
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "1", errors))
    found = examine()
    assert has(found, "dagster", OK, f"1 run in progress; pools: gpu 1 of 1 slots taken by run {ids[1]}")
    assert has(found, "dagster", WARN, f"1 run whose process is gone: {ids[1]}")
    assert has(found, "dagster", OK, "the daemon lives")
    assert has(found, "dagster", WARN, "the daemon's SCHEDULER fails: its words")
    with open_instance(load_settings()) as instance:
        for daemon in ("SENSOR", "SCHEDULER"):
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 7200, daemon, "1", []))
    assert has(examine(), "dagster", WARN, "no daemon, last seen 2 h ago")


def make_error(message: str) -> Any:
    from dagster._utils.error import SerializableErrorInfo

    return SerializableErrorInfo(message, [], "SomeError")


# Alerts


def test_receivers_are_shown_by_kind_and_a_wrong_one_by_place(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has(examine(), "alerts", WARN, "to nobody")
    monkeypatch.setenv("BATCH_ASSETS_ALERT_URLS", f"json://u:{SECRET}@127.0.0.1:1 jsons://127.0.0.1:2/{SECRET}")
    found = examine()
    assert find(found, "alerts") == [(OK, "to 1 (json), 2 (jsons)")]
    monkeypatch.setenv("BATCH_ASSETS_ALERT_URLS", f"json://127.0.0.1:1 nonsense://{SECRET}")
    wrong = examine()
    assert has(wrong, "alerts", WRONG, "URL 2 of 2")
    assert SECRET not in str(found) + str(wrong)


def test_alerts_that_could_not_be_delivered_are_counted(project: TempProject) -> None:
    with project.open_platform() as platform, platform.database.write() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO llm_alerts (alert_key, kind, subject, body, link, run_id, created_at, delivered_to, tries,"
                " next_try_at) VALUES ('k', 'run_failed', 't', 'b', 'l', 'r', '2026-01-01', '[]', 3, '2026-01-01')"
            )
        )
    change(load_settings().home, "")
    assert has(examine(), "alerts", WARN, "1 could not be delivered yet, after up to 3 tries")
