"""`batch-assets export`: what a file holds, what is told of what it doesn't hold, and what a kill leaves behind."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from factories import GOOD, ScriptedEngine, Stage, make_ids
from pydantic import BaseModel
from rich.console import Console
from temp_project import TempProject

from batch_assets.cli import exporter as export_module
from batch_assets.cli.export_output import Format
from batch_assets.cli.exporter import Exported, Exporter, result_columns
from batch_assets.cli.main import cli
from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.canonical import digest
from batch_assets.core.errors import ConfigError, NotReadyError
from batch_assets.core.tasks import Task
from batch_assets.dagster.instance import open_instance
from batch_assets.pipeline.plan import Selection
from batch_assets.settings import load_settings
from batch_assets.store.database import now
from batch_assets.store.tables import batches, item_owner

FORMATS = list(Format)


class Words(BaseModel):
    """An output model with a column of each kind."""

    note: str
    tags: list[str]
    score: float | None = None
    urgent: bool = False


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    """Yield a task's place with two files, five records."""
    made = Stage(tmp_path, store_url)
    made.write("b1", ["1", "2", "3"])
    made.write("b2", ["4", "5"])
    yield made
    made.platform.database.close()
    made.instance.dispose()


def export(
    stage: Stage, task: Task, path: Path, form: Format = Format.JSONL, *, strict: bool = False, **chosen: str
) -> Exported:
    exporter = Exporter(task, stage.source, stage.platform, stage.instance)
    return exporter.export(Selection.of(**chosen), form, str(path), strict=strict)


def read(path: Path, form: Format = Format.JSONL) -> list[dict[str, Any]]:
    match form:
        case Format.PARQUET:
            return pl.read_parquet(path).to_dicts()
        case Format.CSV:
            with path.open(encoding="utf-8", newline="") as f:
                return list(csv.DictReader(f))
        case Format.JSONL:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tell(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(r["batch"], r["prompt_ver"], r["item_id"]) for r in rows]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_holds_each_accepted_answer_once_in_a_fixed_order(stage: Stage, tmp_path: Path, form: Format) -> None:
    task = stage.task(prompts=["v1", "v2"])
    stage.run(task, ScriptedEngine({"text of 5": '{"label":"z","score":1}'}))
    path = tmp_path / "out"
    done = export(stage, task, path, form)
    rows = read(path, form)
    b1, b2 = [("b1", i) for i in "123"], [("b2", "4")]
    assert tell(rows) == [(b, v, i) for part in (b1, b2) for v in ("v1", "v2") for b, i in part]
    assert list(rows[0]) == list(result_columns(task))
    assert (done.rows, done.partitions, done.bytes) == (8, 4, path.stat().st_size)
    assert (done.missing, done.outdated, done.lost, done.left_out, done.has_changed) == ([], [], [], 0, False)


def test_a_selection_holds_its_part(stage: Stage, tmp_path: Path) -> None:
    task = stage.task(prompts=["v1", "v2"])
    stage.run(task)
    export(stage, task, tmp_path / "v", variant="v2--m1")
    assert tell(read(tmp_path / "v")) == [("b1", "v2", "1"), ("b1", "v2", "2"), ("b1", "v2", "3"),
                                          ("b2", "v2", "4"), ("b2", "v2", "5")]  # fmt: skip
    export(stage, task, tmp_path / "b", batch="b2", variant="v1--m1")
    assert tell(read(tmp_path / "b")) == [("b2", "v1", "4"), ("b2", "v1", "5")]


