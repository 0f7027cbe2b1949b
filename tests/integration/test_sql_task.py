"""A task on a SQL table, from its rows to its validated results, said in Python and in YAML."""

from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from factories import ScriptedEngine
from streams import add_rows, execute, make_sql_source, make_table
from temp_project import TASK, TempProject

from batch_assets.core.errors import ConfigError
from batch_assets.dagster.yaml_fields import resolve_source
from batch_assets.sources.sql import SqlSource
from batch_assets.sources.stream import Microbatched

ON_SQL = TASK.replace("batch_assets.sources.files import FileSource", "batch_assets.sources.sql import SqlSource")
ON_SQL = ON_SQL.replace(
    'FileSource("files/*.csv")', 'SqlSource(url_env="TICKETS_URL", table="tickets", cursor="version", max_records=2)'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source_url: str) -> TempProject:
    monkeypatch.setenv("TICKETS_URL", source_url)
    made = TempProject(tmp_path, monkeypatch)
    (made.folder / "task.py").write_text(ON_SQL)
    return made


def tick(project: TempProject) -> str:
    """Let the microbatch sensor look once, as the daemon does."""
    sensor = project.load().definitions.resolve_sensor_def("t__microbatches")
    with dg.build_sensor_context(instance=project.instance) as context:
        found = sensor.evaluate_tick(context)
    return found.skip_message or ""


def results(project: TempProject) -> list[tuple[str, str, str]]:
    """Return item_id, batch and status of all rows of v1."""
    query = "SELECT item_id, batch, status FROM llm_batch_results WHERE prompt_ver = 'v1' ORDER BY item_id"
    with project.open_platform() as platform, platform.database.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def test_rows_become_batches_outputs_and_validated_results_and_new_ones_follow(
    project: TempProject, source_url: str
) -> None:
    table = make_table(source_url, [("a", "text of a", 1), ("b", "text of b", 2), ("c", "text of c", 3)])
    engine = project.use(ScriptedEngine())
    assert tick(project).startswith("1 batch formed")
    summary = project.run()
    [(first, _, _)] = bound(project).log.batches()
    assert {p.batch for p in summary.partitions} == {first}
    assert results(project) == [("a", first, "ok"), ("b", first, "ok")]
    assert sorted(set(engine.asked)) == ["text of a", "text of b"]
    with project.open_platform() as platform:
        frame = platform.frames.read("t", "validated_results", first, "v1--m1")
    assert frame is not None
    assert sorted(frame["item_id"].to_list()) == ["a", "b"]

    add_rows(source_url, table, [("d", "text of d", 3)])
    execute(source_url, "UPDATE tickets SET text = 'newer a', version = 4 WHERE item_id = 'a'")
    assert tick(project).startswith("1 batch formed")
    engine.asked.clear()
    project.run()
    [_, (second, _, _)] = bound(project).log.batches()
    assert results(project) == [("a", first, "ok"), ("b", first, "ok"), ("c", second, "ok"), ("d", second, "ok")]
    assert sorted(set(engine.asked)) == ["text of c", "text of d"]
    engine.asked.clear()
    assert project.run().requests_sent == 0
    assert engine.asked == []


def bound(project: TempProject) -> Microbatched:
    _, source = project.bind()
    assert isinstance(source, Microbatched)
    return source


def test_without_its_variable_a_task_fails_when_it_loads_by_name(
    project: TempProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TICKETS_URL")
    with pytest.raises(ConfigError, match="TICKETS_URL is not set"):
        project.load()


def test_a_prompt_that_uses_no_column_of_the_table_is_refused_when_it_loads(
    project: TempProject, source_url: str
) -> None:
    make_table(source_url, [("a", 1)], sa.Column("item_id", sa.Text), sa.Column("version", sa.Integer))
    with pytest.raises(ConfigError, match="text"):
        project.load()


def test_a_table_that_is_not_there_yet_loads_and_has_its_sensor(project: TempProject) -> None:
    sensors = {s.name for s in project.load().definitions.sensors or ()}
    assert {"t__microbatches", "t__sync_partitions"} <= sensors


def test_a_source_of_files_has_no_such_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = TempProject(tmp_path, monkeypatch)
    assert "t__microbatches" not in {s.name for s in project.load().definitions.sensors or ()}


# YAML

CONTEXT = dg.ResolutionContext.default()


def test_yaml_says_a_table_as_python_does() -> None:
    said = {"table": "tickets", "url_env": "X", "key": "id", "cursor": "updated_at", "fields": ["text"]}
    assert resolve_source(CONTEXT, {**said, "max_records": 5, "max_age_s": 9, "lookback": 1}) == SqlSource(
        table="tickets",
        url_env="X",
        key="id",
        cursor="updated_at",
        fields=("text",),
        max_records=5,
        max_age_s=9,
        lookback=1,
    )
    assert resolve_source(CONTEXT, {"table": "tickets", "url": "sqlite:///s.db", "cursor": "version"}) == (
        make_sql_source("sqlite:///s.db")
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"table": "t"}, "source: cursor: Field required"),
        ({"table": "t", "cursor": "c"}, "give one of url_env and url"),
        ({"table": "t", "cursor": "c", "url_env": "X", "files": "*.csv"}, "one of files, table is wanted"),
        ({"table": "t", "cursor": "c", "url_env": "X", "max_records": 0}, "max_records: 1 to"),
        ({}, "one of files, table is wanted, or the type of your own; there is nothing"),
        ({"file": "*.csv"}, "there is file"),
        ({"type": "no.such.Source"}, "type: 'no.such.Source' can't be imported"),
        ({"type": "batch_assets.sources.files.FileSource"}, "is no SourceFields"),
    ],
)
def test_what_is_wrong_in_yaml_is_named(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_source(CONTEXT, wrong)
