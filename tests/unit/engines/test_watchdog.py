"""The watchdog over plain processes: whoever ends us, and however, the group ends with us, and nobody else does."""

import multiprocessing
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil
import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.engines import watchdog as watchdog_module
from batch_assets.engines.watchdog import Watchdog

_spawn = multiprocessing.get_context("spawn")

SCRIPT = """\
import multiprocessing, os, pathlib, signal, subprocess, sys, time
from batch_assets.engines.watchdog import Watchdog

def with_a_child():
    print(os.getpid(), subprocess.Popen(["sleep", "300"]).pid, flush=True)
    time.sleep(300)

def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    time.sleep(300)

def tidy():
    def tidy_up(*_):
        time.sleep(0.3)
        pathlib.Path("tidied").touch()
        sys.exit()
    signal.signal(signal.SIGTERM, tidy_up)
    print(os.getpid(), flush=True)
    time.sleep(300)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored, and in a background job:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watchdog = Watchdog(grace_s=float(sys.argv[2]))
    process = multiprocessing.get_context("spawn").Process(target=globals()[sys.argv[1]])
    with watchdog.adopting():
        process.start()
    print(watchdog.group, watchdog.folder, flush=True)
    sys.stdin.readline()
    os._exit(0)
"""
INTERRUPTED = """\
import multiprocessing, os, signal, time
from batch_assets.engines.watchdog import Watchdog

def child(pipe):
    pipe.send("ready")
    pipe.recv()
    pipe.send("answered")
    time.sleep(300)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    watchdog = Watchdog()
    process = context.Process(target=child, args=(there,))
    with watchdog.adopting():
        process.start()
    here.recv()
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(300)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    here.send("go on")
    print(here.recv(), flush=True)
    watchdog.close()
"""


def lives(pid: int) -> bool:
    """Whether a process does anything any more. Where nobody waits for the dead they stay listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """A running watchdog."""
    watchdog = Watchdog(grace_s=5)
    yield watchdog
    watchdog.close()


def start_in(watchdog: Watchdog) -> SpawnProcess:
    """Start a process that sleeps, in the group."""
    process = _spawn.Process(target=time.sleep, args=(300,))
    with watchdog.adopting():
        process.start()
    wait_until(lambda: os.getpgid(process.pid or 0) == watchdog.group, "the process in the group")
    return process


def find_group_of_a_new_process() -> int:
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=tell_group, args=(there,))
    process.start()
    try:
        assert here.poll(30)
        return here.recv()
    finally:
        process.join(30)


def tell_group(pipe: Connection) -> None:
    pipe.send(os.getpgrp())


class Parent:
    """A process with a watchdog and a child of a kind; `pids` are of those that are to end with it."""

    def __init__(self, folder: Path, kind: str = "with_a_child", *, grace_s: float = 5) -> None:
        script = folder / "parent.py"
        script.write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, str(script), kind, str(grace_s)],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        words = [self.process.stdout.readline().split() for _ in range(2)]
        # Either may come first: the child starts while the parent prints.
        pids, (group, self.folder) = sorted(words, key=lambda w: "/" in w[-1])
        self.pids = [int(group), *map(int, pids)]

    def wait_for_the_end(self) -> None:
        self.process.wait(30)
        wait_until(lambda: not any(map(lives, self.pids)), "the end of the group")
        wait_until(lambda: not Path(self.folder).exists(), "the folder's end")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_us_ends_the_group(tmp_path: Path, number: signal.Signals) -> None:
    parent = Parent(tmp_path)
    assert all(map(lives, parent.pids))
    parent.process.send_signal(number)
    parent.wait_for_the_end()


def test_an_end_of_our_own_will_ends_the_group_too(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.process.communicate("go\n")
    parent.wait_for_the_end()


def test_a_process_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    parent = Parent(tmp_path, "stubborn", grace_s=0.3)
    parent.process.kill()
    parent.wait_for_the_end()


def test_a_process_that_wants_to_tidy_up_gets_the_time(tmp_path: Path) -> None:
    parent = Parent(tmp_path, "tidy", grace_s=3600)  # and no longer than it takes
    parent.process.kill()
    parent.wait_for_the_end()
    assert (tmp_path / "tidied").exists()


def test_a_ctrl_c_reaches_us_and_not_the_group(tmp_path: Path) -> None:
    # A terminal sends SIGINT to a whole process group: here to that of the script, which leads one of its own.
    script = tmp_path / "leader.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out.split()) == (0, ["interrupted", "answered"])


def test_close_ends_the_group_and_leaves_nothing(watchdog: Watchdog) -> None:
    process = start_in(watchdog)
    watchdog.close()
    process.join(30)
    assert process.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
    assert not psutil.pid_exists(watchdog.group)
    assert not watchdog.folder.exists()
    watchdog.close()


def test_close_ends_the_group_even_if_the_watchdog_was_killed(watchdog: Watchdog) -> None:
    process = start_in(watchdog)
    os.kill(watchdog.group, signal.SIGKILL)
    watchdog.close()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not watchdog.folder.exists()


def test_a_process_that_comes_when_the_watchdog_is_gone_does_not_start(watchdog: Watchdog) -> None:
    with watchdog.adopting():
        script = watchdog.folder / "start.sh"
        first = subprocess.run([script, "-c", "print('up')"], capture_output=True, text=True)
        kept = script.read_text()
        watchdog.close()
    watchdog.folder.mkdir()
    script.write_text(kept)
    script.chmod(0o700)
    late = subprocess.run([script, "-c", "print('up')"], capture_output=True, text=True)
    script.unlink()
    watchdog.folder.rmdir()
    assert (first.returncode, first.stdout) == (0, "up\n")
    assert (late.returncode, late.stdout) == (1, ""), late.stderr


def test_only_what_is_started_in_the_block_joins(watchdog: Watchdog) -> None:
    with watchdog.adopting():
        assert find_group_of_a_new_process() == watchdog.group
    assert find_group_of_a_new_process() == os.getpgrp()


def test_the_tracker_of_our_own_resources_outlives_the_group(watchdog: Watchdog) -> None:
    start_in(watchdog)
    tracker = multiprocessing.resource_tracker._resource_tracker._pid
    assert os.getpgid(tracker) != watchdog.group
    watchdog.close()
    assert lives(tracker)


def test_nobody_else_holds_the_pipe_open(watchdog: Watchdog) -> None:
    # A child that isn't adopted and lives on: were the pipe inherited, the group would live as long.
    bystander = subprocess.Popen(["sleep", "300"], close_fds=False)
    try:
        watchdog.close()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_folder_from_which_nothing_can_be_started_is_named(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = multiprocessing.spawn.get_executable()
    monkeypatch.setattr(watchdog_module.os, "access", lambda *_: False)  # as access(2) says of a noexec mount
    with pytest.raises(ConfigError, match="set TMPDIR elsewhere"), watchdog.adopting():
        pytest.fail("nothing may start")
    assert multiprocessing.spawn.get_executable() == before
