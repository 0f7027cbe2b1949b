"""`up`: a child that dies is started again so many times, and none outlives its parent."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from batch_assets.cli.webui import LONGEST_PAUSE_S, READY, RESTARTS_COUNT_S, Child, Outage, make_children, read_state
from batch_assets.settings import Settings


def make_child(code: str, *delays_s: float, refusals: Iterable[str] = ()) -> Child:
    """Return a child whose database refuses with these words, one at each look, and then answers."""
    waiting = iter(refusals)
    outage = Outage(find_refusal=lambda: next(waiting, ""))
    command = [sys.executable, "-c", code]
    return Child(name="daemon", command=command, environment={}, outage=outage, delays_s=delays_s)


def die(child: Child, now: float) -> bool:
    """Let it end, and look after it as often as it takes to start it again."""
    assert child.process is not None
    child.process.wait(30)
    return child.look_after(now)


def test_a_child_that_dies_is_started_again_after_its_wait(capsys: pytest.CaptureFixture[str]) -> None:
    child = make_child("raise SystemExit(7)", 0, 5)
    child.start()
    assert die(child, now=100.0)
    assert "the daemon ended with status 7; it starts again in 0 s" in capsys.readouterr().err
    assert child.look_after(100.0) and child.process is not None
    assert die(child, now=101.0)
    assert child.look_after(105.9) and child.process is None, "not before its wait is over"
    assert child.look_after(106.0) and child.process is not None
    child.process.wait(30)


def test_a_child_that_lives_is_left_alone() -> None:
    child = make_child("input()")
    child.start()
    assert child.process is not None
    before = child.process
    assert child.look_after(1.0) and child.process is before
    before.kill()
    before.wait(30)


def test_a_child_that_dies_too_often_is_given_up_and_old_deaths_are_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    child = make_child("pass", 0, 0)
    child.start()
    for now in (1.0, 2.0):
        assert die(child, now) and child.look_after(now)
    assert die(child, now=2.0 + RESTARTS_COUNT_S), "the first two are long ago"
    assert child.look_after(2.0 + RESTARTS_COUNT_S)
    assert die(child, now=3.0 + RESTARTS_COUNT_S)
    assert child.look_after(3.0 + RESTARTS_COUNT_S)
    assert not die(child, now=4.0 + RESTARTS_COUNT_S)
    assert "ended with status 0, 3 times within 10 minutes" in capsys.readouterr().err


def test_a_child_that_dies_while_the_database_is_away_waits_for_it_and_counts_no_death(
    capsys: pytest.CaptureFixture[str],
) -> None:
    child = make_child("pass", refusals=["the store is away"] * 3)  # not one restart is granted
    child.start()
    assert die(child, now=100.0)
    assert child.look_after(100.9) and child.process is None, "it isn't asked at each look"
    assert child.look_after(101.0) and child.process is None
    assert child.look_after(102.9) and child.process is None, "the pauses grow"
    assert child.look_after(103.0) and child.process is None
    assert child.look_after(107.0) and child.process is not None
    child.process.wait(30)
    assert child.deaths == []
    assert capsys.readouterr().err.splitlines() == [
        "the store is away",
        "what ends meanwhile starts again when the database answers",
        "the daemon ended with status 0; it waits for the database",
        "the database answers again",
    ]
    assert not die(child, now=108.0), "the database is there: this death is its own"


def test_the_pauses_between_two_looks_for_the_database_grow_to_a_limit_and_begin_anew_at_the_next_outage() -> None:
    refusals = ["away"] * 6 + [""] + ["away"] * 2
    outage = Outage(find_refusal=lambda: refusals.pop(0))
    now, pauses = 0.0, []
    for _ in range(6):
        assert outage.look(now)
        pauses.append(outage.looks_at - now)
        now = outage.looks_at
    assert pauses == [1, 2, 4, 8, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert not outage.look(now)
    assert outage.look(now) and outage.looks_at == now + 1, "who wants to start asks at once"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent died")
def test_a_child_ends_with_its_parent_however_that_ends() -> None:
    code = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'batch_assets.cli.end_with_parent', str(os.getpid())]\n"
        "code = 'import time; print(0, flush=True); time.sleep(60)'\n"
        "child = subprocess.Popen([*command, sys.executable, '-c', code],"
        " stdout=subprocess.PIPE, text=True, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running() and "end_with_parent" not in " ".join(child.cmdline()), "it has become the command"
    parent.kill()
    parent.wait(30)
    assert psutil.wait_procs([child], timeout=30)[1] == []


def test_a_child_whose_parent_is_gone_before_it_could_ask_never_starts() -> None:
    command = [sys.executable, "-m", "batch_assets.cli.end_with_parent", "1", sys.executable, "-c", "print('started')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (3, "")


def answer(load_status: str = "LOADED", message: str | None = None, *healthy: bool) -> dict[str, Any]:
    error = {} if message is None else {"message": message}
    statuses = [{"daemonType": "SENSOR", "required": True, "healthy": h} for h in healthy or (True,)]
    unused = {"daemonType": "ASSET", "required": False, "healthy": False}
    return {
        "workspaceOrError": {"locationEntries": [{"loadStatus": load_status, "locationOrLoadError": error}]},
        "instance": {"daemonHealth": {"allDaemonStatuses": [*statuses, unused]}},
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (answer(), READY),
        (answer("LOADING"), ""),
        (answer("LOADED", None, True, False), ""),
        (answer("LOADED", "no such prompt\n", False), "the definitions don't load: no such prompt\nmend them, "),
        ({**answer(), "workspaceOrError": {"locationEntries": []}}, ""),
    ],
)
def test_readiness_is_the_webserver_the_daemons_and_the_definitions(found: dict[str, Any], said: str) -> None:
    state = read_state(found)
    assert state.startswith(said) and bool(state) == bool(said)


def test_the_web_ui_listens_on_this_machine_alone(tmp_path: Path) -> None:
    children = {c.name: c.command for c in make_children(Settings(home=tmp_path), "http://127.0.0.1:3999", 3999)}
    command = children["webserver"]
    assert command[command.index("-h") + 1] == "127.0.0.1"
    assert command[command.index("-p") + 1] == "3999"
    assert all("0.0.0.0" not in part for found in children.values() for part in found)
