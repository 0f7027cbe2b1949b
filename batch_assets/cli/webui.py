"""`up`: the webserver and the daemon as children of one process, ended with it by their process ids."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

from batch_assets.core.errors import ConfigError

HOST = "127.0.0.1"
GRACE_S = 20.0
"""Between the polite signal and the hard one; the daemon waits for its threads."""


class _StopError(Exception):
    """A signal asked us to end."""


def serve(dagster_home: Path, port: int) -> int:
    """Run both until one of them ends (returns 3) or a signal comes (returns 0). ConfigError for a port in use."""
    _require_free_port(port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_stop)
    workspace = Path("workspace.yaml")
    where = ["-w", str(workspace)] if workspace.exists() else ["-m", "batch_assets.definitions"]
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        children["webserver"] = _start(["dagster_webserver", "-h", HOST, "-p", str(port), *where], dagster_home)
        children["daemon"] = _start(["dagster._daemon", "run", *where], dagster_home)
        click.echo(f"web UI: http://{HOST}:{port}  (instance: {dagster_home}; Ctrl-C ends it)", err=True)
        ended = _wait_for_first_end(children)
        click.echo(f"{ended}; ending the other", err=True)
        return 3
    except _StopError:
        return 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave one of them behind
        _end_all(children)


def _raise_stop(_number: int, _frame: FrameType | None) -> None:
    raise _StopError


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the webserver does
        try:
            probe.bind((HOST, port))
        except OSError as e:
            raise ConfigError(f"{HOST}:{port} can't be used ({e.strerror}): choose another --port") from e


def _start(module: list[str], dagster_home: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C then reaches us alone, and each is told once, in order.
    return subprocess.Popen(  # noqa: S603 - the two commands above
        [sys.executable, "-m", *module],
        env={**os.environ, "DAGSTER_HOME": str(dagster_home)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for_first_end(children: dict[str, subprocess.Popen[bytes]]) -> str:
    while True:
        for name, child in children.items():
            if child.poll() is not None:
                return f"the {name} ended with status {child.returncode}"
        time.sleep(0.5)


def _end_all(children: dict[str, subprocess.Popen[bytes]]) -> None:
    for child in children.values():
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
    give_up_at = time.monotonic() + GRACE_S
    for child in children.values():
        try:
            child.wait(timeout=max(0.1, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
