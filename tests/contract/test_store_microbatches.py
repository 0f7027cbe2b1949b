"""The store's side of microbatches: a row is in one, once; a batch is there whole or not at all."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from functools import partial

import pytest
import sqlalchemy as sa
from factories import HookedDatabase, run_at_once
from streams import count_batched, load_batches

from batch_assets.core.cursors import Cursor, Place, StreamRow, StreamState
from batch_assets.core.errors import StoreError
from batch_assets.core.names import check_key
from batch_assets.store.database import Database
from batch_assets.store.microbatches import MicrobatchLog
from batch_assets.store.tables import microbatches, streams

NOON = dt.datetime(2026, 11, 1, 12, 0, tzinfo=dt.UTC)


def rows(*ids: str, cursor: Cursor = 1) -> list[StreamRow]:
    return [StreamRow(i, cursor) for i in ids]


def form(
    database: Database,
    waiting: Sequence[StreamRow],
    late: Sequence[StreamRow] = (),
    *,
    size: int = 2,
    age_s: float = 60,
    at_s: float = 0,
    task: str = "t",
) -> tuple[str | None, list[str]]:
    """Form a batch at NOON + `at_s`; return its key and the ids that still wait."""
    now = NOON + dt.timedelta(seconds=at_s)
    batch, later, rest = MicrobatchLog(database, task).form(late, waiting, max_records=size, max_age_s=age_s, now=now)
    return batch, [row.item_id for row in (*later, *rest)]


def test_a_full_batch_is_formed_of_the_first_rows(database: Database) -> None:
    assert form(database, rows("b", "a", "c")) == ("20261101-000001", ["c"])
    log = MicrobatchLog(database, "t")
    assert log.batches() == [("20261101-000001", 2, NOON)]
    assert log.items("20261101-000001") == ["a", "b"]
    assert log.items("20261101-000002") == []


def test_keys_count_by_task_and_can_be_partition_keys(database: Database) -> None:
    keys = [form(database, rows(f"{n}"), size=1)[0] for n in range(3)]
    assert keys == ["20261101-000001", "20261101-000002", "20261101-000003"]
    assert form(database, rows("0"), size=1, task="other") == ("20261101-000001", [])
    assert form(database, rows("9"), size=1, at_s=43_200)[0] == "20261102-000004"
    for key in keys:
        assert key is not None
        check_key(key, "batch")


def test_the_day_of_a_key_is_that_of_utc(database: Database) -> None:
    west = dt.datetime(2026, 11, 1, 22, 0, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    batch, *_ = MicrobatchLog(database, "t").form([], rows("a"), max_records=1, max_age_s=0, now=west)
    assert batch == "20261102-000001"


def test_too_few_rows_wait_until_the_oldest_has_waited_long_enough(database: Database) -> None:
    log = MicrobatchLog(database, "t")
    assert form(database, rows("a"), size=3) == (None, ["a"])
    assert log.waiting_since() == NOON
    assert form(database, rows("a", "b"), size=3, at_s=59.9) == (None, ["a", "b"])
    assert log.waiting_since() == NOON
    assert form(database, rows("a", "b"), size=3, at_s=60) == ("20261101-000001", [])
    assert log.waiting_since() is None


def test_rows_that_a_batch_leaves_over_begin_to_wait_anew(database: Database) -> None:
    form(database, rows("a"))
    form(database, rows("a", "b", "c"), at_s=50)
    assert form(database, rows("c"), at_s=109) == (None, ["c"])
    assert form(database, rows("c"), at_s=110) == ("20261101-000002", [])


def test_waiting_ends_when_the_rows_are_gone(database: Database) -> None:
    form(database, rows("a"))
    assert form(database, [], at_s=50) == (None, [])
    assert form(database, rows("b"), at_s=100) == (None, ["b"])
    assert MicrobatchLog(database, "t").waiting_since() == NOON + dt.timedelta(seconds=100)


def test_no_age_means_no_waiting(database: Database) -> None:
    assert form(database, rows("a"), size=9, age_s=0) == ("20261101-000001", [])


def test_no_rows_make_no_batch_however_late_it_is(database: Database) -> None:
    assert form(database, [], age_s=0, at_s=1e6) == (None, [])
    assert load_batches(database) == {}


def test_a_row_is_batched_once_and_a_changed_one_again(database: Database) -> None:
    log = MicrobatchLog(database, "t")
    form(database, rows("a", "b"))
    assert log.find_unbatched([*rows("a", "b", "c"), *rows("a", cursor=2)]) == [*rows("c"), *rows("a", cursor=2)]
    assert form(database, rows("a", "b"), age_s=0) == (None, [])
    assert form(database, [*rows("a"), *rows("a", cursor=2)], age_s=0) == ("20261101-000002", [])
    assert load_batches(database) == {"20261101-000001": ["a", "b"], "20261101-000002": ["a"]}


def test_the_same_row_twice_in_one_call_is_one(database: Database) -> None:
    waiting = rows("a", "a", "a", "b", "a", "b", "c")
    assert MicrobatchLog(database, "t").find_unbatched(waiting) == rows("a", "b", "c")
    assert form(database, waiting) == ("20261101-000001", ["a", "b", "c"])
    assert form(database, waiting, age_s=0) == ("20261101-000002", [])
    assert load_batches(database) == {"20261101-000001": ["a", "b"], "20261101-000002": ["c"]}


def test_an_id_with_two_cursors_in_one_batch_is_one_record(database: Database) -> None:
    form(database, [*rows("a"), *rows("a", "b", cursor=2)], size=3)
    assert MicrobatchLog(database, "t").batches() == [("20261101-000001", 2, NOON)]
    assert load_batches(database) == {"20261101-000001": ["a", "b"]}


def test_tasks_know_nothing_of_each_other(database: Database) -> None:
    form(database, rows("a", "b"))
    assert form(database, rows("a", "b"), task="u") == ("20261101-000001", [])
    assert MicrobatchLog(database, "v").batches() == []
    assert MicrobatchLog(database, "v").state() == StreamState()


@pytest.mark.parametrize(
    "cursor",
    [
        -(2**63),
        2**63 - 1,
        0.1,
        Decimal("12345678901234567890.123456789"),
        "",
        "it's ünï",
        dt.date(2026, 11, 1),
        dt.datetime(2026, 11, 1, 9, 0, 0, 1),
        dt.datetime(2026, 11, 1, 9, 0, 0, 1, tzinfo=dt.UTC),
    ],
)
def test_a_position_comes_back_with_its_type(database: Database, cursor: Cursor) -> None:
    form(database, [StreamRow("a", cursor, "A")], size=1)
    found = MicrobatchLog(database, "t").state().position
    assert found == Place(cursor, "A")
    assert type(found.cursor) is type(cursor)


def test_the_position_is_the_last_fresh_row_of_a_batch_and_late_rows_go_first_and_do_not_move_it(
    database: Database,
) -> None:
    log = MicrobatchLog(database, "t")
    fresh = [*rows("a", cursor=9), *rows("b", cursor=10)]
    assert form(database, fresh, rows("late", cursor=2)) == ("20261101-000001", ["b"])
    assert log.state().position == Place(9)
    assert form(database, rows("b", cursor=10), rows("later", "last", cursor=1)) == ("20261101-000002", ["b"])
    assert log.state().position == Place(9)
    assert form(database, rows("b", cursor=10), rows("much later"), size=1) == ("20261101-000003", ["b"])
    assert form(database, [], rows("alone"), size=1) == ("20261101-000004", [])
    assert log.state().position == Place(9)


def test_a_sweep_is_remembered_unless_another_has_come_further(database: Database) -> None:
    log = MicrobatchLog(database, "t")
    form(database, [StreamRow("a", 1, 7)], size=1)
    began = log.state()
    half = StreamState(position=Place(1, 7), swept_from=1, swept_to=Place(1, 3))
    log.save_sweep(began, half)
    assert log.state() == half
    log.save_sweep(began, StreamState(position=Place(0), swept_from=0, swept_to=None))
    assert log.state() == half
    form(database, rows("b", cursor=2), size=1)
    assert log.state() == StreamState(position=Place(2), swept_from=1, swept_to=Place(1, 3))
    log.save_sweep(half, StreamState(position=Place(1, 7), swept_from=1, swept_to=None))
    assert log.state() == StreamState(position=Place(2), swept_from=1, swept_to=None)


def test_a_position_that_cannot_be_read_is_an_error(database: Database) -> None:
    for document in ({"position": "red"}, {"type": "integer", "value": "1"}, {}):
        with database.write() as connection:
            connection.execute(sa.delete(streams))
            connection.execute(sa.insert(streams).values(task="t", position=document))
        with pytest.raises(StoreError, match="the position of a stream can't be read"):
            MicrobatchLog(database, "t").state()


def test_a_batch_that_fails_before_its_commit_leaves_nothing(database: Database) -> None:
    def fail(_write: int) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        form(HookedDatabase(database, fail), rows("a", "b"))
    log = MicrobatchLog(database, "t")
    assert (log.batches(), log.state(), log.waiting_since()) == ([], StreamState(), None)
    assert count_batched(database) == {}
    assert form(database, rows("a", "b")) == ("20261101-000001", [])


def test_where_nothing_changed_nothing_is_written(database: Database) -> None:
    form(database, rows("a"))
    with database.read() as connection:
        before = connection.execute(sa.select(streams)).all()
    form(database, rows("a"), at_s=10)
    with database.read() as connection:
        assert connection.execute(sa.select(streams)).all() == before


def test_several_at_once_batch_each_row_once(database: Database) -> None:
    waiting = [StreamRow(f"r{n:03d}", n) for n in range(60)]

    def form_all() -> None:
        rest: Sequence[StreamRow] = waiting
        batch: str | None = ""
        log = MicrobatchLog(database, "t")
        while batch is not None:
            batch, _, rest = log.form([], rest, max_records=7, max_age_s=0, now=NOON)

    assert run_at_once(*[form_all] * 4) == []
    assert count_batched(database) == {row.identity: 1 for row in waiting}
    with database.read() as connection:
        assert connection.scalars(sa.select(microbatches.c.seq).order_by(microbatches.c.seq)).all() == list(
            range(1, 10)
        )


def test_several_tasks_at_once_do_not_mix(database: Database) -> None:
    calls = [partial(form, database, rows("a", "b", "c"), task=task) for task in ("t", "u", "v")]
    assert run_at_once(*calls) == []
    for task in ("t", "u", "v"):
        assert load_batches(database, task) == {"20261101-000001": ["a", "b"]}


def test_ids_of_any_text_are_kept(database: Database) -> None:
    ids = ["it's", "%s", "ünï 😀", "\x1fmark", "a\nb", "x" * 1000]
    form(database, rows(*ids), size=len(ids))
    assert set(load_batches(database)["20261101-000001"]) == set(ids)
    assert MicrobatchLog(database, "t").find_unbatched(rows(*ids)) == []


def test_a_thousand_rows_are_looked_up_and_written(database: Database) -> None:
    ids = [f"r{n:04d}" for n in range(1300)]
    assert form(database, rows(*ids), size=1200) == ("20261101-000001", ids[1200:])
    assert MicrobatchLog(database, "t").find_unbatched(rows(*ids)) == rows(*ids[1200:])