def test_each_kind_of_value_arrives_in_each_format(stage: Stage, tmp_path: Path) -> None:
    task = stage.task(output=Words)
    answers = {
        "text of 1": '{"note":"=1+1","tags":["a","b"],"score":-0.5,"urgent":true}',
        "text of 2": '{"note":"two\\nlines, \\"quoted\\" é","tags":[],"score":null,"urgent":false}',
        "text of 3": '{"note":"","tags":["-"],"score":1e23,"urgent":false}',
    }
    stage.run(task, ScriptedEngine(answers), batch="b1")
    names = ("item_id", "out_note", "out_tags", "out_score", "out_urgent")
    expected = [
        ("1", "=1+1", '["a","b"]', -0.5, True),
        ("2", 'two\nlines, "quoted" é', "[]", None, False),
        ("3", "", '["-"]', 1e23, False),
    ]
    for form in (Format.PARQUET, Format.JSONL):
        export(stage, task, tmp_path / form, form, batch="b1")
        assert [tuple(r[n] for n in names) for r in read(tmp_path / form, form)] == expected
    assert pl.read_parquet(tmp_path / "parquet").schema == pl.Schema(result_columns(task))
    export(stage, task, tmp_path / "csv", Format.CSV, batch="b1")
    assert [tuple(r[n] for n in names) for r in read(tmp_path / "csv", Format.CSV)] == [
        ("1", "'=1+1", '["a","b"]', "-0.5", "true"),
        ("2", 'two\nlines, "quoted" é', "[]", "", "false"),
        ("3", "", '["-"]', "1e+23", "false"),
    ]
    moment = read(tmp_path / "csv", Format.CSV)[0]["updated_at"]
    assert moment == f"{pl.read_parquet(tmp_path / 'parquet')['updated_at'][0]:%Y-%m-%dT%H:%M:%S.%f}+00:00"


def test_a_record_that_a_later_batch_took_over_counts_there_alone(stage: Stage, tmp_path: Path) -> None:
    task = stage.task()
    stage.run(task)
    stage.write("b3", {"2": "new text of 2", "6": "text of 6"})
    stage.run(task, batch="b3")  # b1 still has its frame of three
    done = export(stage, task, tmp_path / "out")
    expected = [("b1", "v1", "1"), ("b1", "v1", "3"), ("b2", "v1", "4"), ("b2", "v1", "5"),
                ("b3", "v1", "2"), ("b3", "v1", "6")]  # fmt: skip
    assert tell(read(tmp_path / "out")) == expected
    assert (done.left_out, done.outdated) == (1, ["b1|v1--m1"])
    stage.run(task)
    done = export(stage, task, tmp_path / "out")
    assert tell(read(tmp_path / "out")) == expected
    assert (done.left_out, done.outdated) == (0, [])


def test_a_record_that_left_the_source_leaves_the_export(stage: Stage, tmp_path: Path) -> None:
    task = stage.task()
    stage.run(task)
    stage.write("b1", ["1", "3"])
    done = export(stage, task, tmp_path / "out")
    assert (done.rows, done.left_out, done.outdated) == (5, 0, ["b1|v1--m1"])  # frozen anew by the next run alone
    stage.run(task)
    export(stage, task, tmp_path / "out")
    assert [r["item_id"] for r in read(tmp_path / "out")] == ["1", "3", "4", "5"]


def test_what_is_missing_outdated_or_lost_is_named(stage: Stage, tmp_path: Path) -> None:
    task = stage.task(prompts=["v1", "v2"])
    stage.run(task, batch="b1")
    stage.run(task, batch="b2", variant="v1--m1")
    stage.platform.frames.path("t", VALIDATED_RESULTS, "b1", "v2--m1").unlink()
    task = stage.task(prompts={"v1": "changed: {{ text }}", "v2": "v2: {{ text }}"})
    done = export(stage, task, tmp_path / "out")
    assert done.missing == ["b2|v2--m1"]
    assert done.outdated == ["b1|v1--m1", "b2|v1--m1"]
    assert done.lost == ["b1|v2--m1"]
    assert [r["item_id"] for r in read(tmp_path / "out")] == ["1", "2", "3", "4", "5"]


def test_strict_writes_nothing_unless_all_is_there(stage: Stage, tmp_path: Path) -> None:
    task = stage.task()
    stage.run(task, batch="b1")
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(NotReadyError, match=r"1 of 2 partitions have no results yet: b2\|v1--m1"):
        export(stage, task, path, strict=True)
    assert path.read_text() == "old"
    stage.run(task)
    assert export(stage, task, path, strict=True).rows == 5


