"""Result rows and attempts: what replaces what, what is written together, what is found again."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from factories import (
    GOOD,
    KEY,
    load_rows,
    load_tries,
    make_claim,
    make_completion,
    make_ending,
    make_result,
    write_rows,
)
from pydantic import BaseModel

from batch_assets.core.acceptance import accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import MAX_COMPLETION_CHARACTERS, Completion, Usage
from batch_assets.core.tasks import Task
from batch_assets.store.batches import freeze_batch
from batch_assets.store.database import Database, now
from batch_assets.store.partitions import finish_partition, load_partition, load_partitions
from batch_assets.store.results import (
    MAX_IN_LIST,
    VariantKey,
    find_answers,
    load_attempts,
    load_foreign,
    load_history,
    load_states,
)
from batch_assets.store.tables import results


def finish(database: Database, batch: str = "b1", run_id: str = "run") -> Any:
    with database.write() as connection:
        return finish_partition(connection, KEY, batch, "v1--m1", fingerprint="f", parts={"p": "q"}, run_id=run_id)


def freeze(database: Database, batch: str, *item_ids: str) -> set[str]:
    with database.write() as connection:
        return freeze_batch(
            connection, "t", batch, change_token="s", source_hash="h", item_ids=list(item_ids), malformed=[]
        )[1]


# What replaces what


@pytest.mark.parametrize("new", [Status.INVALID, Status.ERROR])
def test_an_ok_never_becomes_anything_else_under_equal_hashes(database: Database, new: Status) -> None:
    write_rows(database, rows=[make_result(payload={"label": "first"})])
    write_rows(database, rows=[make_result(status=new)])
    row = load_rows(database)["1"]
    assert (row["status"], row["payload"], row["error_kind"]) == ("ok", {"label": "first"}, None)


@pytest.mark.parametrize("new", list(Status))
@pytest.mark.parametrize("which", ["input_hash", "request_spec", "accept_spec"])
def test_an_ok_is_replaced_by_anything_when_a_hash_differs(database: Database, which: str, new: Status) -> None:
    write_rows(database, rows=[make_result()])
    write_rows(database, rows=[make_result(status=new, **{which: "other"})])
    row = load_rows(database)["1"]
    assert (row["status"], row[which]) == (new, "other")


def test_an_ok_replaces_an_ok(database: Database) -> None:
    write_rows(database, rows=[make_result(payload={"label": "first"})])
    write_rows(database, rows=[make_result(payload={"label": "second"}, attempt_id="y", attempts=2)])
    row = load_rows(database)["1"]
    assert (row["payload"], row["attempt_id"], row["attempts"]) == ({"label": "second"}, "y", 2)


@pytest.mark.parametrize("old", [Status.INVALID, Status.ERROR])
@pytest.mark.parametrize("new", list(Status))
def test_what_is_not_ok_is_replaced_by_anything(database: Database, old: Status, new: Status) -> None:
    write_rows(database, rows=[make_result(status=old, error="old")])
    write_rows(database, rows=[make_result(status=new, attempts=2)])
    row = load_rows(database)["1"]
    assert (row["status"], row["attempts"]) == (new, 2)
    assert row["error"] != "old"


@pytest.mark.parametrize(("old", "new", "kept"), [(False, True, False), (True, False, False), (True, True, True)])
def test_an_own_row_never_becomes_a_fallbacks_and_a_fallbacks_becomes_an_own_one(
    database: Database, old: bool, new: bool, kept: bool
) -> None:
    write_rows(database, rows=[make_result(is_fallback=old)])
    write_rows(database, rows=[make_result(is_fallback=new, input_hash="i2")])
    row = load_rows(database)["1"]
    assert (row["is_fallback"], row["input_hash"]) == (kept, "i2")


def test_every_column_of_a_replaced_row_is_new(database: Database) -> None:
    write_rows(database, rows=[make_result(status=Status.ERROR)])
    new = make_result(
        payload={"n": [1, 2.5, None, "é"]}, input_hash="i2", request_spec="r2", accept_spec="a2", request_key="k2",
        attempt_id="x2", reused_from="x2", run_id="run2", attempts=7, batch="b2",
        ladder_step=1, updated_at=now() + dt.timedelta(days=1),
    )  # fmt: skip
    write_rows(database, rows=[new])
    row = dict(load_rows(database)["1"])
    assert row == {
        "task": "t", "prompt_ver": "v1", "model_id": "m1",
        **{name: getattr(new, name) for name in new.__slots__ if name not in {"key", "owner"}},
    }  # fmt: skip


def test_a_row_that_comes_twice_in_one_group_obeys_the_same_condition(database: Database) -> None:
    write_rows(database, rows=[make_result("1", Status.ERROR), make_result("2"), make_result("1"), make_result("2")])
    write_rows(database, rows=[make_result("3"), make_result("3", Status.INVALID)])
    assert {i: r["status"] for i, r in load_rows(database).items()} == {"1": "ok", "2": "ok", "3": "ok"}


def test_other_variants_rows_are_never_touched(database: Database) -> None:
    others = [replace(KEY, task="t2"), replace(KEY, prompt_ver="v2"), replace(KEY, model_id="m2")]
    write_rows(database, rows=[make_result(key=key, payload={"label": "other"}) for key in others])
    write_rows(database, rows=[make_result(input_hash="new")])
    with database.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(results)) == 4
        for key in others:
            assert load_states(connection, key, ["1"])["1"].input_hash == "i"


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "pending"},
        {"status": Status.OK, "error_kind": ErrorKind.SCHEMA},
        {"status": Status.INVALID, "error_kind": None},
    ],
)
def test_the_database_refuses_a_row_whose_status_and_reason_disagree(database: Database, wrong: dict[str, Any]) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        write_rows(database, rows=[replace(make_result(), **wrong)])


# What is written together


def test_a_bad_row_rolls_its_whole_group_back(database: Database) -> None:
    before = make_claim("1")
    write_rows(database, claims=[before])
    with pytest.raises(sa.exc.SQLAlchemyError):
        write_rows(
            database,
            endings=[make_ending(before)],
            rows=[make_result("1"), replace(make_result("2"), status="pending")],
            claims=[make_claim("3")],
        )
    assert load_rows(database) == {}
    assert [(t["item_id"], t["ended_at"]) for t in load_tries(database)] == [("1", None)]


def test_a_claim_that_cant_be_written_rolls_rows_back_as_well(database: Database) -> None:
    claim = make_claim("1")
    write_rows(database, claims=[claim])
    with pytest.raises(sa.exc.IntegrityError):
        write_rows(database, rows=[make_result("1")], claims=[claim])
    assert load_rows(database) == {}


def test_a_claim_has_no_end_until_it_is_written(database: Database) -> None:
    claim = make_claim("1", attempt=3, is_alone=True)
    write_rows(database, claims=[claim])
    with database.read() as connection:
        (past,) = load_history(connection, KEY, ["1"])["1"]
    assert (past.is_ended, past.is_alone, past.attempt, past.completion) == (False, True, 3, None)
    done = make_completion(usage=Usage(prompt_tokens=7, completion_tokens=None, cached_tokens=0))
    write_rows(database, endings=[make_ending(claim, completion=done, engine_s=0.25)])
    with database.read() as connection:
        (past,) = load_history(connection, KEY, ["1"])["1"]
    assert (past.is_ended, past.outcome, past.completion) == (True, "ok", done)
    (row,) = load_tries(database)
    assert (row["engine_s"], row["parameters"]) == (0.25, {"temperature": 0.5})


class Label(BaseModel):
    label: str


HOSTILE = ["a\x00b", "half \ud83d of a pair", "\udc00", "\x00", "é\x00\ud800", "\ufffe\uffff", "🏦"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_that_no_database_keeps_doesnt_break_its_neighbours(database: Database, text: str) -> None:
    claims = [make_claim(i) for i in "123"]
    write_rows(database, claims=claims)
    write_rows(
        database,
        endings=[
            make_ending(claims[0]),
            make_ending(
                claims[1], "invalid", completion=make_completion(text, reasoning=text, refusal=text), error=text
            ),
            make_ending(claims[2], "error", error=text, error_kind=ErrorKind.SERVER_ERROR),
        ],
        rows=[make_result("1"), make_result("2", Status.INVALID, error=text), make_result("3")],
    )
    assert sorted(load_rows(database)) == ["1", "2", "3"]
    tries = {t["item_id"]: t for t in load_tries(database)}
    assert all(t["ended_at"] for t in tries.values())
    shown = text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()
    assert tries["2"]["completion"] == tries["2"]["error"] == tries["3"]["error"] == shown
    assert tries["2"]["reasoning"] == tries["2"]["refusal"] == shown
    assert load_rows(database)["2"]["error"] == shown


@pytest.mark.parametrize(
    "done",
    [
        make_completion('{"label":"a\\\0"}'),
        make_completion('{"label":"\0"}'),
        make_completion('{"label":"a"}\ud800'),
        make_completion('{"label":"a"}'.ljust(MAX_COMPLETION_CHARACTERS + 1)),
        make_completion('<think>\0</think>```json\n{"label":"a"}\n```', reasoning="\ud800"),
        make_completion("", reasoning="\0"),
        make_completion('{"label":"a"}', refusal="\ud800 no"),
        make_completion('{"label":"a"}', "stop\0"),
        make_completion('{"label":"a"}', "\ud800" * 50),
    ],
    ids=["backslash", "nul", "surrogate", "cap", "wrapped", "reasoning", "refusal", "reason", "long reason"],
)
def test_an_answer_from_the_store_gets_the_verdict_that_it_had(database: Database, done: Completion) -> None:
    task = Task(name="t", output=Label, prompts={}, models={})
    claim = make_claim("1")
    write_rows(database, claims=[claim])
    write_rows(database, endings=[make_ending(claim, "invalid", completion=done)])
    with database.read() as connection:
        (past,) = load_history(connection, KEY, ["1"])["1"]
    assert past.completion is not None
    assert accept(past.completion, task) == accept(done, task)


@pytest.mark.parametrize("finish_reason", ["x" * 500, "sto\x00p", "\ud800", ""])
def test_a_servers_odd_finish_reason_doesnt_break_its_neighbours(database: Database, finish_reason: str) -> None:
    claims = [make_claim("1"), make_claim("2")]
    write_rows(database, claims=claims)
    odd = make_ending(claims[0], "invalid", completion=make_completion(GOOD, finish_reason))
    write_rows(database, endings=[odd, make_ending(claims[1])], rows=[make_result("1"), make_result("2")])
    assert all(t["ended_at"] for t in load_tries(database))
    assert load_tries(database, "1")[0]["finish_reason"] != "stop"


def test_a_servers_impossible_token_count_is_unknown_and_doesnt_break_its_neighbours(database: Database) -> None:
    claims = [make_claim("1"), make_claim("2")]
    write_rows(database, claims=claims)
    usage = Usage(prompt_tokens=2**40, completion_tokens=2**31 - 1, cached_tokens=-1)
    write_rows(
        database, endings=[make_ending(claims[0], completion=make_completion(usage=usage)), make_ending(claims[1])]
    )
    odd = load_tries(database, "1")[0]
    assert (odd["prompt_tokens"], odd["completion_tokens"], odd["cached_tokens"]) == (None, 2**31 - 1, None)


def test_a_completion_of_megabytes_is_cut_and_still_counts_as_an_answer(database: Database) -> None:
    claim = make_claim("1")
    write_rows(database, claims=[claim])
    write_rows(database, endings=[make_ending(claim, "invalid", completion=make_completion("é" * 1_500_000))])
    assert len(load_tries(database)[0]["completion"]) == 1_000_000


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"n": 0.1},
        {"n": -0.0},
        {"n": 2.0},
        {"n": [2**63 - 1, -(2**63)]},
        {"n": [1e16, 1e23, -1e23, 1.7976931348623157e308, 5e-324]},
        {"t": "é\u2028🏦\\u0000"},
        {"x": {"y": [None, True]}},
    ],
)
def test_a_payload_comes_back_as_it_was(database: Database, payload: dict[str, Any]) -> None:
    write_rows(database, rows=[make_result(payload=payload)])
    assert load_rows(database)["1"]["payload"] == payload


# What is found again


def test_the_state_of_a_row_says_how_it_was_made(database: Database) -> None:
    write_rows(database, rows=[make_result("1"), make_result("2", Status.ERROR, request_key=None, attempt_id=None)])
    with database.read() as connection:
        states = load_states(connection, KEY, ["1", "2", "3"])
    assert sorted(states) == ["1", "2"]
    assert (states["1"].status, states["1"].error_kind, states["1"].request_key) == (Status.OK, None, "k")
    assert (states["2"].status, states["2"].error_kind, states["2"].error) == (Status.ERROR, ErrorKind.TIMEOUT, "why")


def test_more_records_than_fit_into_one_list_are_all_found(database: Database) -> None:
    ids = [f"{n:05d}" for n in range(2 * MAX_IN_LIST + 1)]
    claims = [make_claim(i) for i in ids]
    write_rows(database, rows=[make_result(i) for i in ids], claims=claims)
    write_rows(database, endings=[make_ending(c) for c in claims])
    freeze(database, "b9", *ids)
    with database.read() as connection:
        assert sorted(load_states(connection, KEY, ids)) == ids
        assert sorted(load_history(connection, KEY, ids)) == ids
        assert len(find_answers(connection, [c.request_key for c in claims])) == len(ids)
        assert len(load_attempts(connection, (c.attempt_id for c in claims))) == len(ids)
        assert len(load_foreign(connection, "t", "b1", ids)) == len(ids)


def test_history_is_a_records_own_for_one_variant_oldest_first(database: Database) -> None:
    mine = [make_claim("1", attempt=n) for n in (1, 2, 3)]
    others = [make_claim("2"), make_claim("1", key=replace(KEY, prompt_ver="v2"))]
    write_rows(database, claims=[mine[2], *others, mine[0], mine[1]])
    with database.read() as connection:
        found = load_history(connection, KEY, ["1"])
    assert list(found) == ["1"]
    assert [a.attempt_id for a in found["1"]] == [c.attempt_id for c in mine]


def test_the_newest_ok_answer_of_a_key_is_found_whoever_asked(database: Database) -> None:
    first = make_claim("1", request_key="k")
    second = make_claim("9", request_key="k", key=VariantKey(task="t2", prompt_ver="x", model_id="y"), batch="b7")
    later = [make_claim("1", request_key="k") for _ in range(3)]
    unrelated = make_claim("1", request_key="k2")
    write_rows(database, claims=[first, second, *later, unrelated])
    write_rows(
        database,
        endings=[
            make_ending(first, completion=make_completion("first")),
            make_ending(second, completion=make_completion("second")),
            make_ending(later[0], "invalid"),
            make_ending(later[1], "error", error_kind=ErrorKind.TIMEOUT),
            make_ending(unrelated, "invalid"),
        ],
    )
    with database.read() as connection:
        found = find_answers(connection, ["k", "k2", "k3"])
    assert list(found) == ["k"]
    assert found["k"].completion is not None
    assert found["k"].completion.text == "second"


def test_an_attempt_that_was_given_back_is_ended_and_is_no_answer(database: Database) -> None:
    claim = make_claim("1", request_key="k")
    write_rows(database, claims=[claim])
    write_rows(database, endings=[make_ending(claim, "released")])
    with database.read() as connection:
        (past,) = load_history(connection, KEY, ["1"])["1"]
        assert (past.is_ended, past.outcome, past.completion) == (True, "released", None)
        assert find_answers(connection, ["k"]) == {}


def test_a_record_that_another_batch_owns_is_foreign(database: Database) -> None:
    freeze(database, "b1", "1", "2", "3")
    freeze(database, "b2", "2")
    with database.read() as connection:
        assert load_foreign(connection, "t", "b1", ["1", "2", "3", "unheard of"]) == {"2"}
        assert load_foreign(connection, "t", "b2", ["1", "2"]) == {"1"}
        assert load_foreign(connection, "another task", "b2", ["1", "2"]) == set()


# Finishing a partition


def test_a_finished_partition_counts_its_own_rows(database: Database) -> None:
    write_rows(
        database,
        rows=[
            make_result("1"),
            make_result("2", reused_from="x"),
            make_result("3", Status.INVALID),
            make_result("4", Status.ERROR),
            make_result("5", batch="b2"),
            make_result("6", key=replace(KEY, prompt_ver="v2")),
        ],
    )
    state = finish(database)
    assert state.counts == {"ok": 2, "invalid": 1, "error": 1, "reused": 1}
    assert (state.fingerprint, state.parts, state.run_id) == ("f", {"p": "q"}, "run")
    assert state.finished_at.tzinfo == dt.UTC
    assert state.data_version == f"f.{state.content}"
    with database.read() as connection:
        assert load_partition(connection, "t", "b1", "v1--m1") == state
        assert load_partitions(connection, "t") == {("b1", "v1--m1"): state}


def test_finishing_again_replaces_and_doesnt_add(database: Database) -> None:
    write_rows(database, rows=[make_result("1")])
    first = finish(database, run_id="first")
    second = finish(database, run_id="second")
    assert (first.content, second.run_id) == (second.content, "second")
    with database.read() as connection:
        assert load_partitions(connection, "t") == {("b1", "v1--m1"): second}


def test_an_empty_partition_can_be_finished(database: Database) -> None:
    assert finish(database).counts == {"ok": 0, "invalid": 0, "error": 0, "reused": 0}


def test_content_doesnt_depend_on_the_order_in_which_rows_came(database: Database) -> None:
    rows = [make_result(i, payload={"label": i, "z": 1, "a": 2}) for i in ("1", "10", "2", "é", "B", "a")]
    write_rows(database, rows=rows)
    first = finish(database).content
    with database.write() as connection:
        connection.execute(sa.delete(results))
    for row in reversed(rows):
        write_rows(database, rows=[replace(row, payload=dict(reversed(row.payload.items())), updated_at=now())])
    assert finish(database).content == first


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"label": "b"}},
        {"item_id": "7"},
        {"status": Status.INVALID, "payload": None, "error_kind": ErrorKind.SCHEMA},
        {"status": Status.INVALID, "payload": None, "error_kind": ErrorKind.RULE},
    ],
)
def test_content_changes_with_what_a_row_says(database: Database, change: dict[str, Any]) -> None:
    write_rows(database, rows=[make_result("0"), make_result("1")])
    before = finish(database).content
    with database.write() as connection:
        connection.execute(sa.update(results).where(results.c.item_id == "1").values(**change))
    assert finish(database).content != before


def test_content_doesnt_change_with_how_a_row_was_made(database: Database) -> None:
    write_rows(database, rows=[make_result("1")])
    before = finish(database).content
    write_rows(database, rows=[make_result("1", attempts=9, run_id="other", attempt_id="z", reused_from="y")])
    assert finish(database).content == before


def test_finishing_puts_a_row_where_its_record_is_owned(database: Database) -> None:
    # A batch was frozen anew while a run that had read it before was writing rows.
    freeze(database, "b1", "1", "2")
    freeze(database, "b2", "2", "3")
    write_rows(database, rows=[make_result("1"), make_result("2"), make_result("3", batch="b2")])
    assert finish(database, "b2").counts["ok"] == 2
    write_rows(database, rows=[make_result("2", attempts=2)])
    assert finish(database, "b1").counts["ok"] == 1
    assert finish(database, "b2").counts["ok"] == 2
    assert {i: r["batch"] for i, r in load_rows(database).items()} == {"1": "b1", "2": "b2", "3": "b2"}


def test_finishing_lets_go_of_rows_that_this_run_wrote_for_a_record_that_left_the_source(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    assert freeze(database, "b1", "1") == {"2"}
    write_rows(
        database, rows=[make_result("1"), make_result("2", run_id="this"), make_result("stray", run_id="another")]
    )
    assert finish(database, run_id="this").counts["ok"] == 2
    assert {i: r["batch"] for i, r in load_rows(database).items()} == {"1": "b1", "2": None, "stray": "b1"}


@pytest.mark.parametrize(
    "name", ["'; DELETE FROM x; --", "it's", 'say "so"', "100 % %s %(a)s", ":a ? $1", "a\\'b", "`x`"]
)
def test_what_looks_like_sql_is_text_wherever_it_stands(database: Database, name: str) -> None:
    key = VariantKey(task=name, prompt_ver=name, model_id=name)
    claim = make_claim(name, key=key, batch=name, request_key=name, run_id=name)
    result = make_result(name, key=key, batch=name, request_key=name, payload={"label": name}, run_id=name)
    write_rows(database, claims=[claim])
    write_rows(database, endings=[make_ending(claim, error=name)], rows=[result, make_result("other")])
    with database.read() as connection:
        assert list(load_states(connection, key, [name])) == [name]
        assert [a.error for a in load_history(connection, key, [name])[name]] == [name]
        assert list(find_answers(connection, [name], name)) == [name]
        assert load_foreign(connection, name, name, [name]) == set()
        assert connection.scalar(sa.select(sa.func.count()).select_from(results)) == 2
