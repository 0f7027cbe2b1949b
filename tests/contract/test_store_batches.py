"""Batches and who owns an item_id that comes more than once: the batch seen last, and its rows follow."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from factories import KEY, load_rows, make_result, run_at_once, write_rows

from batch_assets.store.batches import (
    BatchState,
    adopt_items,
    freeze_batch,
    load_batch,
    load_batches,
    load_owned,
    touch_batch,
)
from batch_assets.store.database import Database
from batch_assets.store.overview import load_status
from batch_assets.store.tables import item_owner


def freeze(database: Database, batch: str, *item_ids: str, task: str = "t", **fields: Any) -> set[str]:
    """Freeze a batch whose source_hash is that of its ids; return the ids that it released."""
    values = {"change_token": f"s-{batch}", "source_hash": "-".join(item_ids)[:24], "malformed": [], **fields}
    with database.write() as connection:
        return freeze_batch(connection, task, batch, item_ids=list(item_ids), **values)[1]


def adopt(database: Database, batch: str, *item_ids: str) -> None:
    with database.write() as connection:
        adopt_items(connection, "t", batch, list(item_ids))


def states(database: Database, task: str = "t") -> dict[str, BatchState]:
    with database.read() as connection:
        return load_batches(connection, task)


def owners(database: Database) -> dict[str, str]:
    with database.read() as connection:
        query = sa.select(item_owner.c.item_id, item_owner.c.batch).where(item_owner.c.task == "t")
        return dict(connection.execute(query).tuples().all())


def homes(database: Database) -> dict[str, str | None]:
    return {i: row["batch"] for i, row in load_rows(database).items()}


def test_a_frozen_batch_comes_back_as_it_was_read(database: Database) -> None:
    freeze(database, "b1", "1", "2", malformed=[(3, "2 fields, the header has 3")])
    with database.read() as connection:
        state = load_batch(connection, "t", "b1")
        assert load_batch(connection, "t", "b2") is None
    assert state == states(database)["b1"]
    assert (state.seq, state.change_token, state.source_hash, state.records) == (1, "s-b1", "1-2", 2)
    assert (state.superseded, state.superseded_hash) == (0, "")
    assert list(state.malformed) == [(3, "2 fields, the header has 3")]
    assert state.content == state.source_hash


def test_batches_stand_in_the_order_of_first_sight(database: Database) -> None:
    for batch in ("b2", "b1", "b3"):
        freeze(database, batch, f"of {batch}")
    assert [(b.batch, b.seq) for b in states(database).values()] == [("b2", 1), ("b1", 2), ("b3", 3)]


def test_an_empty_batch_can_be_frozen(database: Database) -> None:
    assert freeze(database, "b1") == set()
    assert states(database)["b1"].records == 0


def test_a_later_batch_takes_an_id_over_and_the_earlier_counts_it_as_superseded(database: Database) -> None:
    freeze(database, "b1", "1", "2", "3")
    before = states(database)["b1"]
    assert freeze(database, "b2", "3", "4") == set()
    assert owners(database) == {"1": "b1", "2": "b1", "3": "b2", "4": "b2"}
    with database.read() as connection:
        assert (load_owned(connection, "t", "b1"), load_owned(connection, "t", "b3")) == ({"1", "2"}, set())
    after = states(database)
    assert (after["b1"].superseded, after["b1"].records, after["b2"].superseded) == (1, 3, 0)
    assert after["b1"].source_hash == before.source_hash
    assert after["b1"].content != before.content
    assert after["b2"].content == after["b2"].source_hash


def test_content_says_which_ids_are_superseded_and_not_in_which_order_they_came_to_be(database: Database) -> None:
    freeze(database, "b1", "1", "2", "3")
    untouched = states(database)["b1"].content
    freeze(database, "b2", "1")
    only_1 = states(database)["b1"].content
    freeze(database, "b2", "1", "2")
    both = states(database)["b1"].content
    assert freeze(database, "b2", "2") == {"1"}
    adopt(database, "b1", "1")
    only_2 = states(database)["b1"].content
    assert freeze(database, "b2", "1") == {"2"}
    adopt(database, "b1", "2")
    assert states(database)["b1"].content == only_1
    assert freeze(database, "b2") == {"1"}
    adopt(database, "b1", "1")
    assert states(database)["b1"].content == untouched
    assert len({untouched, only_1, both, only_2}) == 4


def test_freezing_an_unchanged_batch_again_changes_no_content(database: Database) -> None:
    # So it is when a frame was deleted: it is written again, and no output is stale for it.
    freeze(database, "b1", "1", "2", "3")
    freeze(database, "b2", "2", "3")
    before = states(database)
    freeze(database, "b1", "1", "2", "3")
    freeze(database, "b2", "2", "3")
    assert {b.batch: b.content for b in states(database).values()} == {b.batch: b.content for b in before.values()}
    assert owners(database) == {"1": "b1", "2": "b2", "3": "b2"}


def test_a_changed_batch_keeps_its_place_and_takes_nothing_from_a_later_one(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    freeze(database, "b2", "3")
    assert freeze(database, "b1", "1", "3", change_token="new") == {"2"}
    found = states(database)
    assert (found["b1"].seq, found["b1"].change_token, found["b1"].superseded) == (1, "new", 1)
    assert owners(database) == {"1": "b1", "3": "b2"}


def test_an_id_that_leaves_a_later_batch_goes_back_to_the_earlier(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    freeze(database, "b2", "2", "3")
    write_rows(database, rows=[make_result(i) for i in "123"])
    assert freeze(database, "b2", "3") == {"2"}
    assert homes(database)["2"] is None
    adopt(database, "b1", "2")
    assert owners(database) == {"1": "b1", "2": "b1", "3": "b2"}
    assert homes(database) == {"1": "b1", "2": "b1", "3": "b1"}
    assert (states(database)["b1"].superseded, states(database)["b1"].superseded_hash) == (0, "")


def test_an_id_passes_through_three_batches_and_back(database: Database) -> None:
    for batch in ("b1", "b2", "b3"):
        freeze(database, batch, "1", f"own of {batch}")
    assert owners(database)["1"] == "b3"
    assert [b.superseded for b in states(database).values()] == [1, 1, 0]
    assert freeze(database, "b3", "own of b3") == {"1"}
    adopt(database, "b2", "1")
    assert [b.superseded for b in states(database).values()] == [1, 0, 0]
    assert freeze(database, "b2", "own of b2") == {"1"}
    adopt(database, "b1", "1")
    assert [b.superseded for b in states(database).values()] == [0, 0, 0]
    assert owners(database)["1"] == "b1"


def test_rows_follow_their_records_owner(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    write_rows(database, rows=[make_result("1"), make_result("2")])
    write_rows(database, rows=[make_result("2", key=replace(KEY, prompt_ver="v2"))])
    freeze(database, "b2", "2")
    assert homes(database) == {"1": "b1", "2": "b2"}
    assert {i: r["batch"] for i, r in load_rows(database, "v2").items()} == {"2": "b2"}


def test_rows_of_an_id_that_is_gone_altogether_belong_to_no_batch(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    write_rows(database, rows=[make_result("1"), make_result("2")])
    assert freeze(database, "b1", "1") == {"2"}
    assert homes(database) == {"1": "b1", "2": None}
    assert owners(database) == {"1": "b1"}
    with database.read() as connection:
        (line,) = load_status(connection, "t", [("v1", "m1")])
    assert (line.ok, line.pending) == (1, 0)


def test_rows_of_an_id_that_comes_back_are_there_again(database: Database) -> None:
    freeze(database, "b1", "1", "2")
    write_rows(database, rows=[make_result("1"), make_result("2")])
    freeze(database, "b1", "1")
    freeze(database, "b2", "2")
    assert homes(database) == {"1": "b1", "2": "b2"}


def test_tasks_dont_take_from_each_other(database: Database) -> None:
    freeze(database, "b1", "1")
    write_rows(database, rows=[make_result("1")])
    freeze(database, "b2", "1", task="t2")
    assert freeze(database, "b2", "2", task="t2") == {"1"}
    assert (owners(database), homes(database)) == ({"1": "b1"}, {"1": "b1"})
    assert [b.seq for b in states(database, "t2").values()] == [1]


def test_a_touched_batch_only_changes_its_stamp(database: Database) -> None:
    freeze(database, "b1", "1")
    before = states(database)["b1"]
    with database.write() as connection:
        touch_batch(connection, "t", "b1", "touched")
    after = states(database)["b1"]
    assert (after.change_token, after.content, after.seq) == ("touched", before.content, before.seq)


def test_a_batch_of_more_ids_than_one_statement_takes_is_settled_whole(database: Database) -> None:
    ids = [f"{n:05d}" for n in range(12_000)]
    freeze(database, "b1", *ids)
    freeze(database, "b2", *ids[:11_000])
    assert states(database)["b1"].superseded == 11_000
    released = freeze(database, "b2", *ids[10_500:11_000])
    assert released == set(ids[:10_500])
    adopt(database, "b1", *released)
    assert states(database)["b1"].superseded == 500


@pytest.mark.parametrize("overlap", [True, False])
def test_batches_that_are_frozen_at_once_are_settled_one_after_another(database: Database, overlap: bool) -> None:
    shared = ["shared"] if overlap else []
    calls = [partial(freeze, database, f"b{n}", *shared, f"own of {n}") for n in range(4)]
    assert run_at_once(*calls) == []
    found = list(states(database).values())
    assert [b.seq for b in found] == [1, 2, 3, 4]
    if overlap:
        assert owners(database)["shared"] == found[-1].batch
        assert [b.superseded for b in found] == [1, 1, 1, 0]


def test_the_same_new_batch_frozen_twice_at_once_is_one_batch(database: Database) -> None:
    freeze_it = partial(freeze, database, "b1", "1", "2")
    assert run_at_once(freeze_it, freeze_it) == []
    assert owners(database) == {"1": "b1", "2": "b1"}


def test_pending_is_found_by_anti_join(database: Database) -> None:
    freeze(database, "b1", "1", "2", "3")
    write_rows(database, rows=[make_result("1"), make_result("stray")])
    with database.read() as connection:
        (line,) = load_status(connection, "t", [("v1", "m1")])
    assert (line.ok, line.pending) == (2, 2)
