"""README's commands run as they are written, and its task runs, with the fake engine in place of the model."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import batch_assets
from batch_assets.cli.main import cli

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
FAKE = "smollm2-135m:\n  weights: none\n  engine: fake\n"
IMPORTS = """\
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.core.task_settings import *
from batch_assets.core.tasks import *
from batch_assets.dagster.llm_task import *
from batch_assets.sources.files import FileSource
"""


def find_block(language: str, word: str) -> str:
    """Return the block of README in a language that has a word."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [b for b in blocks if word in b]
    return found


def call(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


@pytest.fixture
def folder(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder with a home in it, where commands run."""
    monkeypatch.setenv("BATCH_ASSETS_HOME", str(quick_path / "home"))
    monkeypatch.delenv("BATCH_ASSETS_DB_URL", raising=False)
    monkeypatch.chdir(quick_path)
    return quick_path


def test_the_commands_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defs = folder / "readme_shipped_defs"
    shutil.copytree(Path(batch_assets.__file__).parent / "defs", defs, ignore=shutil.ignore_patterns("__pycache__"))
    (defs / "models.yaml").write_text(FAKE)
    for task in defs.glob("*/task.py"):  # the fake engine knows no label, so that no gate may hold its results back
        task.write_text(re.sub(r"max_(error|invalid)_share=[0-9.]+", r"max_\1_share=1.0", task.read_text()))
    monkeypatch.setenv("BATCH_ASSETS_DEFS", str(defs))
    lines = find_block("sh", "batch-assets plan").splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.strip()]
    assert {command[0] for command in commands} >= {"plan", "run", "status", "show", "export", "doctor"}
    for command in commands:
        done = call(*command)
        assert done.exit_code == 0 or command[0] == "doctor", f"{command}: {done.output}"
    assert list(folder.glob("*.csv")), "the export"


def test_the_task_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defs = folder / "readme_own_defs"
    task = defs / "ticket_triage"
    (task / "prompts").mkdir(parents=True)
    (task / "tickets").mkdir()
    for package in (defs, task):
        (package / "__init__.py").touch()
    (defs / "models.yaml").write_text(FAKE)
    (task / "task.py").write_text(IMPORTS + find_block("python", "def ticket_triage"))
    (task / "prompts" / "v1.md").write_text(find_block("markdown", "{{ text }}"))
    (task / "tickets" / "one.csv").write_text("item_id,text\n1,My card is lost\n2,Where is my transfer?\n")
    monkeypatch.setenv("BATCH_ASSETS_DEFS", str(defs))
    done = call("run", "ticket_triage")
    assert done.exit_code in (0, 1), done.output
    assert "2 results" in done.output