def test_nothing_to_export_is_an_error_and_no_file(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no validated results here yet: batch-assets run t"):
        export(stage, stage.task(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_partition_without_an_accepted_answer_gives_columns_and_no_rows(
    stage: Stage, tmp_path: Path, form: Format
) -> None:
    task = stage.task()
    stage.run(task, ScriptedEngine(default='{"label":"z","score":1}'))
    done = export(stage, task, tmp_path / "out", form)
    assert (done.rows, done.partitions, read(tmp_path / "out", form)) == (0, 2, [])
    if form is Format.CSV:
        assert (tmp_path / "out").read_text() == ",".join(result_columns(task)) + "\n"


def test_a_frame_of_an_earlier_output_model_fits_in(stage: Stage, tmp_path: Path) -> None:
    class More(BaseModel):
        label: str
        score: int
        why: str = ""

    stage.run(stage.task())
    done = export(stage, stage.task(output=More), tmp_path / "out")
    assert {r["out_why"] for r in read(tmp_path / "out")} == {None}
    assert len(done.outdated) == 2


def take_over_meanwhile(stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let record 4, of the second partition, move to a third while the first is being exported."""
    real = export_module.fit_columns
    moved: list[str] = []

    def fit(frame: pl.DataFrame, *rest: Any) -> pl.DataFrame:
        if not moved:
            moved.append("4")
            stage.write("b3", moved)
            stage.run(task, batch="b3")
        return real(frame, *rest)

    monkeypatch.setattr(export_module, "fit_columns", fit)


def test_an_export_sees_one_state_of_the_store_and_tells_of_changes(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = stage.task()
    stage.run(task)
    take_over_meanwhile(stage, task, monkeypatch)
    done = export(stage, task, tmp_path / "out")
    assert [r["item_id"] for r in read(tmp_path / "out")] == ["1", "2", "3", "4", "5"]
    assert done.has_changed


def test_a_strict_export_is_given_up_when_the_task_changes_meanwhile(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = stage.task()
    stage.run(task)
    take_over_meanwhile(stage, task, monkeypatch)
    with pytest.raises(NotReadyError, match="changed while it was exported"):
        export(stage, task, tmp_path / "out", strict=True)
    assert not (tmp_path / "out").exists()


def test_a_bar_is_shown_on_a_terminal_once_it_takes_long(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = stage.task()
    stage.run(task)
    for after_s, is_terminal, is_shown in ((0.0, True, True), (0.0, False, False), (60.0, True, False)):
        out = io.StringIO()
        monkeypatch.setattr(export_module, "BAR_AFTER_S", after_s)
        monkeypatch.setattr(
            export_module, "Console", lambda stderr, o=out, t=is_terminal: Console(file=o, force_terminal=t)
        )
        export(stage, task, tmp_path / "out")
        assert ("exporting" in out.getvalue()) is is_shown
        assert is_shown or out.getvalue() == ""


# The command line


@pytest.fixture
def project(tmp_path: Path, quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TempProject]:
    """Yield a project of two batches and two prompts, run once for v1, whose instance is the command line's."""
    made = TempProject(quick_path, monkeypatch)
    made.instance.dispose()
    made.write("b1", ["1", "2"])
    made.write("b2", ["3"])
    with open_instance(load_settings()) as instance:
        made.instance = instance
        made.use(ScriptedEngine(default=GOOD))
        made.run(variant="v1--m1")
    monkeypatch.chdir(tmp_path)
    yield made


def call(project: TempProject, *args: str) -> Result:
    project.load()  # the modules of a defs folder stay loaded
    return CliRunner().invoke(cli, ["export", "t", *args], standalone_mode=False)


def test_the_command_writes_warns_and_sums_up(project: TempProject, tmp_path: Path) -> None:
    result = call(project, "--format", "csv")
    assert result.exception is None, result.exception
    size = (tmp_path / "t.csv").stat().st_size
    assert result.stdout == f"3 rows of 2 partitions in t.csv ({size} bytes)\n"
    assert "2 of 4 partitions have no results yet: b1|v2--m1, b2|v2--m1: batch-assets run t" in result.stderr
    result = call(project, "--variant", "v1--m1", "--output", "-", "--format", "jsonl")
    assert [json.loads(line)["item_id"] for line in result.stdout.splitlines()] == ["1", "2", "3"]
    assert result.stderr == "3 rows of 2 partitions\n"
    result = call(project, "--variant", "v1--m1", "--json")
    document = json.loads(result.stdout)
    assert (document["path"], document["format"], document["rows"]) == ("t--v1--m1.parquet", "parquet", 3)
    assert result.stderr == ""
    result = call(project, "--strict", "--output", "strict.csv")
    assert result.return_value == 1
    assert result.stderr.startswith("not exported: 2 of 4")
    assert not (tmp_path / "strict.csv").exists()


def test_what_isnt_there_is_named_with_what_is(project: TempProject) -> None:
    for args, words in [
        (["--variant", "v9--m1"], "no variant 'v9--m1'; it has v1--m1, v2--m1"),
        (["--batch", "b9"], "no batch 'b9'; it has b1, b2"),
        (["--output", "no/x.csv"], "there is no folder no"),
    ]:
        result = call(project, *args)
        assert isinstance(result.exception, ConfigError)
        assert words in str(result.exception)
    result = CliRunner().invoke(cli, ["export", "u"], standalone_mode=False)
    assert "no task 'u'; there are t" in str(result.exception)


def fill(project: TempProject, partitions: int, rows: int) -> None:
    """Give the project many frames, as finished partitions leave them, without asking for each row."""
    task, _ = project.bind()
    with project.open_platform() as platform:
        for n in range(partitions):
            batch, ids = f"x{n}", make_ids(rows, f"x{n}-")
            with platform.database.write() as connection:
                connection.execute(
                    sa.insert(batches).values(
                        task="t", batch=batch, seq=10 + n, change_token="", source_hash=digest(ids), records=rows,
                        malformed=[], superseded=0, superseded_hash="", frozen_at=now(),
                    )
                )  # fmt: skip
                connection.execute(sa.insert(item_owner), [{"task": "t", "item_id": i, "batch": batch} for i in ids])
            frame = pl.DataFrame(
                {"item_id": ids, "batch": batch, "prompt_ver": "v1", "model_id": "m1", "out_label": "x" * 1000,
                 "out_score": 1, "attempts": 1, "is_reused": False, "is_fallback": False,
                 "updated_at": now()}
            ).cast(dict(result_columns(task)))  # fmt: skip
            platform.frames.write(frame, "t", VALIDATED_RESULTS, batch, "v1--m1")


def test_an_export_that_is_killed_leaves_the_old_file_and_the_next_one_tidies_up(
    project: TempProject, tmp_path: Path
) -> None:
    fill(project, partitions=30, rows=2000)
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    command = [sys.executable, "-m", "batch_assets.cli.main", "export", "t", "--variant", "v1--m1",
               "--output", str(path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def find_temporary() -> list[Path]:
        return [p for p in tmp_path.glob(".out.jsonl.*.tmp") if p.stat().st_size > 1_000_000]

    give_up_at = time.monotonic() + 120
    while not find_temporary() and process.poll() is None and time.monotonic() < give_up_at:
        time.sleep(0.001)
    assert process.poll() is None, f"it ended before it could be killed: {process.communicate()}"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.read_text() == "old"
    assert len(list(tmp_path.glob(".out.jsonl.*"))) == 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert list(tmp_path.glob(".out.jsonl.*")) == []
    assert "30 of 32 partitions are out of date" in done.stderr
    ids = [json.loads(line)["item_id"] for line in path.open()]
    assert len(ids) == len(set(ids)) == 30 * 2000 + 3


def test_a_reader_that_goes_away_ends_it_with_a_plain_word(project: TempProject) -> None:
    fill(project, partitions=3, rows=1000)
    command = [sys.executable, "-m", "batch_assets.cli.main", "export", "t", "--format", "csv", "--output", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ), text=True)
    assert process.stdout and process.stdout.readline().startswith("item_id,batch")
    process.stdout.close()
    assert process.stderr
    said = process.stderr.read()
    assert process.wait(timeout=60) == 2
    assert "stdout can't be written" in said
    assert "Traceback" not in said and "Exception ignored" not in said
