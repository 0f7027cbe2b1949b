"""`up`: the webserver and the daemon as children of one process, begun again where one dies, and ended with it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click

from batch_assets.core.errors import ConfigError
from batch_assets.settings import Settings
from batch_assets.store.database import describe_url

HOST = "127.0.0.1"
GRACE_S = 20.0
"""Between the polite signal and the hard one; the daemon waits for its threads."""
RESTART_AFTER_S = (0.0, 5.0, 20.0, 60.0, 120.0)
"""The wait before each restart, of so many within the time below: a database may be away for some minutes."""
RESTARTS_COUNT_S = 600.0
POLL_S = 0.5
READY = "ready: the webserver answers, the daemon is healthy, the definitions are loaded"
_HEALTH = """{
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries {
    loadStatus locationOrLoadError { ... on PythonError { message } } } } } }"""


class _StopError(Exception):
    """A signal asked us to end."""


@dataclass(kw_only=True)
class Child:
    """One of the two, in its life after life. `delays_s` are the waits before its restarts; more aren't granted."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    delays_s: Sequence[float] = RESTART_AFTER_S
    process: subprocess.Popen[bytes] | None = None
    deaths: list[float] = field(default_factory=list[float])
    due: float = 0.0

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C then reaches us alone, and each is told once, in order."""
        tie = [sys.executable, "-m", "batch_assets.cli.end_with_parent", str(os.getpid())]
        self.process = subprocess.Popen(  # noqa: S603 - our own commands
            [*tie, *self.command], env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def look_after(self, now: float) -> bool:
        """Start it again if it died and its wait is over. False where it has died too often."""
        if self.process is None:
            if now >= self.due:
                self.start()
            return True
        status = self.process.poll()
        if status is None:
            return True
        self.process = None
        self.deaths = [*(d for d in self.deaths if now - d < RESTARTS_COUNT_S), now]
        ended = f"the {self.name} ended with status {status}"
        if len(self.deaths) > len(self.delays_s):
            click.echo(
                f"{ended}, {len(self.deaths)} times within {RESTARTS_COUNT_S / 60:.0f} minutes: no more", err=True
            )
            return False
        delay_s = self.delays_s[len(self.deaths) - 1]
        click.echo(f"{ended}; it starts again in {delay_s:.0f} s, the others go on", err=True)
        self.due = now + delay_s
        return True


def serve(settings: Settings, port: int) -> int:
    """Run both until a signal comes (returns 0) or one has died too often (returns 3). ConfigError for a port in use.

    Runs that are in progress at the end go on in their own processes until they are done.
    """
    _require_free_port(port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_stop)
    url = f"http://{HOST}:{port}"
    children = _make_children(settings, url, port)
    try:
        click.echo(f"web UI: {url}  (store and instance: {describe_url(settings.store_url)}; Ctrl-C ends it)", err=True)
        for child in children:
            child.start()
        _watch(children, url)
        click.echo("ending the other", err=True)
        return 3
    except _StopError:
        return 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave one of them behind
        _end_all(children)


def _make_children(settings: Settings, url: str, port: int) -> list[Child]:
    workspace = Path("workspace.yaml")
    where = ["-w", str(workspace)] if workspace.exists() else ["-m", "batch_assets.definitions"]
    environment = {**os.environ, "DAGSTER_HOME": str(settings.dagster_home)}
    if "ui_url" not in settings.model_fields_set:
        environment["BATCH_ASSETS_UI_URL"] = url  # alerts link here
    commands = {
        "webserver": ["dagster_webserver", "-h", HOST, "-p", str(port), *where],
        "daemon": ["dagster._daemon", "run", *where],
    }
    return [
        Child(name=name, command=[sys.executable, "-m", *arguments], environment=environment)
        for name, arguments in commands.items()
    ]


def _raise_stop(_number: int, _frame: FrameType | None) -> None:
    raise _StopError


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the webserver does
        try:
            probe.bind((HOST, port))
        except OSError as e:
            raise ConfigError(f"{HOST}:{port} can't be used ({e.strerror}): choose another --port") from e


def _watch(children: Sequence[Child], url: str) -> None:
    """Look after both until one has died too often; say once when all is ready, or what keeps it from being so."""
    said = ""
    while all(child.look_after(time.monotonic()) for child in children):
        if said != READY and (state := _find_state(url)) not in ("", said):
            click.echo(said := state, err=True)
        time.sleep(POLL_S)


def _find_state(url: str) -> str:
    """Return what to say of the whole; empty as long as it starts."""
    body = json.dumps({"query": _HEALTH}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"content-type": "application/json"})  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)["data"]
    except (OSError, ValueError):
        return ""
    return read_state(found)


def read_state(found: Mapping[str, Any]) -> str:
    """Return what to say of the webserver's answer: it is ready, its definitions don't load, or nothing yet."""
    entries = found["workspaceOrError"]["locationEntries"]
    if not entries or any(e["loadStatus"] != "LOADED" for e in entries):
        return ""
    for error in (e["locationOrLoadError"].get("message") for e in entries):
        if error:
            return f"the definitions don't load: {error.strip()}\nmend them, and reload them in the web UI"
    daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
    return READY if all(d["healthy"] for d in daemons if d["required"]) else ""


def _end_all(children: Sequence[Child]) -> None:
    running = [c.process for c in children if c.process is not None]
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    give_up_at = time.monotonic() + GRACE_S
    for process in running:
        try:
            process.wait(timeout=max(0.1, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
