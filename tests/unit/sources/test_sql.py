"""SqlSource: rows by a cursor and rows by id, of real tables in SQLite and PostgreSQL."""

import datetime as dt
import sqlite3
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from sqlalchemy.sql import quoted_name
from streams import add_rows, execute, make_sql_source, make_table, open_tables

from batch_assets.core.cursors import Cursor, Place, StreamRow
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, StreamSource
from batch_assets.sources.files import FileSource
from batch_assets.sources.sql import SqlSource

NINE = dt.datetime(2026, 11, 1, 9, 0, tzinfo=dt.UTC)
CET = dt.timezone(dt.timedelta(hours=1))


def scan(source: SqlSource, after: Cursor | None = None) -> list[StreamRow]:
    """Return the rows from a cursor on."""
    return [row for chunk in source.scan(None if after is None else Place(after)) for row in chunk]


def between(source: SqlSource, after: Place | None, until: Place | None) -> list[str]:
    return [row.item_id for chunk in source.scan(after, until) for row in chunk]


def ids(source: SqlSource, after: Cursor | None = None) -> list[str]:
    return [row.item_id for row in scan(source, after)]


def read(source: SqlSource, *item_ids: str, fields: Sequence[str] = ()) -> list[dict[str, Any]]:
    batch = source.read_items(item_ids, fields)
    assert batch.malformed == []
    return batch.frame.to_dicts()


def moments(url: str) -> sa.types.TypeEngine[Any]:
    """The type of a moment: with a zone on PostgreSQL; SQLite has none, and keeps text."""
    return sa.DateTime(timezone=True) if url.startswith("postgresql") else sa.Text()


# Scanning


def test_it_is_a_stream_and_a_file_source_is_none(tmp_path: Path) -> None:
    assert isinstance(make_sql_source("sqlite:///x.db"), StreamSource)
    assert not isinstance(FileSource("*.csv"), StreamSource)


def test_rows_come_by_cursor_and_then_by_id_from_the_position_on(source_url: str) -> None:
    make_table(source_url, [("c", "x", 2), ("b", "x", 2), ("a", "x", 3), ("d", "x", 1)])
    source = make_sql_source(source_url)
    assert scan(source) == [StreamRow("d", 1), StreamRow("b", 2), StreamRow("c", 2), StreamRow("a", 3)]
    assert ids(source, 2) == ["b", "c", "a"]
    assert ids(source, 4) == []


def test_an_empty_table_has_no_rows_but_columns(source_url: str) -> None:
    make_table(source_url)
    source = make_sql_source(source_url)
    assert (scan(source), source.columns()) == ([], ("item_id", "text", "version"))


@pytest.mark.parametrize("step_s", [0.000001, 1, 86400])
def test_moments_are_told_apart_and_found_again(source_url: str, step_s: float) -> None:
    late = NINE + dt.timedelta(seconds=step_s)
    rows = [("a", NINE), ("b", late), ("c", late.astimezone(CET))]
    columns = sa.Column("item_id", sa.Text), sa.Column("seen", moments(source_url))
    texts = [(i, at if source_url.startswith("postgresql") else at.astimezone(dt.UTC).isoformat()) for i, at in rows]
    make_table(source_url, texts, *columns)
    source = make_sql_source(source_url, cursor="seen")
    first, *later = scan(source)
    assert first.item_id == "a"
    assert [r.item_id for r in later] == ["b", "c"]
    assert ids(source, later[0].cursor) == ["b", "c"]
    assert later[0].identity[1] == later[1].identity[1] != first.identity[1]


def test_a_moment_without_a_zone_is_found_again(source_url: str) -> None:
    rows = [("a", NINE.replace(tzinfo=None)), ("b", NINE.replace(tzinfo=None, microsecond=5))]
    make_table(source_url, rows, sa.Column("item_id", sa.Text), sa.Column("seen", sa.DateTime))
    source = make_sql_source(source_url, cursor="seen")
    found = scan(source)
    assert [r.item_id for r in found] == ["a", "b"]
    assert ids(source, found[0].cursor) == ["a", "b"]
    assert ids(source, found[1].cursor) == ["b"]


