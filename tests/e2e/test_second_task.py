"""A folder dropped into defs/ is a task: no other file changes."""

from pathlib import Path

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
