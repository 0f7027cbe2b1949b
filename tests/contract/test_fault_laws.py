"""Laws that hold whatever fails: no record lost, no false `ok`, nothing asked again that is done. On SQLite."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from factories import (
    GOOD,
    Answer,
    ScriptedEngine,
    Step,
    fail_for_good,
    load_open_claims,
    load_rows,
    load_statuses,
    load_tries,
    make_completion,
    make_ids,
    make_inputs,
    make_records,
    make_task,
    pass_later,
    run_partitions,
)
from hypothesis import given
from hypothesis import strategies as st
from test_runner_laws import few, new_database

from batch_assets.core.attempts import ErrorKind, Ladder, RetryMode
from batch_assets.core.errors import EngineDead
from batch_assets.core.tasks import Task, Thresholds
from batch_assets.run.circuit_breaker import MAX_TRIES
from batch_assets.store.database import Database

PASSING = ("timeout", "rate_limited", "server_error", "connection", "bad_response")
FOR_GOOD = ("context_length", "bad_request", "refused")
ANSWERS = (
    GOOD,
    '{"label":"b","score":-3}',
    '{"label":"z","score":1}',
    '{"label":"a","score":1e400}',
    '{"label":"a","score":NaN}',
    '{"label":"a","label":"b","score":1}',
    f"Sure: {GOOD}",
    f"```json\n{GOOD}\n```",
    f"[{GOOD}]",
    GOOD[:-1],
    "   ",
    "null",
)
faults = (
    st.sampled_from([pass_later(kind) for kind in PASSING])
    | st.sampled_from([fail_for_good(kind) for kind in FOR_GOOD])
    | st.builds(make_completion, st.sampled_from(ANSWERS), st.sampled_from(["stop", "length", "content_filter", None]))
    | st.builds(make_completion, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    | st.just(GOOD)
)
deaths = st.just(EngineDead("HTTP 401: the key was refused"))
IDS = make_ids(12)


@pytest.fixture(scope="module", params=[0, 2], ids=["no ladder", "ladder"])
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    ladder = Ladder(steps=request.param, feeds_back=False)
    return make_task(
        tmp_path_factory.mktemp("prompts"), thresholds=Thresholds(stop_early=False), ladder=ladder
    )  # fmt: skip


@few
@given(
    st.dictionaries(st.sampled_from(IDS), st.lists(faults, min_size=1, max_size=5)),
    st.dictionaries(st.sampled_from(IDS), deaths, max_size=2),
    st.integers(1, 8),
)
def test_each_record_ends_in_one_state_and_an_ok_is_one_and_what_is_done_is_done(
    sqlite_template: Path, task: Task, script: dict[str, list[Step]], dead: dict[str, Step], window: int
) -> None:
    steps: dict[str, Sequence[Step] | Step] = {f"text of {i}": s for i, s in {**script, **dead}.items()}
    inputs = make_inputs(task, "b1", make_records(IDS))
    with new_database(sqlite_template) as database:
        try:
            run_partitions(database, ScriptedEngine(steps), inputs, max_in_flight=window, outage_s=1e9)
        except EngineDead:
            assert dead, "nothing else stops a run here"
        else:
            assert load_rows(database).keys() == set(IDS)
        rows = load_rows(database)
        for row in rows.values():
            assert (row["status"] == "ok") == (row["error_kind"] is None)
            if row["status"] == "ok":
                Answer.model_validate(row["payload"], strict=True)
            else:
                ErrorKind(row["error_kind"])  # or it raises: there are no others
        assert load_open_claims(database) == []
        tries = Counter(t["item_id"] for t in load_tries(database))
        assert max(tries.values(), default=0) <= MAX_TRIES * (1 + task.ladder.steps)
        assert all(row["ladder_step"] <= task.ladder.steps for row in rows.values())
        again = ScriptedEngine()
        run_partitions(database, again, inputs, max_in_flight=window)
        asked, pending = Counter(again.asked), set(IDS) - rows.keys()
        assert set(asked.values()) <= {1}
        assert asked.keys() <= {f"text of {i}" for i in pending}
        assert {i for i in pending if f"text of {i}" not in asked} <= tries.keys(), "an end that had arrived counts"
        after = load_rows(database)
        assert after.keys() == set(IDS)
        assert {i: after[i] for i in rows} == rows
        run_partitions(database, ScriptedEngine(), inputs, retry=RetryMode.FAILED)
        assert set(load_statuses(database).values()) == {"ok"}


def test_answers_in_reverse_order_reach_their_own_records(sqlite_database: Database, tmp_path: Path) -> None:
    script = {f"text of {i}": f'{{"label":"a","score":{n}}}' for n, i in enumerate(IDS)}
    engine = ScriptedEngine(script, reverse=6)
    run_partitions(sqlite_database, engine, make_inputs(make_task(tmp_path), "b1", make_records(IDS)), max_in_flight=6)
    assert engine.answered[:6] == sorted(engine.answered[:6], reverse=True)
    assert [row["payload"]["score"] for row in load_rows(sqlite_database).values()] == list(range(12))
