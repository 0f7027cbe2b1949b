"""Claims without an end: who is a suspect, who is quarantined, and who was only near when the engine died."""

from collections import Counter
from pathlib import Path

import pytest
from factories import (
    GOOD,
    Hang,
    ScriptedEngine,
    load_open_claims,
    load_rows,
    load_statuses,
    load_tries,
    make_ids,
    make_inputs,
    make_records,
    make_task,
    pass_later,
    run_partitions,
    write_deaths,
)

from batch_assets.core.attempts import RetryMode
from batch_assets.core.completions import Completion
from batch_assets.core.errors import EngineDead
from batch_assets.core.requests import Request
from batch_assets.store.database import Database

DEATH = EngineDead("the engine is gone", took_requests_down=True)
LOSS = EngineDead("the server can't be reached")


def test_after_one_death_a_record_is_asked_like_any_other(database: Database, tmp_path: Path) -> None:
    records = make_records(make_ids(6))
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records[:1], False)
    engine = ScriptedEngine(latency_s=0.001)
    run_partitions(database, engine, inputs, max_in_flight=3)
    assert engine.asked[0] == "text of r0000"
    assert set(load_statuses(database).values()) == {"ok"}
    assert (load_rows(database)["r0000"]["attempts"], load_tries(database, "r0000")[-1]["is_alone"]) == (2, False)


def test_after_two_deaths_a_record_is_sent_last_and_alone(database: Database, tmp_path: Path) -> None:
    records = make_records(make_ids(12))
    task = make_task(tmp_path)
    first, second = make_inputs(task, "b1", records[:6], chunk=2), make_inputs(task, "b2", records[6:], chunk=2)
    write_deaths(database, first, [records[0], records[3]], False, False)
    engine = ScriptedEngine(latency_s=0.002)
    run_partitions(database, engine, first, second, max_in_flight=4)
    assert sorted(engine.asked[-2:]) == ["text of r0000", "text of r0003"]
    assert [engine.seen_with[t] for t in engine.asked[-2:]] == [1, 1]
    assert engine.most_in_flight == 4
    assert set(load_statuses(database).values()) == {"ok"}
    assert [t["is_alone"] for t in load_tries(database, "r0000")] == [False, False, True]


def test_a_suspect_waits_for_records_that_are_still_to_be_read(database: Database, tmp_path: Path) -> None:
    # Rows that cost no request fill a group, so that the suspect is all that could be sent at that moment.
    records = make_records({"1": "suspect", "2": "", "3": "other", "4": "", "5": "another"})
    inputs = make_inputs(make_task(tmp_path), "b1", records, chunk=1)
    write_deaths(database, inputs, records[:1], False, False)
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs, max_in_flight=2, group_rows=1)
    assert engine.asked == ["other", "another", "suspect"]


def test_a_suspect_that_has_to_be_tried_again_stays_alone(database: Database, tmp_path: Path) -> None:
    records = make_records(make_ids(3))
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records, False, False)
    engine = ScriptedEngine({"text of r0001": [pass_later(), GOOD]}, latency_s=0.002)
    run_partitions(database, engine, inputs)
    assert engine.most_in_flight == 1
    assert len(engine.asked) == 4
    assert set(load_statuses(database).values()) == {"ok"}


def test_after_two_deaths_alone_a_record_is_quarantined_without_a_request(database: Database, tmp_path: Path) -> None:
    records = make_records(make_ids(3))
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records[:1], False, False)
    write_deaths(database, inputs, records[:1], True, True)
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert sorted(engine.asked) == ["text of r0001", "text of r0002"]
    row = load_rows(database)["r0000"]
    assert (row["status"], row["error_kind"], row["attempts"]) == ("error", "kills_engine", 4)
    assert "died 4 times" in row["error"]
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert engine.asked == []


def test_one_death_alone_quarantines_nobody(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records, False, False, True)
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert (engine.asked, load_statuses(database)) == (["text of 1"], {"1": "ok"})


