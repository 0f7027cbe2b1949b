"""Laws of the runner, whatever the engine does: all records accounted for, nothing paid for twice. On SQLite."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from factories import (
    BAD,
    GOOD,
    ScriptedEngine,
    Step,
    fail_for_good,
    load_open_claims,
    load_rows,
    load_tries,
    make_completion,
    make_inputs,
    make_records,
    make_task,
    pass_later,
    run_partitions,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import EngineDead
from batch_assets.core.tasks import Task
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.database import Database, open_database

STEPS: Sequence[Step] = (
    GOOD,
    '{"label":"b","score":2}',
    BAD,
    "",
    "{",
    make_completion(GOOD, "length"),
    pass_later("timeout"),
    pass_later("connection"),
    fail_for_good("context_length"),
    fail_for_good("bad_request"),
)
TEXTS = ["", "one", "two", "three", "four", "five", "six"]
scripts = st.dictionaries(st.sampled_from(TEXTS), st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
batches = st.lists(st.lists(st.sampled_from(TEXTS), max_size=8), min_size=1, max_size=3)
few = settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("prompts"))


@contextmanager
def new_database(template: Path) -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        shutil.copyfile(template, path)
        database = open_database(f"sqlite:///{path}")
        yield database
        database.close()


def make_works(task: Task, texts: list[list[str]], chunk: int) -> list[PartitionInputs]:
    batches = [{f"b{n}r{i}": text for i, text in enumerate(batch)} for n, batch in enumerate(texts)]
    return [make_inputs(task, f"b{n}", make_records(b), chunk=chunk) for n, b in enumerate(batches)]


@few
@given(scripts, batches, st.integers(1, 6), st.integers(1, 7))
def test_every_record_has_one_state_and_a_second_run_sends_nothing(
    sqlite_template: Path, task: Task, script: dict[str, list[Step]], texts: list[list[str]], window: int, chunk: int
) -> None:
    all_inputs = make_works(task, texts, chunk)
    records = sum(len(batch) for batch in texts)
    with new_database(sqlite_template) as database:
        engine = ScriptedEngine(script)
        outcomes = run_partitions(database, engine, *all_inputs, max_in_flight=window, outage_s=1e9)
        rows = load_rows(database)
        assert len(rows) == records
        assert [sum(o.state.counts[s] for s in ("ok", "invalid", "error")) for o in outcomes if o.state] == [
            len(texts[int(o.inputs.batch[1:])]) for o in outcomes
        ]
        assert sum(o.tally.ok + o.tally.invalid + o.tally.error for o in outcomes) == records
        assert sum(o.tally.sent for o in outcomes) == len(engine.asked) == len(load_tries(database))
        assert engine.most_in_flight <= window
        assert load_open_claims(database) == []
        assert all(
            (r["status"] == "ok") == (r["payload"] is not None) == (r["error_kind"] is None) for r in rows.values()
        )
        again = ScriptedEngine(script)
        second = run_partitions(database, again, *all_inputs)
        assert (again.asked, again.opened) == ([], 0)
        assert load_rows(database) == rows
        assert {o.inputs.batch: o.state.data_version for o in second if o.state} == {
            o.inputs.batch: o.state.data_version for o in outcomes if o.state
        }
        run_partitions(database, ScriptedEngine(), *all_inputs, retry=RetryMode.FAILED)
        statuses = Counter(r["status"] for r in load_rows(database).values())
        empty = sum(text == "" for batch in texts for text in batch)
        assert (statuses["ok"], statuses["error"]) == (records - empty, empty)


@few
@given(scripts, batches, st.integers(1, 6), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4))
def test_a_run_that_is_stopped_at_any_request_goes_on_from_there(
    sqlite_template: Path,
    task: Task,
    script: dict[str, list[Step]],
    texts: list[list[str]],
    window: int,
    stops: list[tuple[int, bool]],
) -> None:
    all_inputs = make_works(task, texts, 3)
    engine = ScriptedEngine(script)
    stop_at, is_death = 0, False

    def stop(_text: str) -> None:
        if stop_at and len(engine.asked) >= stop_at:
            raise EngineDead("stopped", took_requests_down=is_death)

    engine.on_request = stop
    with new_database(sqlite_template) as database:
        for after, is_blamed in [*stops, (0, False)]:
            stop_at, is_death = len(engine.asked) + after if after else 0, is_blamed
            try:
                run_partitions(database, engine, *all_inputs, max_in_flight=window, outage_s=1e9)
            except EngineDead:
                assert after
        rows = load_rows(database)
        assert len(rows) == sum(len(batch) for batch in texts)
        assert len(engine.asked) == len(load_tries(database))


@few
@example({}, [[], ["one", "one"]], 1, 1)
@given(scripts, batches, st.integers(1, 6), st.integers(1, 7))
def test_no_question_is_paid_for_twice(
    sqlite_template: Path, task: Task, script: dict[str, list[Step]], texts: list[list[str]], window: int, chunk: int
) -> None:
    with new_database(sqlite_template) as database:
        run_partitions(database, ScriptedEngine(script), *make_works(task, texts, chunk), max_in_flight=window)
        accepted = Counter(t["request_key"] for t in load_tries(database) if t["outcome"] == "ok")
        assert set(accepted.values()) <= {1}
