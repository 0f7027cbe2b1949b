"""A store and a Dagster instance that the version before has made: nothing that was done is asked again.

What it made lies in tests/upgrade, with what it said of it (`expected.json`): three tasks on both databases, few-shot
prompts, a prompt that was edited and put back, nested answers, rules, a ladder, a fallback, models that are local
folders, a run that died at half a batch, one that was killed at half of another, and a batch that nobody has seen.
`tests/upgrade/make_old_store.py` has made it, with the old code.

Slow because a history on disk takes a second for each verb.
"""

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.engine import URL
from upgrade.scripted import Asked, build_scripted

from batch_assets.cli.main import cli
from batch_assets.sources.files import FileSource

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "upgrade"
ARCHIVE = FOLDER / "old_0_1_0.tar.xz"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
BEFORE, AFTER = EXPECTED["before"], EXPECTED["after"]
MADE_AT = Path(EXPECTED["made_at"])
TASKS = sorted(AFTER["asked"])
PACKAGE = "upgrade_defs"
NAMES = ("request_key", "request_spec", "accept_spec", "input_hash")
"""Columns that a new version may give other values: names of things. All else of a row stays as it was."""

ASSETS = ("llm_outputs", "fallback_outputs", "validated_results", "quarantine", "qa_samples", "run_reports")
IN_PLACE, MOVED = "in place", "moved"
CASES = [(kind, where) for kind in ("sqlite", "postgresql") for where in (IN_PLACE, MOVED)]
"""Moved: at another path than the one that it was made at, its models' folders too."""


