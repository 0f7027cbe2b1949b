"""Cursor values: kept as text, given back with their type, stepped back by a lookback."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_assets.core.cursors import (
    Cursor,
    StreamRow,
    from_document,
    is_cursor,
    later_of,
    step_back,
    to_document,
    write_cursor,
)
from batch_assets.core.errors import ConfigError, StoreError

NINE = dt.datetime(2026, 11, 1, 9, 0)
ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=45))])
MOMENTS = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=ZONES)
CURSORS = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.decimals(allow_nan=False), MOMENTS, st.dates(), st.text()
)


@given(CURSORS)
def test_a_cursor_comes_back_with_its_type(cursor: Cursor) -> None:
    found = from_document(to_document(cursor))
    assert (found, type(found)) == (cursor, type(cursor))
    assert write_cursor(found) == write_cursor(cursor)


@given(MOMENTS, MOMENTS)
def test_moments_have_one_text_each_and_their_texts_sort_as_they_do(a: dt.datetime, b: dt.datetime) -> None:
    if (a.tzinfo is None) == (b.tzinfo is None):
        assert (write_cursor(a) < write_cursor(b), write_cursor(a) == write_cursor(b)) == (a < b, a == b)


@given(CURSORS)
def test_no_lookback_is_the_cursor_itself(cursor: Cursor) -> None:
    assert step_back(cursor, 0) is cursor


@pytest.mark.parametrize(
    ("cursor", "lookback", "expected"),
    [
        (10, 3, 7),
        (10, 2.5, 7),
        (2**63 - 1, 1, 2**63 - 2),
        (1.5, 0.5, 1.0),
        (Decimal("0.3"), 0.1, Decimal("0.2")),
        (NINE, 0.5, dt.datetime(2026, 11, 1, 8, 59, 59, 500000)),
        (NINE.replace(tzinfo=dt.UTC), 3600, dt.datetime(2026, 11, 1, 8, 0, tzinfo=dt.UTC)),
        (dt.date(2026, 11, 1), 1, dt.date(2026, 10, 31)),
        (dt.date(2026, 11, 1), 86401, dt.date(2026, 10, 30)),
        (dt.datetime.min, 5, dt.datetime.min),
        (dt.date.min, 5, dt.date.min),
        ("2026-11-01 09:00:00", 30, "2026-11-01 08:59:30"),
        ("2026-11-01T09:00:00.5Z", 30, "2026-11-01T08:59:30"),
        ("2026-11-01T09:00:00.5+00:00", 0.4, "2026-11-01T09:00:00"),
        ("2026-11-01", 1, "2026-10-31"),
    ],
)
def test_a_lookback_is_in_the_units_of_the_cursor(cursor: Any, lookback: float, expected: Any) -> None:
    found = step_back(cursor, lookback)
    assert (found, type(found)) == (expected, type(expected))


def test_a_text_that_is_no_time_has_no_lookback() -> None:
    with pytest.raises(ConfigError, match="must be a time as ISO 8601 has it, not 'a17'"):
        step_back("a17", 1)


@pytest.mark.parametrize(
    ("position", "cursor", "later"),
    [(None, 1, 1), (5, 3, 5), (3, 5, 5), (3, 4.5, 4.5), ("z", "a", "a"), (5, "a", "a"), (NINE, 5, 5), ("a", 5, 5)],
)
def test_the_later_of_two(position: Any, cursor: Any, later: Any) -> None:
    assert later_of(position, cursor) == later


def test_what_can_order_rows_and_what_cannot() -> None:
    assert all(is_cursor(v) for v in (0, 0.5, Decimal(1), "", NINE, NINE.date()))
    assert not any(is_cursor(v) for v in (None, True, b"1", float("nan"), Decimal("nan"), [1], NINE.time()))


def test_a_row_is_known_by_its_id_and_its_cursor() -> None:
    moment = NINE.replace(tzinfo=dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=1)))
    assert StreamRow("a", moment).key == StreamRow("a", elsewhere).key == ("a", "2026-11-01T09:00:00.000000+00:00")
    assert StreamRow("a", 1).key != StreamRow("a", 2).key != StreamRow("b", 2).key


@pytest.mark.parametrize("document", [{}, {"type": "x", "value": ""}, {"type": "decimal", "value": "x"}])
def test_what_is_no_position_is_an_error(document: dict[str, str]) -> None:
    with pytest.raises(StoreError, match="can't be read"):
        from_document(document)
