"""Real vLLM in processes of its own, with the shipped model, on the CPU: its answers, its death and ours.

Slow because an engine takes half a minute to start, more on a busy machine, and four of them start.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_process import make_entry
from factories import load_open_claims, load_rows, load_tries, make_ids, make_inputs, make_records, make_task
from workplace import wait_until

from batch_assets.engines.factory import build_engine
from batch_assets.engines.vllm_apart import ApartVllm
from batch_assets.run.engine_restarts import run_with_restarts
from batch_assets.run.loop import Observer, Runner, RunnerOptions
from batch_assets.run.partition_run import Progress, Tally
from batch_assets.settings import load_settings
from batch_assets.store.database import Database

pytest.importorskip("vllm", reason="vLLM is not installed: `make test` installs it")
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
WINDOW = 4


class EngineProcess:
    """engine_process.py, running: what it told, and the processes below it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("{"), f"it ended: {line}"
        self.told: dict[str, Any] = json.loads(line)
        self.below = psutil.Process(process.pid).children(recursive=True)


@contextmanager
def start_process(mode: str) -> Iterator[EngineProcess]:
    script = Path(__file__).with_name("engine_process.py")
    process = subprocess.Popen(
        [sys.executable, str(script), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield EngineProcess(process)
    finally:
        process.kill()
        process.wait()


def lives(process: psutil.Process) -> bool:
    """Whether a process does anything any more. Where nobody waits for the dead they stay listed."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find_group(watchdog: int) -> list[psutil.Process]:
    """Return the living processes of a watchdog's group, the watchdog too."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == watchdog and lives(process):
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def find_shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Return the files of shared memory that processes have mapped."""
    text = "\n".join(Path(f"/proc/{p.pid}/maps").read_text() for p in processes)
    return {Path(path) for path in re.findall(r"/dev/shm/\S+", text)} - {Path("/dev/shm/")}


@pytest.fixture(scope="module")
def inline_told() -> dict[str, Any]:
    """What an inline engine does."""
    with start_process("inline") as inline:
        assert inline.process.communicate("")[0] == ""
        assert inline.process.returncode == 0
        return inline.told


def test_it_answers_as_inline_does_and_nothing_of_it_outlives_our_kill(inline_told: dict[str, Any]) -> None:
    with start_process("apart") as apart:
        assert apart.told == inline_told
        assert [a["finish_reason"] for a in apart.told["answers"]] == ["stop"] * 5
        assert apart.told["cut_off"]["finish_reason"] == "length"
        assert apart.told["refused"] == [["context_length", False], ["bad_request", False]]
        assert apart.told["abort"] == ["first"], "the short request took the place of the cancelled one"

        assert len(apart.below) >= 3, "a watchdog, the engine's core and its worker at least"
        assert sum(os.getpgid(p.pid) != os.getpgid(apart.process.pid) for p in apart.below) >= 3
        memory = find_shared_memory(apart.below)
        folders = {Path(word) for p in apart.below for word in p.cmdline() if Path(word).name.startswith("ba_vllm_")}
        assert memory and len(folders) == 1
        apart.process.kill()
        killed_at = time.monotonic()
        wait_until(lambda: not any(map(lives, apart.below)), 60, "the end of all processes")
        assert time.monotonic() - killed_at < 20
    wait_until(lambda: not any(p.exists() for p in memory | folders), 10, "the end of its files")


def test_an_engine_that_is_killed_is_started_again_and_the_work_gets_done(
    sqlite_database: Database, tmp_path: Path
) -> None:
    entry = make_entry("apart", max_num_seqs=WINDOW)
    engine = build_engine(entry, load_settings().cache_dir)
    assert isinstance(engine, ApartVllm)
    all_inputs = [
        make_inputs(make_task(tmp_path, models=[entry]), batch, make_records(make_ids(12, prefix=batch)))
        for batch in ("b1", "b2")
    ]
    groups: dict[int, Path] = {}
    killed_at: list[float] = []
    said: list[tuple[float, str]] = []

    def make(observer: Observer, tally: Tally) -> Runner:
        return Runner(
            sqlite_database, engine, RunnerOptions(max_in_flight=WINDOW, group_s=0.0),
            run_id="run", tally=tally, observer=observer,
        )  # fmt: skip

    def kill_once(progress: Progress) -> None:
        if engine._watchdog is not None:
            groups[engine._watchdog.group] = engine._watchdog.folder
        if progress.done >= 3 and progress.in_flight >= 2 and not killed_at:
            (watchdog,) = groups
            (core,) = [p for p in find_group(watchdog) if p.ppid() == os.getpid() and p.pid != watchdog]
            core.kill()
            killed_at.append(time.monotonic())

    outcomes = list(
        run_with_restarts(
            make, all_inputs, is_restartable=engine.is_restartable, tally=Tally(), observer=kill_once,
            log=lambda line: said.append((time.monotonic(), line)),
        )
    )  # fmt: skip
    assert sorted(o.inputs.batch for o in outcomes) == ["b1", "b2"]
    assert len(load_rows(sqlite_database, model_id="m")) == 24
    ((at, line),) = said
    assert line.startswith("vLLM died: EngineDeadError") and line.endswith("(1 of 4 restarts)")
    assert at - killed_at[0] < 60
    assert 0 < len(load_open_claims(sqlite_database)) <= WINDOW
    assert len(load_tries(sqlite_database)) <= 24 + WINDOW, "what had been answered was not asked again"
    assert len(groups) == 2
    assert [find_group(g) for g in groups] == [[], []]
    assert not any(folder.exists() for folder in groups.values())
