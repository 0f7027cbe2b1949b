"""A folder with its own defs and home, in which tests call the command line as a person would."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import batch_assets

SHIPPED = Path(batch_assets.__file__).parent / "defs"
COUNTING_MODEL = """\
smollm2-135m:
  weights: counting
  engine: openai
  base_url: http://127.0.0.1:{port}/v1
  max_in_flight: {window}
  outage_s: 2
"""


def find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_until(is_true: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.005) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, f"not within {timeout_s} s: {what}"
        time.sleep(every_s)


@dataclass
class Workplace:
    """Own defs, own home; `environment` reaches every command."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def defs(self) -> Path:
        return self.root / "own_defs"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def copy_defs(self, models: str | None, tasks: tuple[str, ...] = ("ticket_triage",)) -> None:
        """Copy shipped task folders; `models` takes the place of models.yaml."""
        self.defs.mkdir(parents=True)
        (self.defs / "__init__.py").write_text("")
        for task in tasks:
            shutil.copytree(SHIPPED / task, self.defs / task, ignore=shutil.ignore_patterns("__pycache__"))
        text = models if models is not None else (SHIPPED / "models.yaml").read_text()
        (self.defs / "models.yaml").write_text(text)

    def variables(self) -> dict[str, str]:
        own = {
            "BATCH_ASSETS_HOME": str(self.home),
            "BATCH_ASSETS_DEFS": str(self.defs),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**os.environ, **own, **self.environment}

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "batch_assets.cli.main", *args],
            cwd=self.root,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *args: str, expect: int = 0, timeout_s: float = 240) -> str:
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == expect, f"{args}: exit code {process.returncode}\n{out}\n{err}"
        return out if expect in (0, 1) else err

    def json(self, *args: str, expect: int = 0) -> Any:
        return json.loads(self.call(*args, "--json", expect=expect))

    def kill_when(self, process: subprocess.Popen[str], is_time: Callable[[], bool], timeout_s: float = 90) -> None:
        """Kill -9 a command once `is_time`; it must still be running then."""
        wait_until(lambda: is_time() or process.poll() is not None, timeout_s, "the moment to kill")
        assert process.poll() is None, f"it ended before it could be killed: {process.communicate()}"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.home / "store.db", timeout=30) as connection:
            return connection.execute(sql).fetchall()


@dataclass
class Server:
    """The counting server as a process."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def count(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def counts(self) -> Counter[str]:
        return Counter(self.log.read_text().splitlines()) if self.log.exists() else Counter()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start_server(folder: Path, latency_s: float, port: int | None = None) -> Server:
    port = port or find_free_port()
    log = folder / "requests.log"
    script = Path(__file__).parent.parent / "counting_server.py"
    process = subprocess.Popen([sys.executable, str(script), str(port), str(log), str(latency_s)])

    def answers() -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, 30, "the counting server")
    return Server(port, log, process)
