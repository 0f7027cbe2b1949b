"""The views that people ask with SQL: one row per record and variant, and what nobody has answered."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from factories import BAD, ScriptedEngine, Stage, make_ids, make_model, make_result, refuse_a, write_rows

from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.attempts import Status
from batch_assets.store.database import Database, now
from batch_assets.store.overview import load_status
from batch_assets.store.results import VariantKey
from batch_assets.store.tables import fallbacks, item_owner

BIG = VariantKey(task="t", prompt_ver="v1", model_id="big")


def own(database: Database, batch: str, *item_ids: str) -> None:
    """Make a batch the owner of records."""
    rows = [{"task": "t", "item_id": item_id, "batch": batch} for item_id in item_ids]
    with database.write() as connection:
        connection.execute(sa.delete(item_owner).where(item_owner.c.item_id.in_(item_ids)))
        connection.execute(sa.insert(item_owner), rows)


def finish_fallback(database: Database, model_id: str = "big", batch: str = "b1", variant: str = "v1--m1") -> None:
    row = {"task": "t", "batch": batch, "variant": variant, "model_id": model_id, "fingerprint": "f", "content": "c"}
    with database.write() as connection:
        connection.execute(sa.insert(fallbacks).values(**row, counts={}, run_id="run", finished_at=now()))


def ask(database: Database, query: str) -> list[Any]:
    with database.read() as connection:
        return [tuple(row) if len(row) > 1 else row[0] for row in connection.execute(sa.text(query))]


def load_quarantine(database: Database) -> list[str]:
    return ask(database, "SELECT item_id FROM quarantine ORDER BY item_id")


def test_each_record_of_the_source_stands_once_per_variant_with_who_answered_it(database: Database) -> None:
    own(database, "b1", "1", "2", "3")
    rows = [
        make_result("1"),
        make_result("2", Status.INVALID),
        make_result("3", Status.ERROR),
        make_result("2", key=BIG, is_fallback=True, payload={"label": "b"}),
        make_result("3", Status.INVALID, key=BIG, is_fallback=True),
    ]
    write_rows(database, rows=rows)
    finish_fallback(database)
    found = ask(database, "SELECT item_id, model_id, status, answered_by FROM current_results ORDER BY item_id")
    assert found == [("1", "m1", "ok", "m1"), ("2", "m1", "invalid", "big"), ("3", "m1", "error", None)]
    texts = ask(database, "SELECT CAST(final_payload AS TEXT) FROM current_results ORDER BY item_id")
    assert [text and text.replace(" ", "") for text in texts] == ['{"label":"a"}', '{"label":"b"}', None]
    assert load_quarantine(database) == ["3"]


def test_a_departed_record_is_in_neither(database: Database) -> None:
    own(database, "b1", "1", "2")
    write_rows(database, rows=[make_result("1", Status.INVALID), make_result("2", Status.INVALID, batch=None)])
    write_rows(database, rows=[make_result("3"), make_result("4", Status.ERROR)])  # whom nobody owns
    assert ask(database, "SELECT item_id FROM current_results") == ["1"]
    assert load_quarantine(database) == ["1"]


def test_a_superseded_record_counts_in_its_later_batch_alone_once_that_was_asked(database: Database) -> None:
    own(database, "b1", "1", "2")
    write_rows(database, rows=[make_result("1", Status.INVALID), make_result("2")])
    own(database, "b2", "1", "2")
    assert ask(database, "SELECT count(*) FROM current_results") == [0]
    assert load_quarantine(database) == []
    write_rows(database, rows=[make_result("1", Status.INVALID, batch="b2"), make_result("2", batch="b2")])
    assert ask(database, "SELECT item_id, batch FROM current_results ORDER BY item_id") == [("1", "b2"), ("2", "b2")]
    assert load_quarantine(database) == ["1"]


def test_a_fallbacks_row_that_became_its_variants_own_counts_for_both(database: Database) -> None:
    own(database, "b1", "1")
    write_rows(database, rows=[make_result("1", Status.INVALID), make_result("1", key=BIG, is_fallback=True)])
    finish_fallback(database)
    assert ask(database, "SELECT model_id, answered_by FROM current_results") == [("m1", "big")]
    write_rows(database, rows=[make_result("1", key=BIG)])  # its own variant was asked, or has taken it over
    found = ask(database, "SELECT model_id, answered_by FROM current_results ORDER BY model_id")
    assert found == [("big", "big"), ("m1", "big")]
    assert load_quarantine(database) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"input_hash": "of the record as it was"},
        {"accept_spec": "of other rules"},
        {"status": Status.INVALID},
        {"key": VariantKey(task="t", prompt_ver="v2", model_id="big")},
        {"key": VariantKey(task="t", prompt_ver="v1", model_id="a fallback that is none any more")},
        {"key": VariantKey(task="other", prompt_ver="v1", model_id="big")},
    ],
)
def test_what_is_no_accepted_answer_to_the_record_as_it_is_answers_nothing(
    database: Database, fields: dict[str, Any]
) -> None:
    own(database, "b1", "1")
    other = make_result("1", **{"key": BIG, "is_fallback": True, **fields})
    write_rows(database, rows=[make_result("1", Status.INVALID), other])
    finish_fallback(database)
    assert load_quarantine(database) == ["1"]
    assert ask(database, "SELECT count(*) FROM current_results") == [1]


def test_a_fallback_that_hasnt_finished_the_partition_answers_nothing_yet(database: Database) -> None:
    own(database, "b1", "1")
    write_rows(database, rows=[make_result("1", Status.INVALID), make_result("1", key=BIG, is_fallback=True)])
    finish_fallback(database, batch="b2")
    finish_fallback(database, variant="v2--m1")
    assert load_quarantine(database) == ["1"]


def test_the_readmes_queries_are_answered(database: Database) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = text.partition("```sql\n")[2].partition("```")[0]
    queries = [query for query in block.split(";") if query.strip()]
    (quarantine,) = [query for query in queries if "FROM quarantine" in query]
    names = {"task": "ticket_triage", "prompt_ver": "v2", "model_id": "smollm2-135m"}
    key = VariantKey(**names)
    write_rows(
        database, rows=[make_result("1", Status.ERROR, key=key), make_result("2", Status.ERROR, key=key, batch=None)]
    )
    with database.write() as connection:
        connection.execute(sa.insert(item_owner).values(task="ticket_triage", item_id="1", batch="b1"))
    assert ask(database, quarantine) == [("v2", "smollm2-135m", "timeout", 1)]
    found = {query: ask(database, query) for query in queries}
    assert [len(found[query]) for query in queries if "FROM current_results" in query] == [1]


def test_after_runs_the_views_say_what_status_and_the_frames_say(tmp_path: Path, store_url: str) -> None:
    stage = Stage(tmp_path, store_url)
    stage.write("b1", make_ids(6))
    task = stage.task(fallback=make_model("big"), prompts=("v1", "v2"))
    spoilt = {"text of r0001": BAD, "text of r0002": BAD, "text of r0004": BAD}
    stage.run(task, ScriptedEngine(spoilt), fallback=ScriptedEngine({"text of r0002": BAD}))
    stage.write("b1", make_ids(5))  # r0005 departs
    stage.write("b2", ["r0004"])  # and r0004 comes again
    stage.run(task, ScriptedEngine(spoilt), fallback=ScriptedEngine({"text of r0002": BAD}))
    database = stage.platform.database
    with database.read() as connection:
        lines = load_status(connection, "t", [("v1", "m1"), ("v2", "m1")])
    for line in lines:
        of = f"FROM current_results WHERE prompt_ver = '{line.prompt_ver}' AND model_id = 'm1'"
        assert ask(database, f"SELECT count(*) {of}") == [5] == [line.ok + line.invalid + line.error]
        assert ask(database, f"SELECT count(*) {of} AND status = 'ok'") == [line.ok]
        answered = ask(database, f"SELECT item_id {of} AND answered_by IS NOT NULL ORDER BY item_id")
        frames = [
            stage.platform.frames.read("t", VALIDATED_RESULTS, batch, f"{line.prompt_ver}--m1")
            for batch in ("b1", "b2")
        ]
        assert answered == sorted(i for frame in frames if frame is not None for i in frame["item_id"])
        assert answered == ["r0000", "r0001", "r0003", "r0004"]
    assert load_quarantine(database) == ["r0002", "r0002"]
    stage.run(stage.task(fallback=make_model("big"), prompts=("v1", "v2"), rules=[refuse_a]), ScriptedEngine())
    assert len(load_quarantine(database)) == 10, "the fallback's answers are of the rules before, and it wasn't asked"
