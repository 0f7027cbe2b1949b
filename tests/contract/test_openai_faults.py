"""The runner and the OpenAI engine against a server that fails as real ones do. On SQLite, over loopback."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from factories import (
    load_open_claims,
    load_rows,
    load_statuses,
    load_tries,
    make_ids,
    make_inputs,
    make_records,
    make_task,
)
from factories import run_partitions as run_scripted
from fault_server import FaultServer, find_score, serve_faults

from batch_assets.core.errors import EngineDead
from batch_assets.core.tasks import Thresholds
from batch_assets.engines.openai_engine import OpenAIEngine
from batch_assets.engines.openai_entry import OpenAIEntry
from batch_assets.store.database import Database

IDS = make_ids(30)


@contextmanager
def start_server(
    script: Mapping[str, Sequence[str] | str] | None = None, **fields: Any
) -> Iterator[tuple[FaultServer, str]]:
    """Run a server in a thread of its own."""
    started, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def run() -> None:
        async with serve_faults(script, **fields) as (server, base_url):
            found.extend([server, base_url, asyncio.get_running_loop()])
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0], found[1]
    finally:
        found[2].call_soon_threadsafe(stop.set)
        thread.join()


def make_engine(base_url: str, **fields: Any) -> OpenAIEngine:
    entry = {"model_id": "m1", "weights": "faults", "engine": "openai", "base_url": base_url, "timeout_s": 20, **fields}
    return OpenAIEngine(OpenAIEntry.model_validate(entry))


def run_on(
    database: Database, folder: Path, base_url: str, window: int = 8, ids: Sequence[str] = IDS, **fields: Any
) -> None:
    task = make_task(folder, thresholds=Thresholds(stop_early=False))
    engine: Any = make_engine(base_url, max_in_flight=window, **fields)
    run_scripted(database, engine, make_inputs(task, "b1", make_records(ids)), max_in_flight=window)


def assert_right(database: Database) -> None:
    """See that each `ok` row has the answer to its own record."""
    for item_id, row in load_rows(database).items():
        if row["status"] == "ok":
            assert row["payload"]["score"] == find_score(f"text of {item_id}"), item_id


OUTCOMES = {
    "ok": "ok",
    "slow": "ok",
    "wrong_type": "ok",
    "400": "error/bad_request",
    "404": "error/bad_request",
    "413 html": "error/bad_request",
    "500": "error/server_error",
    "502 html": "error/server_error",
    "hang": "error/timeout",
    "endless": "error/bad_response",
    "html": "error/bad_response",
    "broken_body": "error/bad_response",
    "cut_off": "invalid/truncated",
    "whitespace": "invalid/",
    "wrong_schema": "invalid/schema",
    "prose": "invalid/not_json",
    "half_json": "invalid/not_json",
    "wrong_json": "invalid/not_object",
    "nothing": "invalid/",
    "doubled": "invalid/doubled_key",
    "nan": "invalid/",
    "reasoning": "invalid/",
}


def test_each_fault_is_one_records_own_and_its_neighbours_have_their_answers(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_assets.engines.openai_engine.LARGEST_BODY", 2**20)
    bad = dict(zip(make_ids(len(OUTCOMES), "x"), OUTCOMES, strict=True))
    ids = sorted([*IDS, *bad])
    with start_server({f"text of {i}": step for i, step in bad.items()}) as (server, base_url):
        run_on(sqlite_database, tmp_path, base_url, ids=ids, timeout_s=1)
    statuses = load_statuses(sqlite_database)
    assert statuses.keys() == set(ids)
    assert {statuses[i] for i in IDS} == {"ok"}
    assert {step: statuses[i] for i, step in bad.items() if not statuses[i].startswith(OUTCOMES[step])} == {}
    assert_right(sqlite_database)
    assert load_open_claims(sqlite_database) == []
    assert (server.kinds["400"], server.kinds["404"], server.kinds["prose"]) == (1, 1, 1), "what stays is asked once"
    assert (server.kinds["500"], server.kinds["hang"]) == (3, 3), "and what passes thrice"
    assert server.cancelled >= 3 + 3, "hangs and endless bodies are given up at the server"


@pytest.mark.parametrize("fault", ["500", "503 1", "429 1", "429 date", "408", "reset", "html", "hang"])
def test_a_fault_that_passes_costs_nobody_an_answer(sqlite_database: Database, tmp_path: Path, fault: str) -> None:
    script = {f"text of {i}": [fault, "ok"] for i in IDS[::6]}
    with start_server(script) as (server, base_url):
        run_on(sqlite_database, tmp_path, base_url, timeout_s=3)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert_right(sqlite_database)
    assert server.requests == len(IDS) + 5 == len(load_tries(sqlite_database))


@pytest.mark.parametrize("status", ["401", "402", "403"])
def test_a_refused_key_stops_the_run_and_leaves_the_rest_pending(
    sqlite_database: Database, tmp_path: Path, status: str
) -> None:
    with start_server({f"text of {IDS[9]}": status}) as (server, base_url), pytest.raises(EngineDead, match=status):
        run_on(sqlite_database, tmp_path, base_url, window=2)
    assert server.kinds[status] == 1
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert len(load_rows(sqlite_database)) < len(IDS)
    assert load_open_claims(sqlite_database) == []


def test_answers_in_reverse_order_reach_their_own_records(sqlite_database: Database, tmp_path: Path) -> None:
    with start_server(reverse=10) as (server, base_url):
        run_on(sqlite_database, tmp_path, base_url, window=10, ids=make_ids(10))
    assert server.answered != sorted(server.answered)
    assert set(load_statuses(sqlite_database).values()) == {"ok"}
    assert_right(sqlite_database)


def test_requests_that_are_given_up_never_add_up_to_more_than_the_window_on_the_server(
    sqlite_database: Database, tmp_path: Path
) -> None:
    script = {f"text of {i}": ["hang", "hang", "ok"] for i in IDS}
    with start_server(script) as (server, base_url):
        run_on(sqlite_database, tmp_path, base_url, window=6, timeout_s=0.5)
    assert server.cancelled >= server.kinds["hang"] > 0
    assert server.most_in_flight <= 6


def run_with_files(files: int, window: int, requests: int) -> subprocess.CompletedProcess[str]:
    """Ask a server that takes its time, in a process that may open so many files."""
    script = """
