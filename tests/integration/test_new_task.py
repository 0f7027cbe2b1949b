"""What `batch-assets new` and `dg scaffold` write runs as it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batch_assets.cli.main import cli
from batch_assets.core.errors import ConfigError
from batch_assets.dagster.new_task import SHIPPED_DEFS
from batch_assets.engines.fake import FakeArgs, FakeEngine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a folder and a home of its own; the shipped tasks are the defs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BATCH_ASSETS_DEFS", raising=False)
    return tmp_path


def call(*args: str) -> Result:
    return CliRunner().invoke(cli, args, obj=lambda *_: FakeEngine(FakeArgs()))


def run_it(defs: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_ASSETS_DEFS", str(defs))
    done = call("run", task, "--json")
    assert done.exit_code == 0, done.output
    assert [r["ok"] for r in json.loads(done.stdout)["reports"]] == [3]


@pytest.mark.parametrize("form", [(), ("--yaml",)], ids=["python", "yaml"])
def test_a_new_task_runs_as_it_is(form: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"new_tasks_{len(form)}"
    written = call("new", "my_task", "--defs", package, *form, "--json")
    assert written.exit_code == 0, written.output
    document = json.loads(written.stdout)
    assert document["next"] == f"BATCH_ASSETS_DEFS={package} batch-assets run my_task"
    assert {Path(p) for p in document["written"]} == {p for p in (home / package).rglob("*") if p.is_file()}
    run_it(home / package, "my_task", monkeypatch)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("a_task",), "name a folder, such as batch-assets new a_task --defs my_tasks"),
        (("class", "--defs", "d"), "a word of Python's own"),
        (("Bad", "--defs", "d"), "use a lower-case letter"),
        (("a_task", "--defs", "json"), "Python has a package json already"),
        (("a_task", "--defs", "my-tasks"), "use letters, digits and _ for its name"),
        (("there", "--defs", "taken"), "is there already"),
    ],
)  # fmt: skip
def test_what_cant_be_a_task_is_refused_and_nothing_is_written(args: tuple[str, ...], words: str, home: Path) -> None:
    (home / "taken" / "there").mkdir(parents=True)
    (home / "taken" / "there" / "task.py").write_text("mine = 1\n")
    before = sorted(home.rglob("*"))
    shipped = sorted(SHIPPED_DEFS.iterdir())
    refused = call("new", *args)
    assert isinstance(refused.exception, ConfigError)
    assert words in str(refused.exception)
    assert sorted(home.rglob("*")) == before
    assert sorted(SHIPPED_DEFS.iterdir()) == shipped


def test_the_help_names_each_verb_and_loads_no_dagster() -> None:
    code = (
        "import sys\nfrom batch_assets.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\nprint([m for m in sys.modules if m.startswith('dagster')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    verbs = {p.stem for p in (ROOT / "batch_assets" / "cli" / "verbs").glob("[a-z]*.py")}
    assert all(f"\n  {verb} " in done.stdout for verb in verbs)
    assert "new     Write the folder of a new TASK" in done.stdout


@pytest.mark.parametrize("form", ["python", "yaml"])
def test_dg_scaffolds_and_lists_a_task(form: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = home / f"scaffolded_{form}"
    shutil.copytree(SHIPPED_DEFS, package)
    pyproject = (ROOT / "pyproject.toml").read_text().replace('"batch_assets.defs"', f'"{package.name}"')
    (home / "pyproject.toml").write_text(
        pyproject.replace('root_module = "batch_assets"', f'root_module = "{package.name}"')
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("BATCH_ASSETS_DEFS", str(package))
    dg = [sys.executable, "-c", "from dagster_dg_cli.cli import main; main()"]
    scaffold = [*dg, "scaffold", "defs", "batch_assets.dagster.llm_task.LlmTask", "my_task", "--format", form]
    done = subprocess.run(scaffold, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = subprocess.run([*dg, "list", "defs", "--json"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    assert "my_task/validated_results" in listed.stdout
    run_it(package, "my_task", monkeypatch)
