"""Run Dagster's webserver and daemon together until one of them ends or a signal comes, then end both, by their pids.

python scripts/up.py [--port 3000]        (what `make up` calls)
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
GRACE_S = 20
"""Between the polite signal and the hard one; the daemon waits for its threads."""


class Stop(Exception):
    """A signal asked us to end: no error."""


def raise_stop(number: int, _: FrameType | None) -> None:
    raise Stop(signal.Signals(number).name)


def require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the webserver does
        try:
            probe.bind((HOST, port))
        except OSError as e:
            sys.exit(f"up: {HOST}:{port} can't be used ({e.strerror}): make up PORT=<another>")


def install_instance() -> str:
    """Write dagster.yaml into the instance's home, sync the partitions, and return that home."""
    done = subprocess.run(
        [sys.executable, "-m", "batch_assets.resources"], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        sys.exit("up: python -m batch_assets.resources could not prepare the instance and name its home")
    return lines[-1]


def start(command: list[str], home: str) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C then reaches us alone, and each is told once, in order.
    return subprocess.Popen(  # noqa: S603 - the commands below
        [str(BIN / command[0]), *command[1:]],
        env={**os.environ, "DAGSTER_HOME": home},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for_first_end(processes: dict[str, subprocess.Popen[bytes]]) -> str:
    while True:
        for name, process in processes.items():
            if process.poll() is not None:
                return f"{name} ended with status {process.returncode}"
        time.sleep(0.5)


def end_all(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    give_up_at = time.monotonic() + GRACE_S
    for process in processes.values():
        try:
            process.wait(timeout=max(0.1, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the webserver and the daemon.")
    parser.add_argument("--port", type=int, default=3000)
    port: int = parser.parse_args().port
    require_free_port(port)
    home = install_instance()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_stop)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes["dagster-webserver"] = start(
            ["dagster-webserver", "-h", HOST, "-p", str(port), "-w", "workspace.yaml"], home
        )
        processes["dagster-daemon"] = start(["dagster-daemon", "run", "-w", "workspace.yaml"], home)
        print(f"up: starting http://{HOST}:{port} (instance: {home}); Ctrl-C ends it", flush=True)
        ended = wait_for_first_end(processes)
        print(f"up: {ended}; ending the other", file=sys.stderr, flush=True)
        return 1
    except Stop as stop:
        print(f"up: {stop}, ending both", flush=True)
        return 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave one of them behind
        end_all(processes)


if __name__ == "__main__":
    sys.exit(main())