def test_sqlites_own_clock_is_found_again_although_it_has_no_fraction(tmp_path: Path) -> None:
    # SQLAlchemy would bind '2026-11-01 09:00:00.000000', which sorts after the '2026-11-01 09:00:00' that is there.
    url = f"sqlite:///{tmp_path / 's.db'}"
    execute(url, "CREATE TABLE tickets (item_id TEXT, seen TIMESTAMP)")
    execute(url, "INSERT INTO tickets VALUES ('a', '2026-11-01 09:00:00'), ('b', '2026-11-01 09:00:00')")
    source = make_sql_source(url, cursor="seen")
    [first, _] = scan(source)
    assert ids(source, first.cursor) == ["a", "b"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (sa.Text(), ["", "A", "a", "ä", "😀"]),
        (sa.Date(), [dt.date(2026, 1, 31), dt.date(2026, 2, 1)]),
        (sa.Double(), [-0.5, 0.1, 0.30000000000000004, 1e300]),
        (sa.BigInteger(), [-(2**63), 0, 2**53 + 1, 2**63 - 1]),
    ],
    ids=["text", "date", "float", "integer"],
)
def test_each_row_is_found_again_from_its_own_cursor(source_url: str, kind: Any, values: list[Any]) -> None:
    rows = [(f"r{n}", v) for n, v in enumerate(values)]
    make_table(source_url, rows, sa.Column("item_id", sa.Text), sa.Column("seen", kind))
    source = make_sql_source(source_url, cursor="seen")
    found = scan(source)
    assert len(found) == len(values)
    for n, row in enumerate(found):
        assert scan(source, row.cursor) == found[n:]
    assert len({row.identity for row in found}) == len(values)


def test_decimals_of_postgresql_are_exact(pg_store: sa.URL, request: pytest.FixtureRequest) -> None:
    url = pg_store.render_as_string(hide_password=False)
    values = [Decimal("0.1"), Decimal("12345678901234567890.123456789")]
    name = "exact_decimals"
    execute(url, f"DROP TABLE IF EXISTS {name}")
    request.addfinalizer(lambda: execute(url, f"DROP TABLE {name}"))
    make_table(
        url, [(str(v), v) for v in values], sa.Column("item_id", sa.Text), sa.Column("seen", sa.Numeric), name=name
    )
    assert scan(make_sql_source(url, table=name, cursor="seen"), values[1]) == [StreamRow(str(values[1]), values[1])]


@pytest.mark.filterwarnings("ignore:Dialect sqlite")
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (sa.Text(), ["10", "9", "A", "a", "it's", "ä"]),
        (sa.Integer(), [-1, 7, 9, 10]),
        (sa.Uuid(), [uuid.UUID(int=n) for n in (5, 10, 2**100)]),
        (sa.Numeric(10, 2), [Decimal("1.50"), Decimal("9.00"), Decimal("10.00")]),
        (sa.Double(), [0.5, 9.0, 10.0]),
        (sa.Date(), [dt.date(2026, 1, 31), dt.date(2026, 2, 1)]),
    ],
    ids=["text", "integer", "uuid", "numeric", "float", "date"],
)
def test_rows_are_after_a_place_or_up_to_it_and_none_is_neither(source_url: str, kind: Any, values: list[Any]) -> None:
    rows = [(v, version) for version in (1, 2) for v in values]
    make_table(source_url, rows, sa.Column("id", kind), sa.Column("version", sa.Integer))
    execute(source_url, "CREATE VIEW seen AS SELECT id, version FROM tickets")
    for table in ("tickets", "seen"):
        source = make_sql_source(source_url, table=table, key="id")
        found = scan(source)
        names = [row.item_id for row in found]
        assert len(found) == len(rows)
        for n, row in enumerate(found, start=1):
            assert between(source, row.place, None) == names[n:]
            assert between(source, None, row.place) == names[:n]
            assert between(source, found[0].place, row.place) == names[1:n]


