"""The main job with real vLLM and the shipped model, as `make demo` runs it, killed twice on the way.

Slow because the engine takes a quarter of a minute to start, and it starts three times.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from workplace import Workplace, wait_until

pytest.importorskip("vllm", reason="vLLM is not installed: `make test` installs it")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
BATCH = "2026-11-01"
SECOND = "2026-11-02"
TOO_LONG = "T-10631"
"""A ticket of the second batch, of which two neighbours are kept: an engine is not started for it alone."""


@dataclass(frozen=True)
class Told:
    """What the three runs told: the second was killed when `kept` rows were there."""

    kept: int
    done: Any


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("vllm"))
    place.copy_defs(models=None)
    keep_around(place.defs / "ticket_triage" / "tickets" / f"{SECOND}.csv", TOO_LONG)
    return place


def keep_around(path: Path, item_id: str) -> None:
    """Keep one record of a file, and the ones before and after it."""
    with path.open(newline="") as f:
        header, *rows = csv.reader(f)
    at = next(n for n, row in enumerate(rows) if row[0] == item_id)
    with path.open("w", newline="") as f:
        csv.writer(f).writerows([header, *rows[at - 1 : at + 2]])


def count_rows(place: Workplace) -> int:
    if not (place.home / "store.db").exists():
        return 0
    return place.query("SELECT count(*) FROM llm_batch_results")[0][0]


@pytest.fixture(scope="module")
def told(place: Workplace) -> Told:
    """Killed while the engine starts, killed in the middle, then run to the end."""
    process = place.start("run", "ticket_triage", "--batch", BATCH)
    wait_until(lambda: "starting the engine" in (process.stderr.readline() if process.stderr else ""), 120, "the start")
    process.kill()
    process.communicate()
    assert place.query("SELECT count(*) FROM llm_attempts") == [(0,)], "no claim before the engine is there"

    process = place.start("run", "ticket_triage", "--batch", BATCH)
    place.kill_when(process, lambda: count_rows(place) >= 20, timeout_s=240)
    kept = count_rows(place)
    return Told(kept, place.json("run", "ticket_triage", "--batch", BATCH, "--batch", SECOND))


def test_the_shipped_task_runs_on_the_shipped_model_through_kills(place: Workplace, told: Told) -> None:
    assert 0 < told.done["requests_sent"] <= 2 * 42 - told.kept + 2 * 1 + 64 + 2 * 2
    reports = {r["variant"]: r for r in told.done["reports"] if r["batch"] == BATCH}
    assert {v: (r["total"], r["ok"], r["invalid"], r["error"]) for v, r in reports.items()} == {
        "v1--smollm2-135m": (44, 43, 0, 1),
        "v2--smollm2-135m": (44, 43, 0, 1),
    }
    assert all(r["error_kinds"] == {"empty_input": 1} for r in reports.values())
    assert all(r["completion_tokens"] > 0 and r["latency_p50_s"] > 0 and r["seconds"] > 0 for r in reports.values())
    assert place.json("run", "ticket_triage", "--batch", BATCH)["requests_sent"] == 0


def test_a_ticket_that_does_not_fit_is_its_own_error(place: Workplace, told: Told) -> None:
    found = place.json("show", "ticket_triage", TOO_LONG)
    assert [(r["status"], r["error_kind"]) for r in found["results"]] == [("error", "context_length")] * 2
    assert all("tokens" in r["error"] for r in found["results"])
    others = place.query(f"SELECT count(*) FROM llm_batch_results WHERE batch = '{SECOND}' AND status = 'ok'")
    assert others == [(2 * 2,)]


def test_an_argument_that_vllm_does_not_know_is_named_before_the_first_record(place: Workplace) -> None:
    models = place.defs / "models.yaml"
    original = models.read_text()
    models.write_text(original.replace("max_num_seqs: 64", "max_num_sequences: 64"))
    try:
        err = place.call("run", "ticket_triage", expect=2)
        assert "max_num_sequences" in err and "did you mean max_num_seqs?" in err
        models.write_text(original.replace("timeout_s", "time_out_s"))
        assert "time_out_s" in place.call("plan", "ticket_triage", expect=2)
    finally:
        models.write_text(original)
