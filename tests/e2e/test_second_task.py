"""A folder dropped into defs/ is a task: no other file changes."""

from pathlib import Path

import pytest
from workplace import COUNTING_MODEL, Workplace, start_server


def test_a_task_of_another_kind_runs_from_its_folder_alone(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    server = start_server(tmp_path, latency_s=0.0)
    try:
        place.copy_defs(COUNTING_MODEL.format(port=server.port, window=16), tasks=("booking_fields",))
        done = place.json("run", "booking_fields")
    finally:
        server.stop()
    assert done["requests_sent"] == 39, "40 messages, one of them without text"
    rows = place.query("SELECT status, count(*) FROM llm_batch_results GROUP BY 1 ORDER BY 1")
    assert rows == [("error", 1), ("ok", 39)]
    assert list(place.json("status")) == ["booking_fields"]


@pytest.mark.parametrize("empty_store_url", ["postgresql"], indirect=True)
def test_the_store_is_postgresql_by_one_setting(tmp_path: Path, empty_store_url: str) -> None:
    place = Workplace(tmp_path, environment={"BATCH_ASSETS_DB_URL": empty_store_url})
    server = start_server(tmp_path, latency_s=0.05)
    try:
        place.copy_defs(COUNTING_MODEL.format(port=server.port, window=4), tasks=("booking_fields",))
        process = place.start("run", "booking_fields")
        place.kill_when(process, lambda: server.count() >= 15)
        done = place.json("run", "booking_fields")
        assert 39 - 15 <= done["requests_sent"] <= 39
        assert server.count() <= 39 + 4
        assert place.json("run", "booking_fields")["requests_sent"] == 0
    finally:
        server.stop()
    assert not list(place.home.rglob("*.db")), "Dagster's instance lies in PostgreSQL too"
    assert place.json("status")["booking_fields"] == [
        {
            "prompt_ver": "v1",
            "model_id": "smollm2-135m",
            "ok": 39,
            "invalid": 0,
            "error": 1,
            "pending": 0,
            "is_fallback": False,
            "reasons": {"error/empty_input": {"records": 1, "first": "B-3161"}},
        }
    ]


def test_a_store_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/nothing"
    place = Workplace(tmp_path, environment={"BATCH_ASSETS_DB_URL": url})
    place.copy_defs(None, tasks=("booking_fields",))
    err = place.call("plan", "booking_fields", expect=3)
    assert "can't be opened" in err and "127.0.0.1:1" in err
    assert "secret" not in err
    wrong = Workplace(tmp_path, environment={"BATCH_ASSETS_DB_URL": "nonsense"})
    assert "BATCH_ASSETS_DB_URL" in wrong.call("plan", "booking_fields", expect=2)