def test_places_are_found_again_where_sqlite_knows_no_type(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    execute(url, "CREATE TABLE t (a, version)", "INSERT INTO t VALUES (9, 1), (10, 1), ('10', 1), ('9', 1), (9.5, 1)")
    execute(url, "CREATE VIEW tickets AS SELECT CASE WHEN 1 THEN a END AS item_id, version + 0 AS version FROM t")
    source = make_sql_source(url)
    found = scan(source)
    assert [row.item_id for row in found] == ["9", "9.5", "10", "10", "9"]
    for n, row in enumerate(found, start=1):
        assert [r.item_id for chunk in source.scan(row.place) for r in chunk] == [r.item_id for r in found[n:]]


def test_after_a_row_whose_id_can_be_none_all_with_its_cursor_come_again(source_url: str) -> None:
    make_table(source_url, [(" ", "x", 1), ("a", "x", 1), ("b", "x", 2), ("c", "x", 0)])
    source = make_sql_source(source_url)
    [place] = [row.place for row in scan(source) if row.item_id not in ("a", "b", "c")]
    assert place == Place(1, None)
    assert between(source, place, None)[-2:] == ["a", "b"]
    assert between(source, None, place) == ["c"]


def test_a_scan_that_is_not_read_to_its_end_leaves_nothing_open(source_url: str) -> None:
    table = make_table(source_url, [(f"r{n}", "x", n) for n in range(3000)])
    chunks = make_sql_source(source_url).scan(None)
    assert len(next(chunks)) == 1000
    chunks.close()
    with open_tables(source_url) as connection:
        table.drop(connection)  # would wait for ever, or be refused, for a reader


def test_nulls_are_passed_over_and_counted(source_url: str) -> None:
    table = make_table(
        source_url,
        [("a", 1), ("b", None), ("c", None), (None, 1), (None, None)],
        sa.Column("item_id", sa.Text),
        sa.Column("version", sa.Integer),
    )
    source = make_sql_source(source_url)
    assert ids(source) == ["a"]
    assert source.count_unseen() == {"item_id": 2, "version": 3}
    execute(source_url, sa.delete(table).where(sa.or_(table.c.item_id.is_(None), table.c.version.is_(None))))
    assert source.count_unseen() == {"item_id": 0, "version": 0}


def test_a_column_that_cannot_be_null_is_not_counted(source_url: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    assert source_url and make_sql_source(source_url).count_unseen() == {"version": 0}


def test_an_infinite_cursor_behind_which_no_row_would_be_seen_is_refused(source_url: str) -> None:
    columns = sa.Column("item_id", sa.Text), sa.Column("version", sa.Float)
    make_table(source_url, [("a", 1.0), ("b", float("inf"))], *columns)
    with pytest.raises(SourceError, match="cursor 'version': a number, a time or text is wanted, found inf in the row"):
        ids(make_sql_source(source_url))


def test_a_cursor_of_bytes_is_refused(source_url: str) -> None:
    make_table(source_url, [("a", b"1")], sa.Column("item_id", sa.Text), sa.Column("version", sa.LargeBinary))
    with pytest.raises(SourceError, match="cursor 'version': a number, a time or text is wanted"):
        scan(make_sql_source(source_url))


# Reading


def test_rows_are_read_by_id_in_the_order_of_the_batch(source_url: str) -> None:
    make_table(source_url, [("a", "A", 1), ("b", None, 2), ("c", "", 3), ("d", "D", 4)])
    batch = make_sql_source(source_url).read_items(["c", "a", "b"], ["text"])
    assert batch.frame.schema == {
        ITEM_ID: pl.String,
        SOURCE_LINE: pl.Int64,
        "text": pl.String,
        "version": pl.String,
    }
    assert batch.frame.rows() == [("c", 1, "", "3"), ("a", 2, "A", "1"), ("b", 3, None, "2")]
    assert batch.malformed == []


def test_a_row_is_read_as_it_is_now(source_url: str) -> None:
    make_table(source_url, [("a", "old", 1)])
    execute(source_url, "UPDATE tickets SET text = 'new'")
    assert read(make_sql_source(source_url), "a")[0]["text"] == "new"


def test_what_is_gone_is_set_aside_with_its_place_and_the_reason(source_url: str) -> None:
    make_table(source_url, [("a", "A", 1), ("c", "C", 3)])
    batch = make_sql_source(source_url).read_items(["a", "b", "c", "d"], [])
    assert batch.frame[ITEM_ID].to_list() == ["a", "c"]
    assert batch.frame[SOURCE_LINE].to_list() == [1, 3]
    assert batch.malformed == [
        (2, "item_id: no row has the id 'b' any more"),
        (4, "item_id: no row has the id 'd' any more"),
    ]


def test_a_batch_whose_rows_are_all_gone_is_empty_and_has_its_columns(source_url: str) -> None:
    make_table(source_url)
    batch = make_sql_source(source_url).read_items(["a"], ["text"])
    assert batch.frame.columns == [ITEM_ID, SOURCE_LINE, "text", "version"]
    assert (batch.frame.height, len(batch.malformed)) == (0, 1)


def test_an_id_that_comes_twice_is_set_aside(source_url: str) -> None:
    rows = [("a", "one", 1), ("a", "two", 2), ("b", "x", 3)]
    make_table(
        source_url, rows, sa.Column("item_id", sa.Text), sa.Column("text", sa.Text), sa.Column("version", sa.Integer)
    )
    batch = make_sql_source(source_url).read_items(["a", "b"], [])
    assert batch.frame[ITEM_ID].to_list() == ["b"]
    assert batch.malformed == [(1, "item_id: the id 'a' comes 2 times")]


@pytest.mark.parametrize("text", ["", "  ", "x" * 1001, "\x1fmark"])
def test_an_id_that_can_be_none_is_seen_and_set_aside(source_url: str, text: str) -> None:
    make_table(source_url, [(text, "x", 1), ("ok", "y", 2)])
    source = make_sql_source(source_url)
    names = ids(source)
    assert all(len(name) < 200 for name in names)
    batch = source.read_items(names, [])
    assert batch.frame[ITEM_ID].to_list() == ["ok"]
    [(line, reason)] = batch.malformed
    assert line == 1
    assert "the id" in reason
    assert "any more" not in reason


def test_two_ids_that_can_be_none_are_two(source_url: str) -> None:
    make_table(source_url, [(" ", "x", 1), ("  ", "y", 1)])
    assert len(set(ids(make_sql_source(source_url)))) == 2


@pytest.mark.parametrize(
    "text", ["it's", 'a"b', "a;b--", "' OR '1'='1", "%s %(x)s", ":x", "\\", "ünï 😀", "a\nb", "007", "1e3"]
)
def test_any_text_is_an_id(source_url: str, text: str) -> None:
    make_table(source_url, [(text, text, 1), ("other", "y", 2), ("7", "z", 3), ("1000.0", "z", 4)])
    source = make_sql_source(source_url)
    assert ids(source, None)[0] == text
    assert [(r[ITEM_ID], r["text"]) for r in read(source, text)] == [(text, text)]


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (sa.Integer(), [7, -1], ["7", "-1"]),
        (sa.BigInteger(), [2**63 - 1], [str(2**63 - 1)]),
        (sa.Uuid(), [uuid.UUID(int=5)], None),
        (sa.Numeric(10, 2, asdecimal=True), [Decimal("1.50")], None),
        (sa.Date(), [dt.date(2026, 1, 2)], ["2026-01-02"]),
        (sa.CHAR(4), ["ab"], None),
    ],
    ids=["integer", "bigint", "uuid", "numeric", "date", "char"],
)
@pytest.mark.filterwarnings("ignore:Dialect sqlite")
def test_ids_of_any_type_are_text_and_found_by_it(
    source_url: str, kind: Any, values: list[Any], texts: list[str] | None
) -> None:
    rows = [(v, n) for n, v in enumerate(values)]
    make_table(source_url, rows, sa.Column("id", kind), sa.Column("version", sa.Integer))
    source = make_sql_source(source_url, key="id")
    found = ids(source)
    assert texts is None or found == texts
    assert [r[ITEM_ID] for r in read(source, *found)] == found


