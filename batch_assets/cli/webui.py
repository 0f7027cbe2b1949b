"""`up`: the webserver and the daemon as children of one process, begun again where one dies, and ended with it."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click

from batch_assets.core.errors import ConfigError
from batch_assets.settings import Settings
from batch_assets.store.database import describe_url, find_refusal
from batch_assets.store.up_lock import hold_up_lock

HOST = "127.0.0.1"
GRACE_S = 20.0
"""Between the polite signal and the hard one; the daemon waits for its threads."""
RESTART_AFTER_S = (0.0, 5.0, 20.0, 60.0, 120.0)
"""The wait before each restart, of so many within the time below."""
RESTARTS_COUNT_S = 600.0
LONGEST_PAUSE_S = 15.0
"""Between two looks for a database that is away. However long that is, it counts as nobody's death."""
POLL_S = 0.5
READY = "ready: the webserver answers, the daemon is healthy, the definitions are loaded"
_HEALTH = """{
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries {
    loadStatus locationOrLoadError { ... on PythonError { message } } } } } }"""


class _StopError(Exception):
    """A signal asked us to end."""


@dataclass(kw_only=True)
class Outage:
    """Whether the database is away. `find_refusal` says why it takes no connection; empty if it takes one."""

    find_refusal: Callable[[], str]
    is_on: bool = False
    looks_at: float = 0.0
    pause_s: float = 1.0

    def look(self, now: float) -> bool:
        """Say whether the database is away; during an outage it is asked with growing pauses."""
        if self.is_on and now < self.looks_at:
            return True
        why = self.find_refusal()
        if why and not self.is_on:
            click.echo(f"{why}\nwhat ends meanwhile starts again when the database answers", err=True)
            self.pause_s = 1.0
        elif why:
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        elif self.is_on:
            click.echo("the database answers again", err=True)
        self.is_on = bool(why)
        self.looks_at = now + self.pause_s
        return self.is_on


@dataclass(kw_only=True)
class Child:
    """One of the two, in its life after life. `delays_s` are the waits before its restarts; more aren't granted."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    outage: Outage
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
        """Start it again if it died, its wait is over and the database there. False if it has died too often."""
        if self.process is None:
            if now >= self.due and not self.outage.look(now):
                self.start()
            return True
        status = self.process.poll()
        if status is None:
            return True
        self.process = None
        if self.outage.look(now):
            click.echo(f"the {self.name} ended with status {status}; it waits for the database", err=True)
            self.due = now
            return True
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
    """Run both until a signal comes (returns 0) or one has died too often (returns 3).

    Runs that are in progress at the end go on in their own processes until they are done. Raises ConfigError if another
    `up` serves this home or this database, and for a port in use.
    """
    with hold_home(settings), hold_database(settings):
        _require_free_port(port)
        return _serve(settings, port)


@contextmanager
def hold_home(settings: Settings) -> Generator[None, None, None]:
    """Hold a home for the one `up` that may serve it; the system gives it back when the process ends, however that is.

    Raises ConfigError with the pid of who holds it. Two daemons on one instance would launch everything twice.
    """
    path = settings.dagster_home / "up.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ConfigError(
                f"BATCH_ASSETS_HOME: `batch-assets up` (pid {holder}) serves {settings.home} already: use it, or end it"
            ) from e
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def hold_database(settings: Settings) -> Generator[None, None, None]:
    """Hold a PostgreSQL instance likewise, which several homes may share; nothing to do for SQLite."""
    if not settings.is_postgresql:
        yield
        return
    with hold_up_lock(settings.store_url):
        yield


def _serve(settings: Settings, port: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_stop)
    url = f"http://{HOST}:{port}"
    children = make_children(settings, url, port)
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


def make_children(settings: Settings, url: str, port: int) -> list[Child]:
    """Return the webserver, which listens on HOST alone, and the daemon; neither is started yet."""
    workspace = Path("workspace.yaml")
    where = ["-w", str(workspace)] if workspace.exists() else ["-m", "batch_assets.definitions"]
    environment = {**os.environ, "DAGSTER_HOME": str(settings.dagster_home)}
    if "ui_url" not in settings.model_fields_set:
        environment["BATCH_ASSETS_UI_URL"] = url  # alerts link here
    commands = {
        "webserver": ["dagster_webserver", "-h", HOST, "-p", str(port), *where],
        "daemon": ["dagster._daemon", "run", *where],
    }
    outage = Outage(find_refusal=lambda: find_refusal(settings.store_url))
    return [
        Child(name=name, command=[sys.executable, "-m", *arguments], environment=environment, outage=outage)
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
