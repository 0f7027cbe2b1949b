"""`up`: the webserver and the daemon as children of one process, stopped with it by their process ids."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

STOP_S = 20.0


def serve(dagster_home: Path, port: int) -> int:
    """Run both until one ends or we are told to stop; return the exit code."""
    environment = {**os.environ, "DAGSTER_HOME": str(dagster_home)}
    module = ["-m", "batch_assets.definitions"]
    commands = {
        "webserver": ["dagster_webserver", "-h", "127.0.0.1", "-p", str(port), *module],
        "daemon": ["dagster._daemon", "run", *module],
    }
    children = {
        name: subprocess.Popen([sys.executable, "-m", *command], env=environment)  # noqa: S603
        for name, command in commands.items()
    }
    click.echo(f"web UI: http://127.0.0.1:{port}   (Ctrl-C stops it)", err=True)
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping and all(child.poll() is None for child in children.values()):
        time.sleep(0.2)
    ended = {name: child.returncode for name, child in children.items() if child.poll() is not None}
    for child in children.values():
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    for child in children.values():
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
    if not stopping:
        click.echo(
            f"the {', '.join(ended)} ended by itself (exit code {', '.join(map(str, ended.values()))})", err=True
        )
        return 3
    return 0