def test_an_integer_id_of_a_view_is_found_although_sqlite_knows_no_type_for_it(source_url: str) -> None:
    make_table(source_url, [("7", "x", 1), ("8", "y", 2)])
    execute(source_url, "CREATE VIEW numbers AS SELECT CAST(item_id AS INTEGER) + 0 AS n, text, version FROM tickets")
    source = make_sql_source(source_url, table="numbers", key="n")
    assert ids(source) == ["7", "8"]
    assert [r["text"] for r in read(source, "8", "7")] == ["y", "x"]


def test_more_ids_than_a_query_may_bind_are_read(source_url: str) -> None:
    count = 2001
    make_table(source_url, [(f"r{n:05d}", f"text {n}", n) for n in range(count)])
    wanted = [f"r{n:05d}" for n in reversed(range(count))]
    frame = make_sql_source(source_url).read_items(wanted, []).frame
    assert frame[ITEM_ID].to_list() == wanted
    assert frame["text"].to_list() == [f"text {n}" for n in reversed(range(count))]


# Fields


def test_every_value_becomes_the_text_that_a_file_would_have(source_url: str) -> None:
    columns: dict[str, tuple[Any, Any, str | None]] = {
        "i": (sa.BigInteger(), 2**62, str(2**62)),
        "f": (sa.Double(), 1.5, "1.5"),
        "whole": (sa.Double(), 2.0, "2.0"),
        "yes": (sa.Boolean(), True, "true"),
        "no": (sa.Boolean(), False, "false"),
        "day": (sa.Date(), dt.date(2026, 11, 1), "2026-11-01"),
        "moment": (sa.DateTime(), dt.datetime(2026, 11, 1, 9, 30), "2026-11-01T09:30:00"),
        "t": (sa.Text(), "a\nb 😀 '", "a\nb 😀 '"),
        "number": (sa.Text(), "007", "007"),
        "empty": (sa.Text(), None, None),
    }
    kinds = [sa.Column(name, kind) for name, (kind, _, _) in columns.items()]
    row = ("a", 1, *(value for _, value, _ in columns.values()))
    make_table(source_url, [row], sa.Column("item_id", sa.Text), sa.Column("version", sa.Integer), *kinds)
    [found] = read(make_sql_source(source_url), "a")
    assert {name: found[name] for name in columns} == {name: text for name, (_, _, text) in columns.items()}


