"""What is asked again when something changes, and what is never asked twice."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from factories import (
    BAD,
    GOOD,
    Answer,
    Hang,
    ScriptedEngine,
    fail_for_good,
    find_key,
    load_rows,
    load_statuses,
    load_tries,
    make_completion,
    make_ids,
    make_inputs,
    make_model,
    make_records,
    make_task,
    pass_later,
    refuse_a,
    run_partitions,
)

from batch_assets.core.attempts import RetryMode
from batch_assets.core.models import Sampling
from batch_assets.store.database import Database
from batch_assets.store.tables import attempts

# Equal requests


def test_equal_requests_are_asked_once_in_a_run(database: Database, tmp_path: Path) -> None:
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(dict.fromkeys(make_ids(5), "same")))
    engine = ScriptedEngine()
    (outcome,) = run_partitions(database, engine, inputs)
    assert engine.asked == ["same"]
    rows = load_rows(database)
    assert {r["status"] for r in rows.values()} == {"ok"}
    assert [r["attempts"] for r in rows.values()] == [1, 0, 0, 0, 0]
    (tried,) = load_tries(database)
    assert [r["reused_from"] for r in rows.values()] == [None] + [tried["attempt_id"]] * 4
    assert (outcome.tally.sent, outcome.tally.reused, outcome.tally.ok) == (1, 4, 5)


def test_equal_requests_are_asked_once_across_batches_of_a_run(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    all_inputs = [make_inputs(task, f"b{n}", make_records({f"r{n}": "same"})) for n in range(3)]
    engine = ScriptedEngine()
    outcomes = run_partitions(database, engine, *all_inputs)
    assert engine.asked == ["same"]
    assert [o.tally.sent for o in outcomes] == [1, 0, 0]
    assert [o.state.counts["reused"] for o in outcomes if o.state] == [0, 1, 1]


def test_equal_requests_are_asked_once_across_runs(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", make_records({"1": "same"})))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b2", make_records({"2": "same", "3": "other"})))
    assert engine.asked == ["other"]
    assert load_rows(database)["2"]["reused_from"] == load_rows(database)["1"]["attempt_id"]


def test_another_variant_with_the_same_rendering_shares_the_answer(database: Database, tmp_path: Path) -> None:
    # A prompt that was only renamed costs nothing.
    task = make_task(tmp_path, prompts={"v1": "Say: {{ text }}", "v2": "Say: {{ text }}"})
    records = make_records({"1": "words"})
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", records, "v1--m1"))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b1", records, "v2--m1"))
    assert engine.asked == []
    assert load_statuses(database, "v2") == {"1": "ok"}


def test_another_model_shares_nothing(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path, models=["m1", make_model("m2", weights="other")])
    records = make_records({"1": "words"})
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", records, "v1--m1"))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b1", records, "v1--m2"))
    assert engine.asked == ["words"]


@pytest.mark.parametrize("first", [BAD, pass_later("timeout")])
def test_a_follower_of_a_leader_without_an_answer_is_asked_itself(
    database: Database, tmp_path: Path, first: object
) -> None:
    task = make_task(tmp_path, max_attempts=1)
    engine = ScriptedEngine({"same": [first, first, GOOD]})
    run_partitions(database, engine, make_inputs(task, "b1", make_records(dict.fromkeys("12345", "same"))))
    statuses = list(load_statuses(database).values())
    assert [s.split("/")[0] for s in statuses[2:]] == ["ok", "ok", "ok"]
    assert all(s.startswith(("invalid", "error")) for s in statuses[:2])
    assert len(engine.asked) == 3
    assert [r["attempts"] for r in load_rows(database).values()] == [1, 1, 1, 0, 0]


def test_followers_of_a_failure_for_good_share_it(database: Database, tmp_path: Path) -> None:
    engine = ScriptedEngine(default=fail_for_good())
    run_partitions(database, engine, make_inputs(make_task(tmp_path), "b1", make_records(dict.fromkeys("123", "same"))))
    assert len(engine.asked) == 1
    assert set(load_statuses(database).values()) == {"error/context_length"}


def test_an_invalid_answer_of_another_record_is_not_taken(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    run_partitions(database, ScriptedEngine(default=BAD), make_inputs(task, "b1", make_records({"1": "same"})))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b2", make_records({"2": "same"})))
    assert engine.asked == ["same"]
    assert load_statuses(database) == {"1": "invalid/schema", "2": "ok"}


def test_an_ok_answer_of_another_record_settles_a_retry(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    first = make_inputs(task, "b1", make_records({"1": "same"}))
    run_partitions(database, ScriptedEngine(default=BAD), first)
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b2", make_records({"2": "same"})))
    engine = ScriptedEngine()
    run_partitions(database, engine, first, retry=RetryMode.FAILED)
    assert engine.asked == []
    assert load_statuses(database) == {"1": "ok", "2": "ok"}


def test_an_answer_that_the_present_rules_refuse_is_not_taken(database: Database, tmp_path: Path) -> None:
    run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", make_records({"1": "same"})))
    strict = make_task(tmp_path, rules=[refuse_a])
    engine = ScriptedEngine(default='{"label":"b","score":1}')
    run_partitions(database, engine, make_inputs(strict, "b2", make_records({"2": "same"})))
    assert engine.asked == ["same"]
    assert load_statuses(database)["2"] == "ok"


# Changed records


def test_an_edited_text_asks_exactly_that_record(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", make_records(["1", "2", "3"])))
    engine = ScriptedEngine(default=BAD)
    edited = make_records({"1": "text of 1", "2": "edited", "3": "text of 3"})
    run_partitions(database, engine, make_inputs(task, "b1", edited))
    assert engine.asked == ["edited"]
    assert load_statuses(database) == {"1": "ok", "2": "invalid/schema", "3": "ok"}
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b1", make_records(["1", "2", "3"])))
    assert engine.asked == []
    assert load_statuses(database) == {"1": "ok", "2": "ok", "3": "ok"}


def test_a_field_that_no_prompt_uses_may_change(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    records = make_records(["1"])
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", records))
    engine = ScriptedEngine()
    changed = [type(r)(item_id=r.item_id, fields={**r.fields, "seen_at": "now"}) for r in records]
    run_partitions(database, engine, make_inputs(task, "b1", changed))
    assert engine.asked == []


def test_a_text_in_another_unicode_form_is_the_same_text(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", make_records({"1": "caf\u00e9"})))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(task, "b1", make_records({"1": "cafe\u0301"})))
    assert engine.asked == []


def test_a_new_record_in_a_batch_asks_exactly_that_record(database: Database, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    run_partitions(database, ScriptedEngine(), make_inputs(task, "b1", make_records(["1", "2"])))
    engine = ScriptedEngine()
    (outcome,) = run_partitions(database, engine, make_inputs(task, "b1", make_records(["1", "2", "3"])))
    assert engine.asked == ["text of 3"]
    assert (outcome.tally.already_done, outcome.tally.sent) == (2, 1)


# Changed prompts

HISTORY = {
    "text of 1": BAD,
    "text of 2": fail_for_good(),
    "text of 3": [pass_later(), GOOD],
    "text of 4": make_completion(GOOD, "length"),
    "same": GOOD,
}
IN_HISTORY = {**{i: f"text of {i}" for i in "012345"}, "6": "same", "7": "same", "8": ""}
STATUSES = {
    "0": "ok", "1": "invalid/schema", "2": "error/context_length", "3": "ok", "4": "invalid/truncated", "5": "ok",
    "6": "ok", "7": "ok", "8": "error/empty_input",
}  # fmt: skip


def test_a_prompt_that_was_changed_and_reverted_costs_nothing(database: Database, tmp_path: Path) -> None:
    records = make_records(IN_HISTORY)
    before = make_inputs(make_task(tmp_path), "b1", records)
    (first,) = run_partitions(database, ScriptedEngine(HISTORY), before)
    assert load_statuses(database) == STATUSES
    engine = ScriptedEngine(default='{"label":"b","score":2}')
    run_partitions(
        database, engine, make_inputs(make_task(tmp_path, prompts={"v1": "Edited: {{ text }}"}), "b1", records)
    )
    assert len(engine.asked) == 7
    assert {r["payload"]["label"] for i, r in load_rows(database).items() if i != "8"} == {"b"}
    engine = ScriptedEngine(default=BAD)
    (outcome,) = run_partitions(database, engine, before)
    assert (engine.asked, engine.opened) == ([], 0)
    assert load_statuses(database) == STATUSES
    assert outcome.state is not None
    assert first.state is not None
    assert outcome.state.data_version == first.state.data_version
    assert (outcome.tally.sent, outcome.tally.reused) == (0, 8)


def test_a_reverted_prompt_takes_a_records_ok_answer_over_a_later_worse_one(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    before = make_inputs(make_task(tmp_path), "b1", records)
    run_partitions(database, ScriptedEngine(), before)
    run_partitions(database, ScriptedEngine(default=BAD), before, retry=RetryMode.ALL)
    run_partitions(
        database, ScriptedEngine(), make_inputs(make_task(tmp_path, prompts={"v1": "E: {{ text }}"}), "b1", records)
    )
    engine = ScriptedEngine()
    run_partitions(database, engine, before)
    assert engine.asked == []
    assert load_statuses(database) == {"1": "ok"}


def test_an_error_that_may_pass_is_tried_again_after_a_revert(database: Database, tmp_path: Path) -> None:
    records = make_records(["1"])
    before = make_inputs(make_task(tmp_path), "b1", records)
    run_partitions(database, ScriptedEngine(default=pass_later()), before)
    run_partitions(
        database, ScriptedEngine(), make_inputs(make_task(tmp_path, prompts={"v1": "E: {{ text }}"}), "b1", records)
    )
    engine = ScriptedEngine()
    run_partitions(database, engine, before)
    assert engine.asked == ["text of 1"]


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(temperature=0.5)},
        {"engine_args": {"latency_s": 0.001}},
        {"revision": "2"},
        {"weights": "others"},
    ],
)
def test_a_change_of_the_model_asks_everything_again(
    database: Database, tmp_path: Path, change: dict[str, object]
) -> None:
    records = make_records(["1", "2"])
    run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", records))
    engine = ScriptedEngine()
    changed = make_task(tmp_path, models=[make_model(**change)])
    run_partitions(database, engine, make_inputs(changed, "b1", records))
    assert len(engine.asked) == 2


# Changed rules


def test_rules_alone_are_judged_again_from_stored_answers_both_ways(database: Database, tmp_path: Path) -> None:
    records = make_records({**IN_HISTORY, "9": "of label b"})
    script = {**HISTORY, "of label b": '{"label":"b","score":1}'}
    plain = make_inputs(make_task(tmp_path), "b1", records)
    (first,) = run_partitions(database, ScriptedEngine(script), plain)
    strict = make_inputs(make_task(tmp_path, rules=[refuse_a]), "b1", records)
    assert strict.spec.request_spec == plain.spec.request_spec
    engine = ScriptedEngine()
    (second,) = run_partitions(database, engine, strict)
    assert (engine.asked, engine.opened) == ([], 0)
    expected = {i: "invalid/rule" if s == "ok" else s for i, s in STATUSES.items()}
    assert load_statuses(database) == {**expected, "9": "ok"}
    assert (second.tally.rejudged, second.tally.already_done, second.tally.sent) == (10, 10, 0)
    engine = ScriptedEngine()
    (third,) = run_partitions(database, engine, plain)
    assert engine.asked == []
    assert load_statuses(database) == {**STATUSES, "9": "ok"}
    assert first.state is not None
    assert third.state is not None
    assert third.state.data_version == first.state.data_version


def test_judging_again_leaves_everything_else_of_a_row_as_it_was(database: Database, tmp_path: Path) -> None:
    records = make_records({"1": "same", "2": "same"})
    run_partitions(
        database, ScriptedEngine({"same": [pass_later(), GOOD]}), make_inputs(make_task(tmp_path), "b1", records)
    )
    before = load_rows(database)
    run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path, rules=[refuse_a]), "b1", records))
    kept = ("attempts", "attempt_id", "reused_from", "request_key", "input_hash", "request_spec", "batch")
    for item_id, row in load_rows(database).items():
        assert row["error"] == "refuse_a: a is not wanted"
        assert [row[name] for name in kept] == [before[item_id][name] for name in kept]


def test_an_answer_that_is_lost_is_asked_again_and_doesnt_pass_as_judged(database: Database, tmp_path: Path) -> None:
    records = make_records(["1", "2"])
    run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", records))
    with database.write() as connection:
        connection.execute(sa.delete(attempts).where(attempts.c.item_id == "1"))
    engine = ScriptedEngine()
    run_partitions(database, engine, make_inputs(make_task(tmp_path, rules_version="2"), "b1", records))
    assert engine.asked == ["text of 1"]
    assert {i: r["payload"] for i, r in load_rows(database).items()} == {
        "1": {"label": "a", "score": 1}, "2": {"label": "a", "score": 1},
    }  # fmt: skip


def test_an_ok_that_the_new_rules_accept_survives_a_worse_answer_to_a_retry_of_all(
    database: Database, tmp_path: Path
) -> None:
    records = make_records(["1"])
    run_partitions(database, ScriptedEngine(), make_inputs(make_task(tmp_path), "b1", records))
    changed = make_inputs(make_task(tmp_path, rules_version="2"), "b1", records)
    engine = ScriptedEngine(default=BAD)
    run_partitions(database, engine, changed, retry=RetryMode.ALL)
    assert engine.asked == ["text of 1"]
    row = load_rows(database)["1"]
    assert (row["status"], row["accept_spec"]) == ("ok", changed.spec.accept_spec)


# Records that belong elsewhere


def test_a_superseded_record_is_skipped_and_counted(database: Database, tmp_path: Path) -> None:
    from batch_assets.store.batches import freeze_batch

    task = make_task(tmp_path)
    with database.write() as connection:
        for batch, ids in (("b1", ["1", "2"]), ("b2", ["2", "3"])):
            freeze_batch(connection, "t", batch, change_token="", source_hash=batch, item_ids=ids, malformed=[])
    engine = ScriptedEngine()
    first = make_inputs(task, "b1", make_records(["1", "2"]))
    second = make_inputs(task, "b2", make_records({"2": "newer text", "3": "text of 3"}))
    outcomes = run_partitions(database, engine, first, second)
    assert engine.asked == ["text of 1", "newer text", "text of 3"]
    assert [o.tally.superseded for o in outcomes] == [1, 0]
    assert [o.state.counts["ok"] for o in outcomes if o.state] == [1, 2]
    assert {i: r["batch"] for i, r in load_rows(database).items()} == {"1": "b1", "2": "b2", "3": "b2"}


def test_a_record_that_moves_to_a_later_batch_during_a_run_ends_up_there(database: Database, tmp_path: Path) -> None:
    from batch_assets.store.batches import freeze_batch

    task = make_task(tmp_path)

    def freeze(batch: str, *ids: str) -> None:
        with database.write() as connection:
            freeze_batch(connection, "t", batch, change_token="", source_hash=batch, item_ids=list(ids), malformed=[])

    freeze("b1", "1", "2")
    engine = ScriptedEngine({"text of 2": Hang()})

    def meanwhile(text: str) -> None:
        if text == "text of 2":
            freeze("b2", "2")
            engine.release()

    engine.on_request = meanwhile
    (outcome,) = run_partitions(database, engine, make_inputs(task, "b1", make_records(["1", "2"])))
    assert outcome.state is not None
    assert outcome.state.counts["ok"] == 1
    assert {i: r["batch"] for i, r in load_rows(database).items()} == {"1": "b1", "2": "b2"}


def test_a_request_key_names_the_question_and_not_the_record(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    one, two = make_records({"1": "same", "2": "same"})
    inputs = make_inputs(task, "b1", [one, two])
    assert find_key(inputs, one) == find_key(make_inputs(task, "b2", [two]), two)
    assert task.output is Answer
