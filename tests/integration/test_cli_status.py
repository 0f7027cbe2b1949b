"""What a terminal tells of a partition whose results a check holds back: why, which records, and what helps."""

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from factories import BAD, ScriptedEngine
from temp_project import TempProject

from batch_assets.cli.exit_codes import FAILING_CHECKS, STOPPED
from batch_assets.cli.main import cli, main
from batch_assets.core.errors import ConfigError
from batch_assets.core.steps import Step
from batch_assets.dagster.instance import open_instance
from batch_assets.settings import load_settings
from batch_assets.store.leases import LeaseBook

IDS = ["[/a]", "b1r1", "b1r2", "b1r3"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TempProject:
    """One batch of four records, three of whose answers are refused; one id looks like markup."""
    found = TempProject(tmp_path, monkeypatch)
    found.write("b1", IDS)
    found.instance = open_instance(load_settings())
    found.use(ScriptedEngine({f"text of {i}": BAD for i in IDS[:3]}))
    return found


def call(project: TempProject, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), standalone_mode=False, obj=project.build_engine)


def test_a_run_whose_results_are_held_back_tells_the_reasons_and_what_they_cost(project: TempProject) -> None:
    done = call(project, "run", "t", "--variant", "v1--m1")
    assert done.return_value == FAILING_CHECKS
    assert "4 results: 1 ok, 3 invalid, 0 error (3 schema)" in done.stdout
    assert "results held back: b1|v1--m1: invalid_share fails" in done.stdout
    assert "run t --retry failed" in done.stdout


def test_figures_of_an_earlier_state_are_not_told_as_those_of_the_run(project: TempProject) -> None:
    project.use(ScriptedEngine())
    assert call(project, "run", "t", "--variant", "v1--m1").return_value == 0
    project.use(ScriptedEngine({f"other {i}": BAD for i in IDS[:3]}))
    project.write("b1", {i: f"other {i}" for i in IDS})
    (report,) = json.loads(call(project, "run", "t", "--variant", "v1--m1", "--json").stdout)["reports"]
    assert (report["ok"], report["invalid"]) == (1, 3)


def test_status_tells_why_rows_are_not_ok_with_a_record_of_each_kind(project: TempProject) -> None:
    call(project, "run", "t", "--variant", "v1--m1")
    told = call(project, "status", "t").stdout
    assert any(line.split() == ["v1", "m1", "invalid/schema", "3", "[/a]"] for line in told.splitlines())
    line = next(s for s in json.loads(call(project, "status", "t", "--json").stdout)["t"] if s["prompt_ver"] == "v1")
    assert line["reasons"] == {"invalid/schema": {"records": 3, "first": "[/a]"}}


def test_an_export_of_results_that_are_held_back_doesnt_send_you_round_in_circles(project: TempProject) -> None:
    call(project, "run", "t", "--variant", "v1--m1")
    done = call(project, "export", "t", "--variant", "v1--m1")
    assert isinstance(done.exception, ConfigError)
    assert "1 of 1 partitions have new results that a check holds back: b1|v1--m1" in str(done.exception)
    assert "run t --retry failed" in str(done.exception)
    assert "b1|v1--m1: results held back: invalid_share fails" in call(project, "plan", "t").stdout


def test_status_says_that_new_batches_are_in_no_figure(project: TempProject) -> None:
    told = call(project, "status", "t").stdout
    assert "not counted: 1 new batches, see batch-assets plan t" in told
    project.launch(Step.SOURCES, batches=["b1"], variants=["v1--m1"])
    assert "not counted" not in call(project, "status", "t").stdout


def test_a_record_that_waits_is_told_from_one_that_is_not_there(project: TempProject) -> None:
    project.launch(Step.SOURCES, batches=["b1"], variants=["v1--m1"])
    assert call(project, "show", "t", "[/a]").stdout == "[/a] in batch b1: pending\n"
    assert "task t has no record 'b1r9' in the batches that were read" in str(
        call(project, "show", "t", "b1r9").exception
    )


def test_a_partition_at_work_is_told_with_the_process_that_holds_it(project: TempProject) -> None:
    project.launch(Step.SOURCES, batches=["b1"], variants=["v1--m1"])
    with project.open_platform() as platform:
        LeaseBook(platform.database, "other").acquire("t", "b1", "v1--m1")
    done = call(project, "run", "t", "--variant", "v1--m1")
    place = f"pid {os.getpid()} on {socket.gethostname()}"
    assert done.return_value == STOPPED
    assert f"passed over b1|v1--m1: run other works on it ({place})" in done.stdout
    assert "once the other run has ended" in done.stdout
    assert f"run other works on it: {place}" in call(project, "plan", "t", "--variant", "v1--m1").stdout


@pytest.mark.parametrize("command", [["status"], ["run", "t"]])
def test_a_database_of_dagsters_that_cant_be_read_is_told_in_a_line(
    project: TempProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    project.instance.dispose()
    for file in (load_settings().home / "dagster").rglob("*.db"):
        file.write_bytes(b"no database at all" * 1000)
    monkeypatch.setattr("sys.argv", ["batch-assets", *command])
    with pytest.raises(SystemExit) as end:
        main()
    told = capfd.readouterr().err
    assert end.value.code == STOPPED
    assert "stopped: Dagster's own database: the store's file is damaged" in told
    assert "Traceback" not in told


def test_a_home_that_is_a_file_is_told_by_the_variables_name(
    project: TempProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path / "file"))
    assert "BATCH_ASSETS_HOME: " in str(call(project, "run", "t").exception)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_pattern_that_no_file_fits_is_told(project: TempProject, command: str) -> None:
    path = project.folder / "task.py"
    path.write_text(path.read_text().replace("*.csv", "*.cvs"))
    assert "the source of task t offers no batch: no file fits" in call(project, command, "t").stderr


def test_of_a_store_whose_file_is_gone_nothing_is_called_kept(
    project: TempProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine()
    store = load_settings().home / "store.db"
    engine.on_request = lambda _text: store.unlink(missing_ok=True)
    project.use(engine)
    monkeypatch.setattr("sys.argv", ["batch-assets", "run", "t"])
    with pytest.raises(SystemExit) as end:
        main(project.build_engine)
    assert end.value.code == STOPPED
    told = capfd.readouterr().err
    assert "store.db is gone, or another has taken its place\nwhat was done is in the old file alone" in told
    assert "is kept" not in told