def test_postgresqls_own_types_become_text(pg_store: sa.URL, request: pytest.FixtureRequest) -> None:
    url = pg_store.render_as_string(hide_password=False)
    request.addfinalizer(lambda: execute(url, "DROP TABLE IF EXISTS own_types"))
    execute(
        url,
        "DROP TABLE IF EXISTS own_types",
        """CREATE TABLE own_types AS SELECT 'a'::text AS item_id, 1 AS version,
        timestamptz '2026-11-01 10:30:00.5+01' AS moment, 1.50::numeric AS price,
        '{"b": [1, "ä"], "a": null}'::jsonb AS doc,
        ARRAY['x', 'y'] AS tags, interval '1 day 2 hours' AS took, '10.0.0.1'::inet AS ip,
        '00000000-0000-0000-0000-000000000005'::uuid AS u, time '09:30' AS clock, point(1, 2) AS p""",
    )
    [found] = read(make_sql_source(url, table="own_types"), "a")
    assert {k: v for k, v in found.items() if k not in (ITEM_ID, SOURCE_LINE, "version")} == {
        "moment": "2026-11-01T09:30:00.500000+00:00",
        "price": "1.50",
        "doc": '{"a":null,"b":[1,"ä"]}',
        "tags": '["x","y"]',
        "took": "P1DT2H",
        "ip": "10.0.0.1",
        "u": "00000000-0000-0000-0000-000000000005",
        "clock": "09:30:00",
        "p": "(1,2)",
    }


def test_the_key_is_the_item_id_and_stays_where_a_prompt_uses_it(source_url: str) -> None:
    make_table(source_url, [("a", 1)], sa.Column("id", sa.Text), sa.Column("version", sa.Integer))
    source = make_sql_source(source_url, key="id")
    assert read(source, "a") == [{ITEM_ID: "a", SOURCE_LINE: 1, "version": "1"}]
    assert read(source, "a", fields=["id"]) == [{ITEM_ID: "a", SOURCE_LINE: 1, "id": "a", "version": "1"}]
    assert source.columns() == ("id", "version")