class OldPlace:
    """What the old version left, at `root`: a project with its home, opened with the present code."""

    def __init__(self, root: Path, kind: str, url: str, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.home = root / kind / "home"
        self.defs = root / "project" / PACKAGE
        self.asked: list[Asked] = []
        """Each request, of whatever model."""
        self.read: list[str] = []
        """The batches that were read from their files."""
        self.store_url = url or f"sqlite:///{self.home / 'store.db'}"
        models = self.defs / "models.yaml"
        models.write_text(models.read_text(encoding="utf-8").replace(str(MADE_AT), str(root)), encoding="utf-8")
        for name in [n for n in os.environ if n.startswith(("BATCH_ASSETS_", "DAGSTER_"))]:
            patch.delenv(name)
        patch.setenv("DAGSTER_HOME", "")  # the code sets both: so that it is undone
        patch.setenv("BATCH_ASSETS_DAGSTER_DB_URL", url)
        patch.setenv("BATCH_ASSETS_HOME", str(self.home))
        patch.setenv("BATCH_ASSETS_DEFS", str(self.defs))
        patch.setenv("BATCH_ASSETS_CACHE", str(root / "cache"))
        if url:
            patch.setenv("BATCH_ASSETS_DB_URL", url)
        self._build_engine = build_scripted(self.asked.append)
        read = FileSource.read

        def note_read(source: FileSource, ref: Any, fields: Any) -> Any:
            self.read.append(ref.batch)
            return read(source, ref, fields)

        patch.setattr(FileSource, "read", note_read)

    def call(self, *args: str, expect: int = 0) -> Any:
        """Call a verb as a new process would; return its JSON."""
        with _fresh_modules(self.defs.parent):
            done = CliRunner().invoke(cli, [*args, "--json"], standalone_mode=False, obj=self._build_engine)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert (done.return_value or 0) == expect, f"{args}: {done.output}"
        return json.loads(done.stdout)

    def plan(self) -> dict[str, Any]:
        """Return all plans."""
        return {task: self.call("plan", task) for task in TASKS}

    def run(self) -> dict[str, list[list[Any]]]:
        """Run all tasks; return what was asked for each, sorted."""
        found: dict[str, list[list[Any]]] = {}
        for task in TASKS:
            self.asked.clear()
            told = self.call("run", task)
            found[task] = sorted(list(a) for a in self.asked)
            assert told["requests_sent"] == len(found[task])
        return found

    def load(self, query: str) -> list[dict[str, Any]]:
        """Read the store."""
        engine = sa.create_engine(self.store_url)
        try:
            with engine.connect() as connection:
                return [dict(row) for row in connection.exec_driver_sql(query).mappings()]
        finally:
            engine.dispose()

    def load_rows(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return all result rows by their keys."""
        keys = ("task", "prompt_ver", "model_id", "item_id")
        return {tuple(r[k] for k in keys): r for r in self.load("SELECT * FROM llm_batch_results")}

    @contextmanager
    def open_instance(self) -> Iterator[dg.DagsterInstance]:
        """Open Dagster's history, as a verb has left it."""
        with dg.DagsterInstance.from_config(str(self.home / "dagster")) as instance:
            yield instance

    def load_runs(self) -> dict[str, dg.DagsterRunStatus]:
        """Return the status of all of Dagster's runs."""
        with self.open_instance() as instance:
            return {run.run_id: run.status for run in instance.get_runs()}

    def load_made(self) -> dict[tuple[str, str, str], str]:
        """Return the data versions that Dagster has, by task, asset and partition."""
        tag, kind = "dagster/data_version", dg.DagsterEventType.ASSET_MATERIALIZATION
        with self.open_instance() as instance:
            log = instance.event_log_storage
            return {
                (task, asset, partition): tags[tag]
                for task in TASKS
                for asset in ASSETS
                for partition, tags in log.get_latest_tags_by_partition(dg.AssetKey([task, asset]), kind, [tag]).items()
            }


@contextmanager
def _fresh_modules(folder: Path) -> Iterator[None]:
    """Forget the defs package, before and after: its name is the same at each place."""

    def forget() -> None:
        for name in [m for m in sys.modules if m.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.path[:] = [p for p in sys.path if not (Path(p) / PACKAGE).is_dir()]

    forget()
    try:
        yield
    finally:
        forget()
        assert str(folder) not in sys.path


@pytest.fixture(params=CASES, ids=" ".join)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OldPlace]:
    kind, where = request.param
    url = request.getfixturevalue("old_database") if kind == "postgresql" else ""
    with unpack(MADE_AT if where == IN_PLACE else tmp_path / "moved") as root:
        yield OldPlace(root, kind, url, monkeypatch)


@pytest.fixture
def old_database(pg_server: URL) -> Iterator[str]:
    """Yield the URL of a PostgreSQL database with what the old version left."""
    name = f"upgrade_{os.getpid()}"
    admin = sa.create_engine(pg_server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = pg_server.set(database=name)
    try:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with tarfile.open(ARCHIVE) as archive, engine.begin() as connection:
            dump = archive.extractfile("postgresql/dump.sql")
            assert dump is not None
            cursor = connection.connection.cursor()
            cursor.execute(dump.read().decode())  # many statements, and no parameters: `%` is a letter
        yield url.render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def unpack(root: Path) -> Iterator[Path]:
    """Lay out the archive; files have the times that they had."""
    shutil.rmtree(root, ignore_errors=True)  # of a test that was killed, at the one place that isn't a test's own
    root.mkdir()
    try:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(root, filter="data")
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def assert_agrees(found: Any, expected: Any, where: str) -> None:
    """Assert that a document says all that another one says; it may say more."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping), where
        for name, value in expected.items():
            assert_agrees(found.get(name), value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), f"{where}: {found} instead of {expected}"
        for n, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            assert_agrees(one, wanted, f"{where}[{n}]")
    else:
        assert found == expected, where


def flatten(rows: Mapping[str, Mapping[str, Mapping[str, str]]]) -> set[tuple[str, str, str, str]]:
    """Return rows as the old version's document has them: task, partition, item_id, status."""
    return {
        (task, partition, item, status)
        for task, partitions in rows.items()
        for partition, items in partitions.items()
        for item, status in items.items()
    }


def strip(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without what names it."""
    return {k: v for k, v in row.items() if k not in NAMES}


def test_status_and_plan_say_what_the_old_version_said(old: OldPlace) -> None:
    assert_agrees(old.call("status"), BEFORE["status"], "status")
    assert_agrees(old.plan(), BEFORE["plan"], "plan")
    assert set(old.read) == {"t3"}, "a batch whose file has the size and time that it had is not read"
    assert old.asked == []


def test_the_rest_is_asked_once_and_nothing_that_was_done(old: OldPlace) -> None:
    rows, made, runs = old.load_rows(), old.load_made(), old.load_runs()
    done = {(task, p) for task in TASKS for p in BEFORE["plan"][task]["done"]}
    assert {(task, p) for task, asset, p in made if asset == "validated_results"} == done
    (killed,) = [r for r, status in runs.items() if status is dg.DagsterRunStatus.STARTED]

    assert old.run() == AFTER["asked"]
    assert old.run() == {task: [] for task in TASKS}, "nothing is asked twice"

    assert_agrees(old.call("status"), AFTER["status"], "status")
    assert_agrees(old.plan(), AFTER["plan"], "plan")
    after = old.load_rows()
    told = {"own": set[tuple[str, str, str, str]](), "fallback": set[tuple[str, str, str, str]]()}
    for (task, prompt_ver, model_id, item), row in after.items():
        partition = f"{row['batch']}|{prompt_ver}--{model_id}"
        told["fallback" if row["is_fallback"] else "own"].add((task, partition, item, row["status"]))
    assert told == {kind: flatten(AFTER["rows"][kind]) for kind in told}
    assert {key: strip(after[key]) for key in rows} == {key: strip(row) for key, row in rows.items()}
    assert old.load("SELECT * FROM llm_leases") == []
    assert old.load("SELECT * FROM llm_failures") == []

    now_made = old.load_made()
    assert {name: now_made[name] for name in made} == made, "what was made is not made anew"
    assert {r: s for r, s in old.load_runs().items() if r in runs} == {**runs, killed: dg.DagsterRunStatus.FAILURE}
    with old.open_instance() as instance:
        slots = instance.event_log_storage.get_concurrency_info("gpu").claimed_slots
    assert slots == [], "the killed run's place in the pool is free"


@pytest.mark.parametrize("old", [("sqlite", IN_PLACE)], indirect=True, ids=" ".join)
def test_files_with_another_time_are_read_and_cost_no_request(old: OldPlace) -> None:
    for path in sorted(old.defs.glob("*/files/*")):
        os.utime(path)
    assert_agrees(old.plan(), BEFORE["plan"], "plan")
    assert set(old.read) == {"f1", "f2", "n1", "n2", "t1", "t2", "t3"}
    assert old.run() == AFTER["asked"]
    old.read.clear()
    assert_agrees(old.plan(), AFTER["plan"], "plan")
    assert old.read == [], "the new time is known then"


def test_a_store_that_was_opened_in_place_can_be_moved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "moved"
    with unpack(MADE_AT) as root, monkeypatch.context() as patch:
        assert OldPlace(root, "sqlite", "", patch).run() == AFTER["asked"]
        shutil.copytree(root, moved)
    place = OldPlace(moved, "sqlite", "", monkeypatch)
    assert place.run() == {task: [] for task in TASKS}
    assert_agrees(place.plan(), AFTER["plan"], "plan")
