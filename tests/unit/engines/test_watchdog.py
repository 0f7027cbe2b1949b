"""The watchdog over plain processes: whoever ends us, and however, the group ends with us, and nobody else does."""

import multiprocessing
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.engines import watchdog as watchdog_module
from batch_assets.engines.watchdog import Watchdog

_spawn = multiprocessing.get_context("spawn")

PARENT = """
    import multiprocessing, os, subprocess, sys, time
    from batch_assets.engines.watchdog import Watchdog

    def child():
        {child}

    if __name__ == "__main__":
        watchdog = Watchdog(grace_s={grace_s})
        process = multiprocessing.get_context("spawn").Process(target=child)
        with watchdog.adopting():
            process.start()
        print(watchdog.group, watchdog.folder, flush=True)
        {parent}
"""
CHILD = "print(os.getpid(), subprocess.Popen(['sleep', '300']).pid, flush=True); time.sleep(300)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(300)"


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


def sleep_long() -> None:
    time.sleep(300)


def exit_at_once() -> None:
    """What a process does that only has to have been there."""


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog(grace_s=5)
    closed: list[bool] = []
    close = watchdog.close
    watchdog.close = lambda: (closed.append(True), close())[1]  # type: ignore[method-assign]
    yield watchdog
    if not closed:
        close()


class Parent:
    """A process with a watchdog and a child, which has a `sleep` for a child: `pids` has what is to end with it."""

    def __init__(self, folder: Path, *, parent: str = "time.sleep(300)", child: str = CHILD, grace_s: float = 5) -> None:
        script = folder / "parent.py"
        script.write_text(textwrap.dedent(PARENT).format(parent=parent, child=child, grace_s=grace_s))
        self.process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        words = [self.process.stdout.readline().split() for _ in range(2)]
        # Either may come first: the child starts while the parent prints.
        (group, self.folder), pids = sorted(words, key=lambda w: "/" not in w[-1])
        self.group = int(group)
        self.pids = [self.group, *map(int, pids)]

    def wait_for_the_end(self) -> None:
        self.process.wait(30)
        wait_until(lambda: not any(map(lives, self.pids)), "the end of the group")
        wait_until(lambda: not Path(self.folder).exists(), "the folder's end")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_whatever_ends_us_ends_the_group(tmp_path: Path, number: signal.Signals) -> None:
    parent = Parent(tmp_path)
    assert all(map(lives, parent.pids))
    parent.process.send_signal(number)
    parent.wait_for_the_end()


def test_an_end_in_good_order_ends_the_group_too(tmp_path: Path) -> None:
    # Without close(), and with a child that multiprocessing would wait for at the interpreter's end.
    Parent(tmp_path, parent="os._exit(0)").wait_for_the_end()


def test_a_process_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    parent = Parent(tmp_path, child=STUBBORN, grace_s=0.3)
    parent.process.kill()
    parent.wait_for_the_end()


def test_a_process_that_wants_to_tidy_up_gets_the_time(tmp_path: Path) -> None:
    tidied = tmp_path / "tidied"
    child = (
        f"import pathlib, signal; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), "
        f"pathlib.Path({str(tidied)!r}).touch(), sys.exit())); print(os.getpid(), flush=True); time.sleep(300)"
    )
    parent = Parent(tmp_path, child=child, grace_s=30)
    started = time.monotonic()
    parent.process.kill()
    parent.wait_for_the_end()
    assert tidied.exists()
    assert time.monotonic() - started < 25, "no longer than it takes"


def test_a_ctrl_c_reaches_us_and_not_the_group(tmp_path: Path) -> None:
    script = tmp_path / "leader.py"
    # A terminal sends SIGINT to the whole group of its foreground: here to us, and to who is in our group.
    script.write_text(
        textwrap.dedent(PARENT).format(
            child=CHILD,
            grace_s=5,
            parent="""
        import signal
        try:
            os.killpg(0, signal.SIGINT)
            time.sleep(300)
        except KeyboardInterrupt:
            print("interrupted", watchdog._process.poll(), process.is_alive(), flush=True)
            watchdog.close()
""".strip(),
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, process_group=0)
    out, _ = process.communicate(timeout=30)
    assert "interrupted None True" in out


def test_close_ends_the_group_and_leaves_nothing(watchdog: Watchdog) -> None:
    process = _spawn.Process(target=sleep_long)
    with watchdog.adopting():
        process.start()
    assert process.pid is not None
    wait_until(lambda: os.getpgid(process.pid or 0) == watchdog.group, "the child in the group")
    watchdog.close()
    process.join(30)
    assert process.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
    assert not psutil.pid_exists(watchdog.group)
    assert not watchdog.folder.exists()


def test_close_ends_the_group_even_if_the_watchdog_was_killed(watchdog: Watchdog) -> None:
    process = _spawn.Process(target=sleep_long)
    with watchdog.adopting():
        process.start()
    wait_until(lambda: os.getpgid(process.pid or 0) == watchdog.group, "the child in the group")
    os.kill(watchdog.group, signal.SIGKILL)
    watchdog.close()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert not watchdog.folder.exists()


def test_a_process_that_comes_too_late_ends_by_itself(watchdog: Watchdog) -> None:
    with watchdog.adopting():
        watchdog.close()
        watchdog.folder.mkdir()
        watchdog._script.write_text(watchdog_script := f"#!/bin/sh\nexec {sys.executable} -c 'import os, sys; {JOIN}' {watchdog.group}\n")
        assert watchdog_script


def test_only_what_is_started_in_the_block_joins(watchdog: Watchdog) -> None:
    with watchdog.adopting():
        pass
    process = _spawn.Process(target=sleep_long)
    process.start()
    try:
        assert process.pid is not None
        assert os.getpgid(process.pid) == os.getpgid(0)
    finally:
        process.kill()
        process.join()


def test_the_tracker_of_our_own_resources_outlives_the_group(watchdog: Watchdog) -> None:
    process = _spawn.Process(target=exit_at_once)
    with watchdog.adopting():
        process.start()
    process.join(30)
    tracker = multiprocessing.resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
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


def test_the_watchdog_starts_in_an_instant(watchdog: Watchdog) -> None:
    # Its interpreter has no packages of the environment to load: what it imports is counted, not timed.
    out = subprocess.run(
        [sys.executable, "-IS", "-c", "import sys; sys.argv = []\nimport runpy\n"
         f"runpy.run_path({watchdog_module.watchdog_process.__file__!r}, run_name='seen')\nprint(len(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(out.stdout) < 120
