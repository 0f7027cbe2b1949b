"""Kill -9 at any moment, and run again: complete, nothing lost, at most one window asked twice per kill.

Slow because each command is a process of its own, as a person's is (4 s each).
"""

import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from workplace import COUNTING_MODEL, Server, Workplace, start_server, wait_until

WINDOW = 16
RECORDS = 132


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def server(place: Workplace, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = start_server(place.root, latency_s=getattr(request, "param", 0.15))
    place.copy_defs(COUNTING_MODEL.format(port=server.port, window=WINDOW))
    yield server
    server.stop()


def distinct_requests() -> int:
    """2 variants of 132 records, less 2 empty ones and 2 exact repeats."""
    return 2 * (RECORDS - 4)


def committed(place: Workplace) -> dict[tuple[str, str], str]:
    """What the store has committed: the attempt behind each row."""
    if not (place.home / "store.db").exists():
        return {}
    rows = place.query("SELECT item_id, prompt_ver, status, payload, attempt_id FROM llm_batch_results")
    return {(r[0], r[1]): repr(r[2:]) for r in rows}


def assert_complete(place: Workplace, server: Server, kills: int) -> None:
    (rows,) = place.query("SELECT count(*) FROM llm_batch_results")[0]
    assert rows == 2 * RECORDS
    kinds = dict(place.query("SELECT error_kind, count(*) FROM llm_batch_results WHERE status != 'ok' GROUP BY 1"))
    assert kinds == {"empty_input": 4}, "nobody is quarantined for having been in flight"
    counts = server.counts()
    assert len(counts) == distinct_requests()
    assert sum(counts.values()) - len(counts) <= kills * WINDOW
    assert place.query("SELECT count(*) FROM llm_leases") == [(0,)]


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_run_killed_in_the_middle_goes_on_from_there(place: Workplace, server: Server, share: float) -> None:
    process = place.start("run", "ticket_triage")
    place.kill_when(process, lambda: server.count() >= share * distinct_requests())
    before = committed(place)
    assert len(before) > share * RECORDS
    place.call("run", "ticket_triage")
    after = committed(place)
    assert {k: after[k] for k in before} == before, "what was committed stays as it was"
    assert_complete(place, server, kills=1)
    assert "0 requests sent" in place.call("run", "ticket_triage")


def test_three_kills_in_a_row_lose_nothing_and_quarantine_nobody(place: Workplace, server: Server) -> None:
    for _ in range(3):
        seen = server.count()
        process = place.start("run", "ticket_triage")
        place.kill_when(process, lambda seen=seen: server.count() >= seen + WINDOW)
    place.call("run", "ticket_triage")
    assert_complete(place, server, kills=3)


def test_kills_at_random_moments_again_and_again_lose_nothing(place: Workplace, server: Server) -> None:
    rng = random.Random()
    kills = 0
    for _ in range(5):
        process = place.start("run", "ticket_triage")
        time.sleep(rng.uniform(1.5, 6.0))  # from before its first import is done to the end of its work
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
    place.call("run", "ticket_triage")
    assert_complete(place, server, kills)


def test_a_run_killed_while_the_engine_starts_goes_on(place: Workplace, server: Server) -> None:
    server.stop()  # a server that is not there yet: the engine waits for it
    process = place.start("run", "ticket_triage")
    wait_until(lambda: (place.home / "store.db").exists(), 60, "the store")
    process.kill()
    process.wait()
    again = start_server(place.root, 0.0, server.port)
    try:
        place.call("run", "ticket_triage")
        assert_complete(place, again, kills=1)
    finally:
        again.stop()


def test_a_server_that_is_gone_stops_the_run_and_leaves_the_rest_pending(place: Workplace, server: Server) -> None:
    process = place.start("run", "ticket_triage")
    wait_until(lambda: server.count() > 60, 60, "some requests")
    server.stop()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert "the same command goes on from there" in err
    assert place.query("SELECT count(*) FROM llm_batch_results WHERE error_kind = 'connection'") == [(0,)]
    again = start_server(place.root, 0.0, server.port)
    try:
        place.call("run", "ticket_triage")
        assert_complete(place, again, kills=3)  # up to three tries of what was in flight when it went
    finally:
        again.stop()


def test_what_changed_is_asked_again_and_nothing_else(place: Workplace, server: Server) -> None:
    """The issue's third line: prompts, rules, records and a third prompt, one after another."""
    place.call("run", "ticket_triage")
    folder = place.defs / "ticket_triage"
    v2 = folder / "prompts" / "v2.md"
    original = v2.read_text()

    v2.write_text(original.replace("---\n\n", "---\n\nRead this ticket.\n", 1) + "\nThink of the customer.\n")
    plan = place.json("plan", "ticket_triage")
    assert {n["variant"] for n in plan["needs"]} == {"v2--smollm2-135m"}
    assert {tuple(n["why"]) for n in plan["needs"]} == {("prompt changed",)}
    assert len(plan["needs"]) == 3 and sum(n["stale"] for n in plan["needs"]) == RECORDS
    seen = server.count()
    done = place.json("run", "ticket_triage")
    assert done["requests_sent"] == server.count() - seen == RECORDS - 4

    v2.write_text(original)
    assert place.json("run", "ticket_triage")["requests_sent"] == 0

    task = folder / "task.py"
    task.write_text(
        task.read_text()
        .replace("output=Triage,", "output=Triage, rules=[no_urgent_fees],")
        .replace("@dg.component_instance", RULE + "\n\n@dg.component_instance")
    )
    plan = place.json("plan", "ticket_triage")
    assert plan["records_to_ask"] == 0 and {tuple(n["why"]) for n in plan["needs"]} == {("rules changed",)}
    assert place.json("run", "ticket_triage", expect=1)["requests_sent"] == 0
    assert place.query("SELECT count(*) FROM llm_batch_results WHERE error_kind = 'rule'")[0][0] > 0

    tickets = folder / "tickets" / "2026-11-02.csv"
    text = tickets.read_text()
    line = next(ln for ln in text.splitlines() if ln.startswith("007,"))
    tickets.write_text(
        text.replace(
            line,
            line.replace("007,", "007,Hello! ", 1) if '"' not in line else line.replace('007,"', '007,"Hello! ', 1),
        )
    )
    plan = place.json("plan", "ticket_triage")
    assert [(n["batch"], n["stale"], n["missing"]) for n in plan["needs"]] == [("2026-11-02", 1, 0)] * 2
    assert place.json("run", "ticket_triage", expect=1)["requests_sent"] == 2

    shutil.copy(v2, folder / "prompts" / "v3.md")
    (folder / "prompts" / "v3.md").write_text(original.replace("---\n\n", "---\n\nA ticket:\n", 1) + "\nDecide.\n")
    plan = place.json("plan", "ticket_triage")
    assert {(n["variant"], n["missing"]) for n in plan["needs"]} == {("v3--smollm2-135m", 44)}, plan["needs"]


RULE = '''def no_urgent_fees(answer: Triage) -> str | None:
    """Refuse urgency for fees."""
    return "a fee is never urgent" if answer.label == "fee" and answer.urgent else None
'''


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_keeps_what_arrived_and_gives_back_the_rest(
    place: Workplace, server: Server, number: signal.Signals
) -> None:
    process = place.start("run", "ticket_triage")
    wait_until(lambda: server.count() > 60 or process.poll() is not None, 60, "some requests")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "goes on from there" in err
    assert "Traceback" not in err
    outcomes = dict(place.query("SELECT coalesce(outcome, 'open'), count(*) FROM llm_attempts GROUP BY 1"))
    assert "open" not in outcomes, "no claim is left without an end"
    assert 0 < outcomes["released"] <= WINDOW
    assert place.query("SELECT count(*) FROM llm_leases") == [(0,)]
    place.call("run", "ticket_triage")
    assert_complete(place, server, kills=1)


@pytest.mark.parametrize("server", [0.6], indirect=True, ids=["slow"])  # else all may be done when the lock is had
def test_a_second_ctrl_c_ends_a_run_at_once_that_hangs_in_the_store(place: Workplace, server: Server) -> None:
    process = place.start("run", "ticket_triage")
    wait_until(lambda: server.count() > 60 or process.poll() is not None, 60, "some requests")
    before = committed(place)
    with closing(sqlite3.connect(place.home / "store.db", isolation_level=None, timeout=30)) as locker:
        locker.execute("BEGIN IMMEDIATE")  # the run waits for it for 60 s
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3, err
    assert "goes on from there" in err
    after = committed(place)
    assert {k: after[k] for k in before} == before
    place.call("run", "ticket_triage")
    assert_complete(place, server, kills=1)