def test_a_quarantined_record_is_asked_again_when_the_operator_wants_it(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records, False, False, True, True)
    run_partitions(database, ScriptedEngine(), inputs)
    assert load_statuses(database) == {"1": "error/kills_engine"}
    run_partitions(database, ScriptedEngine(), inputs, retry=RetryMode.ERRORS)
    assert load_statuses(database) == {"1": "ok"}
    assert load_tries(database)[-1]["is_alone"]


def test_deaths_before_an_answer_count_no_more(database: Database, tmp_path: Path) -> None:
    records = make_records(["1", "2"])
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, inputs, records, False, False, True)
    run_partitions(database, ScriptedEngine(), inputs)
    engine = ScriptedEngine(latency_s=0.002)
    run_partitions(database, engine, inputs, retry=RetryMode.ALL)
    assert engine.most_in_flight == 2
    write_deaths(database, inputs, records, True)
    run_partitions(database, ScriptedEngine(), inputs, retry=RetryMode.ALL)
    assert load_statuses(database) == {"1": "ok", "2": "ok"}


def test_a_changed_prompt_or_text_leaves_its_deaths_behind(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    before = make_inputs(make_task(tmp_path), "b1", records)
    write_deaths(database, before, records, False, False, True, True)
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(make_task(tmp_path, prompts={"v1": "E: {{ text }}"}), "b1", records))
    assert engine.asked == ["text of 1"]
    assert not load_tries(database)[-1]["is_alone"]


def test_being_in_flight_at_three_kills_quarantines_nobody(database: Database, tmp_path: Path) -> None:
    records = make_records(make_ids(4))
    inputs = make_inputs(make_task(tmp_path), "b1", records)
    for kill in range(3):
        # Whatever is in flight, the machine goes. From the third time on each is sent alone.
        engine = ScriptedEngine(default=Hang())
        in_flight = 4 if kill < 2 else 1

        def die(_text: str, engine: ScriptedEngine = engine, in_flight: int = in_flight) -> None:
            if engine.in_flight == in_flight:
                raise DEATH

        engine.on_request = die
        with pytest.raises(EngineDead):
            run_partitions(database, engine, inputs)
    assert len(load_open_claims(database)) == 9
    assert load_rows(database) == {}
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert set(load_statuses(database).values()) == {"ok"}
    assert len(engine.asked) == 4


def test_a_record_that_kills_the_engine_every_time_is_found_and_the_rest_is_done(
    database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(8)))
    runs = 0
    while True:
        runs += 1
        engine = ScriptedEngine({"text of r0002": DEATH}, latency_s=0.001)
        try:
            run_partitions(database, engine, inputs, max_in_flight=4)
            break
        except EngineDead:
            assert runs < 8
    statuses = load_statuses(database)
    assert statuses.pop("r0002") == "error/kills_engine"
    assert set(statuses.values()) == {"ok"}
    assert runs == 5  # two in company, two alone, and one that doesn't ask it


def test_an_engine_that_died_of_a_request_leaves_the_claims_in_flight_open(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(5)))
    engine = ScriptedEngine({"text of r0000": GOOD, "text of r0004": DEATH}, default=Hang())
    with pytest.raises(EngineDead, match="the engine is gone"):
        run_partitions(database, engine, inputs)
    assert load_open_claims(database) == ["r0001", "r0002", "r0003", "r0004"]
    assert engine.closed == 1


def test_an_engine_that_is_lost_without_blame_leaves_no_claim_open(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(5)))
    engine = ScriptedEngine({"text of r0000": GOOD, "text of r0004": LOSS}, default=Hang())
    with pytest.raises(EngineDead, match="can't be reached"):
        run_partitions(database, engine, inputs)
    assert load_open_claims(database) == []
    outcomes = {t["item_id"]: t["outcome"] for t in load_tries(database)}
    assert outcomes.pop("r0000") == "ok"
    assert set(outcomes.values()) == {"released"}
    run_partitions(database, ScriptedEngine(), inputs)
    assert set(load_statuses(database).values()) == {"ok"}
    assert load_statuses(database).keys() == set(make_ids(5))