def test_only_the_named_fields_are_read(source_url: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    source = make_sql_source(source_url, fields=("text",))
    assert read(source, "a", fields=["text"]) == [{ITEM_ID: "a", SOURCE_LINE: 1, "text": "x"}]
    assert source.columns() == ("item_id", "text")
    with pytest.raises(SourceError, match="version: a prompt uses it and the source's `fields` don't"):
        source.read_items(["a"], ["version"])


def test_bytes_are_read_only_where_a_prompt_wants_them(source_url: str) -> None:
    columns = sa.Column("item_id", sa.Text), sa.Column("version", sa.Integer), sa.Column("data", sa.LargeBinary)
    make_table(source_url, [("a", 1, b"\xff\xfe"), ("b", 2, "ä".encode())], *columns)
    source = make_sql_source(source_url)
    assert [sorted(r) for r in read(source, "a")] == [[ITEM_ID, SOURCE_LINE, "version"]]
    batch = source.read_items(["a", "b"], ["data"])
    assert batch.frame["data"].to_list() == ["ä"]
    assert batch.malformed == [(1, "data: not UTF-8 text, in the row with the id 'a'")]


def test_text_that_is_not_utf8_costs_its_row_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE tickets (item_id TEXT, text TEXT, note TEXT, version INTEGER)")
        connection.execute("INSERT INTO tickets VALUES ('a', CAST(x'ff' AS TEXT), 'n', 1), ('b', 'x', 'n', 2)")
        connection.execute("INSERT INTO tickets VALUES ('c', 'y', CAST(x'61ff' AS TEXT), 3)")
        connection.execute("INSERT INTO tickets VALUES (CAST(x'ff' AS TEXT), 'z', 'n', 4)")
    source = make_sql_source(f"sqlite:///{path}")
    batch = source.read_items(ids(source), ["text"])
    assert batch.frame[ITEM_ID].to_list() == ["b", "c"]
    assert batch.frame["note"].to_list() == ["n", "a?"]
    assert batch.malformed == [
        (1, "text: not UTF-8 text, in the row with the id 'a'"),
        (4, "item_id: the id is not UTF-8 text"),
    ]
    assert batch.cleaned == [(3, "note: not UTF-8 text: its other bytes made question marks")]


def test_values_and_ids_obey_the_rules_of_files(source_url: str) -> None:
    make_table(source_url, [("a", "x\x1by\x7f", 1), ("b", "é" * 6, 2), ("c", "é" * 5, 3), ("d\x01", "z", 4)])
    source = make_sql_source(source_url, max_value_bytes=10)
    batch = source.read_items(ids(source), ["text"])
    assert batch.frame["text"].to_list() == ["x y ", "é" * 5]
    assert batch.cleaned == [(1, "text: control characters made spaces: 2")]
    assert batch.malformed == [
        (2, "text: 12 bytes, more than max_value_bytes (10)"),
        (4, "item_id: a control character in the id"),
    ]


# Names


@pytest.mark.parametrize(
    "name",
    [
        "order",
        "nothing",
        "my tickets",
        'a"b',
        "it's",
        "x; DROP TABLE other; --",
        "a%b",
        "%(x)s",
        "a:b",
        "a.b",
        "ÜNÏ",
        "Mixed",
        "[x]",
    ],
)
def test_odd_names_are_quoted(source_url: str, name: str) -> None:
    make_table(source_url, [("z",)], sa.Column("c", sa.Text), name="other")
    quoted = quoted_name(name, True)  # SQLAlchemy itself doesn't know that `nothing` is a reserved word
    columns = sa.Column(f"{name} k", sa.Text), sa.Column(quoted, sa.Integer), sa.Column("select", sa.Text)
    table = sa.Table(quoted, sa.MetaData(), *columns)
    with open_tables(source_url) as connection:
        table.create(connection)
        connection.execute(sa.insert(table).values(["a", 1, "x"]))
    source = make_sql_source(source_url, table=name, key=f"{name} k", cursor=name)
    assert scan(source, 1) == [StreamRow("a", 1)]
    assert source.count_unseen() == {f"{name} k": 0, name: 0}
    assert read(source, "a", fields=["select"])[0]["select"] == "x"
    with open_tables(source_url) as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM other")) == 1


@pytest.mark.parametrize(
    "name", ["tickets; DROP TABLE tickets", 'tickets"', "tickets --", "nowhere", "nowhere.tickets"]
)
def test_a_table_that_is_not_there_is_named_with_those_there_are(source_url: str, name: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    execute(source_url, "CREATE VIEW recent AS SELECT * FROM tickets")
    with pytest.raises(SourceError) as error:
        scan(make_sql_source(source_url, table=name))
    assert f"no table or view {name!r}; there are recent, tickets" in str(error.value)
    assert ids(make_sql_source(source_url)) == ["a"]


@pytest.mark.parametrize("part", ["key", "cursor"])
@pytest.mark.parametrize("name", ["wrong", "version; DROP TABLE tickets", "1", "*"])
def test_a_column_that_is_not_there_is_named_with_those_there_are(source_url: str, part: str, name: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    source = make_sql_source(source_url, **{part: name})
    for call in (lambda: scan(source), source.columns, lambda: source.read_items(["a"], []), source.count_unseen):
        with pytest.raises(SourceError) as error:
            call()
        assert f"table 'tickets': no column {name!r}; it has item_id, text, version" in str(error.value)


def test_a_field_that_is_not_there_is_named(source_url: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    with pytest.raises(SourceError, match="no column 'body'; it has item_id, text, version"):
        make_sql_source(source_url).read_items(["a"], ["text", "body"])


def test_a_table_in_a_schema_is_named_with_it(source_url: str) -> None:
    if source_url.startswith("sqlite"):
        make_table(source_url, [("a", "x", 1)])
        assert ids(make_sql_source(source_url, table="main.tickets")) == ["a"]
        return
    schema = sa.make_url(source_url).query["options"].split("=")[1]  # type: ignore[union-attr]
    make_table(source_url, [("a", "x", 1)])
    elsewhere = sa.make_url(source_url).set(query={}).render_as_string(hide_password=False)
    if "host" in sa.make_url(source_url).query:
        elsewhere = sa.make_url(source_url).difference_update_query(["options"]).render_as_string(hide_password=False)
    assert ids(make_sql_source(elsewhere, table=f"{schema}.tickets")) == ["a"]
    with pytest.raises(SourceError, match="no table or view"):
        ids(make_sql_source(elsewhere))


def test_a_view_is_read_as_a_table_is(source_url: str) -> None:
    make_table(source_url, [("a", "x", 1), ("b", "y", 2), ("c", "z", 3)])
    execute(
        source_url, "CREATE VIEW late AS SELECT item_id, upper(text) AS text, version FROM tickets WHERE version > 1"
    )
    source = make_sql_source(source_url, table="late")
    assert ids(source, 3) == ["c"]
    assert [r["text"] for r in read(source, "b", "c")] == ["Y", "Z"]
    assert source.read_items(["a"], []).malformed == [(1, "item_id: no row has the id 'a' any more")]


def test_columns_that_cannot_stand_beside_the_id_are_refused(source_url: str) -> None:
    columns = sa.Column("id", sa.Text), sa.Column("item_id", sa.Text), sa.Column("version", sa.Integer)
    make_table(source_url, [("a", "b", 1)], *columns)
    with pytest.raises(SourceError, match="the id is column 'id', so no other may be called 'item_id'"):
        make_sql_source(source_url, key="id").read_items(["a"], [])
    assert read(make_sql_source(source_url, key="id", fields=("version",)), "a")[0][ITEM_ID] == "a"


def test_a_column_called_source_line_gives_way(source_url: str) -> None:
    columns = sa.Column("item_id", sa.Text), sa.Column("source_line", sa.Integer), sa.Column("version", sa.Integer)
    make_table(source_url, [("a", 9, 1)], *columns)
    assert read(make_sql_source(source_url), "a") == [{ITEM_ID: "a", SOURCE_LINE: 1, "version": "1"}]
    with pytest.raises(SourceError, match="is the place of a row in its batch"):
        make_sql_source(source_url).read_items(["a"], ["source_line"])


# Where the database is


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": ""}, "give one of url_env and url"),
        ({"url_env": "X"}, "give one of url_env and url"),
        ({"url": "", "url_env": "A B"}, "url_env: not the name of a variable"),
        ({"table": " "}, "table: it is empty"),
        ({"key": ""}, "key: a column"),
        ({"key": "source_line"}, "key: a column, other than 'source_line'"),
        ({"cursor": ""}, "cursor: it is empty"),
        ({"max_records": 0}, "max_records: 1 to 100000"),
        ({"max_records": True}, "max_records: 1 to 100000"),
        ({"max_records": 2.5}, "max_records: 1 to 100000"),
        ({"max_age_s": True}, "max_age_s: seconds, 0 or more"),
        ({"max_age_s": -1}, "max_age_s: seconds, 0 or more"),
        ({"max_age_s": float("nan")}, "max_age_s: seconds, 0 or more"),
        ({"lookback": float("inf")}, "lookback: 0 or more"),
        ({"max_value_bytes": 0}, "max_value_bytes 0: it is a whole number, 1 or more"),
        ({"url": "nonsense"}, "url: not a SQLAlchemy URL"),
    ],
)
def test_what_cannot_work_is_refused_at_once(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_sql_source(**{"url": "sqlite:///x.db", **fields})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h/d",
        "mysql://u:hunter2@h/d",
        "postgresql+psycopg2://u:hunter2@h/d",
        "postgresql://h/d?password=hunter2",
        "mysql://h/d?passwd=hunter2",
        "trino://u@h/d?access_token=hunter2",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Du%3BPWD%3Dhunter2",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="no password here: name a variable by url_env") as error:
        SqlSource(url=url, table="tickets", cursor="version")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("option", ["timeout=hunter2", "check_same_thread=hunter2"])
def test_an_option_that_no_driver_takes_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "x.db").touch()
    monkeypatch.setenv("TICKETS_URL", f"sqlite:///{tmp_path / 'x.db'}?{option}")
    with pytest.raises(ConfigError, match="^the database in TICKETS_URL: an option in the URL") as error:
        SqlSource(url_env="TICKETS_URL", table="tickets", cursor="version").columns()
    assert "hunter2" not in str(error.value)


def test_the_url_comes_from_the_environment_and_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_sql_source("", url_env="SUPPORT_DB_URL")
    monkeypatch.delenv("SUPPORT_DB_URL", raising=False)
    with pytest.raises(ConfigError, match="SUPPORT_DB_URL is not set"):
        source.bind(tmp_path)
    for wrong in ("postgresql://u:hunter2@127.0.0.1:1/d", "postgresql://u:hunter2@127.0.0.1:1x/d", "//hunter2"):
        monkeypatch.setenv("SUPPORT_DB_URL", wrong)
        with pytest.raises((ConfigError, SourceError)) as error:
            source.bind(tmp_path).columns()
        assert "SUPPORT_DB_URL" in str(error.value)
        assert "hunter2" not in str(error.value) + repr(error.value.__cause__)
    make_table(f"sqlite:///{tmp_path / 's.db'}", [("a", "x", 1)])
    monkeypatch.setenv("SUPPORT_DB_URL", "sqlite:///s.db")
    bound = source.bind(tmp_path)
    assert ids(bound) == ["a"]
    assert bound.place == "table 'tickets' of the database in SUPPORT_DB_URL"


def test_a_relative_file_is_taken_from_the_tasks_folder(tmp_path: Path) -> None:
    make_table(f"sqlite:///{tmp_path / 's.db'}", [("a", "x", 1)])
    assert ids(make_sql_source("sqlite:///s.db").bind(tmp_path)) == ["a"]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    source = make_sql_source("sqlite:///s.db").bind(tmp_path)
    with pytest.raises(SourceError, match=r"no file .*s\.db"):
        scan(source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no file"):
        make_sql_source(url).bind(tmp_path)


def test_a_file_that_is_no_database_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("no database, as anybody can see who opens it" * 100)
    with pytest.raises(SourceError, match="can't be read: file is not a database"):
        scan(make_sql_source("sqlite:///s.db").bind(tmp_path))


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    for url in ("nosuch://h/d", "mysql+pymysql://h/d"):
        with pytest.raises(ConfigError, match="no driver for"):
            make_sql_source(url).bind(tmp_path).columns()


def test_nothing_can_be_written_through_a_postgresql_source(source_url: str) -> None:
    make_table(source_url, [("a", "x", 1)])
    if source_url.startswith("sqlite"):
        pytest.skip("SQLite has no such transaction")
    execute(
        source_url,
        "CREATE FUNCTION spoil() RETURNS bigint LANGUAGE plpgsql AS "
        "$$ BEGIN UPDATE tickets SET text = 'spoilt'; RETURN 1; END $$",
        "CREATE VIEW bad AS SELECT item_id, spoil() AS version FROM tickets",
    )
    with pytest.raises(SourceError, match="read-only transaction"):
        scan(make_sql_source(source_url, table="bad"))
    assert read(make_sql_source(source_url), "a")[0]["text"] == "x"


def test_rows_added_while_a_scan_runs_do_no_harm(source_url: str) -> None:
    table = make_table(source_url, [(f"r{n:04d}", "x", n) for n in range(1500)])
    if source_url.startswith("sqlite"):
        execute(source_url, "PRAGMA user_version = 1")
    chunks = make_sql_source(source_url).scan(None)
    first = next(chunks)
    if source_url.startswith("postgresql"):
        add_rows(source_url, table, [("late", "x", 1200)])
    rest = [row for chunk in chunks for row in chunk]
    assert [r.cursor for r in (*first, *rest)] == list(range(1500))