import asyncio, resource, sys
files, window, requests, base_url = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
sys.path.insert(0, sys.argv[1])
from batch_assets.core.models import Sampling
from batch_assets.engines.openai_entry import OpenAIEntry
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.core.errors import ConfigError
from batch_assets.engines.openai_engine import OpenAIEngine
resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 64), files))
entry = {"model_id": "m", "weights": "w", "engine": "openai", "base_url": base_url, "timeout_s": 6}
engine = OpenAIEngine(OpenAIEntry.model_validate({**entry, "max_in_flight": window}))
def make(n):
    return Request(request_key="k", messages=(Message("user", f"{n}"),), schema={}, sampling=Sampling())
async def main():
    await engine.open()
    answers = await asyncio.gather(*(engine.complete(make(n)) for n in range(requests)))
    print(len(answers))
    await engine.close()
try:
    asyncio.run(main())
except ConfigError as e:
    print(e)
"""
    with start_server(latency_s=0.6) as (server, base_url):
        command = [
            sys.executable,
            "-c",
            script,
            str(Path(__file__).parent.parent),
            *map(str, (files, window, requests)),
        ]
        done = subprocess.run(
            [*command, base_url], env=os.environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert server.most_in_flight <= min(files, window)
    return done


def test_256_files_are_enough_for_a_window_of_512_and_waiting_for_one_is_no_timeout() -> None:
    # 2,048 requests of 0.6 s each, some 180 at once: the last waits for longer than the timeout of 6 s.
    done = run_with_files(256, 512, 2048)
    assert (done.stdout.strip(), done.returncode) == ("2048", 0), done.stderr


def test_too_few_files_are_told_before_the_first_request() -> None:
    done = run_with_files(70, 512, 10)
    assert "m: this process may open 70 files" in done.stdout, done.stderr
    assert "ulimit -n" in done.stdout