def test_an_engine_that_cant_be_opened_leaves_nothing_behind(database: Database, tmp_path: Path) -> None:
    class Broken(ScriptedEngine):
        async def open(self) -> None:
            raise LOSS

    engine = Broken()
    with pytest.raises(EngineDead):
        run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert (load_tries(database), engine.closed) == ([], 1)
    (outcome,) = run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", make_records(["1"])))
    assert outcome.leased_by is None


def test_a_failure_that_arrives_with_the_engines_death_is_no_death(database: Database, tmp_path: Path) -> None:
    # Both arrive in one turn of the loop, the death first: the other request had ended, and is not to blame.
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1", "2"]))
    engine = ScriptedEngine({"text of 1": DEATH, "text of 2": pass_later("server_error")})
    with pytest.raises(EngineDead):
        run_partitions(database, engine, inputs)
    assert load_open_claims(database) == ["1"]


def test_connections_that_are_lost_for_too_long_stop_the_run(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(100)))
    engine = ScriptedEngine(default=pass_later("connection"))
    with pytest.raises(EngineDead, match="requests failed in a row"):
        run_partitions(database, engine, inputs, max_in_flight=16, outage_s=0.0)
    assert len(engine.asked) < 60
    assert load_open_claims(database) == []
    assert load_rows(database) == {}


class SickFor(ScriptedEngine):
    """Answers with 503 so many times, whatever it is asked; then it is well."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def complete(self, request: Request) -> Completion:
        completion = await super().complete(request)
        if len(self.asked) <= self.failures:
            raise pass_later("server_error")
        return completion


def test_a_sick_server_costs_no_record_its_attempts(database: Database, tmp_path: Path) -> None:
    # One failure each in the first window, and by chance three or more for many of them while it is probed.
    engine = SickFor(100)
    run_partitions(
        database, engine, make_inputs(make_task(tmp_path), "b1", make_records(make_ids(40))), max_in_flight=40
    )
    assert max(Counter(engine.asked[:100]).values()) >= 3  # as many as an attempt's limit
    assert set(load_statuses(database).values()) == {"ok"}


def test_rate_limits_cost_no_record_its_attempts(database: Database, tmp_path: Path) -> None:
    script = {"text of 1": [pass_later("rate_limited")] * 10 + [GOOD]}
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(["1"]))
    run_partitions(database, ScriptedEngine(script), inputs)
    assert load_statuses(database) == {"1": "ok"}


def test_lost_connections_with_answers_between_them_stop_nothing(database: Database, tmp_path: Path) -> None:
    script = {f"text of {i}": [pass_later("connection")] * 2 + [GOOD] for i in make_ids(40)}
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(40)))
    run_partitions(database, ScriptedEngine(script), inputs, max_in_flight=4)
    assert set(load_statuses(database).values()) == {"ok"}


def test_a_record_whose_connection_is_dropped_each_time_is_an_error_and_stops_nothing(
    database: Database, tmp_path: Path
) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(12)))
    engine = ScriptedEngine({"text of r0003": pass_later("dropped")})
    run_partitions(database, engine, inputs, max_in_flight=4, outage_s=0.0)
    statuses = load_statuses(database)
    assert statuses.pop("r0003") == "error/dropped"
    assert set(statuses.values()) == {"ok"}


def test_a_server_that_vanishes_loses_no_record_to_errors(database: Database, tmp_path: Path) -> None:
    # Its connections fail until the run stops; what couldn't be asked stays pending for the next run.
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(100)))
    with pytest.raises(EngineDead):
        run_partitions(
            database, ScriptedEngine(default=pass_later("connection")), inputs, max_in_flight=16, outage_s=0.0
        )
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert set(load_statuses(database).values()) == {"ok"}
