"""Cursor values: kept as text, given back with their type, stepped back by a lookback."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_assets.core.cursors import (
    Cursor,
    Place,
    StreamRow,
    StreamState,
    from_document,
    is_cursor,
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


KEYS = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text())
PLACES = st.one_of(st.none(), st.builds(Place, CURSORS, KEYS))


@given(st.builds(StreamState, position=PLACES, swept_from=st.one_of(st.none(), CURSORS), swept_to=PLACES))
def test_a_state_comes_back_with_its_types(state: StreamState) -> None:
    found = from_document(json.loads(json.dumps(to_document(state))))
    assert found == state


@given(CURSORS)
def test_a_cursor_comes_back_with_its_type(cursor: Cursor) -> None:
    found = from_document(to_document(StreamState(swept_from=cursor))).swept_from
    assert (found, type(found)) == (cursor, type(cursor))
    assert found is not None and write_cursor(found) == write_cursor(cursor)


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


def test_what_can_order_rows_and_what_cannot() -> None:
    assert all(is_cursor(v) for v in (0, 0.5, Decimal(1), "", NINE, NINE.date()))
    assert not any(is_cursor(v) for v in (None, True, b"1", float("nan"), Decimal("nan"), [1], NINE.time()))
    assert not any(is_cursor(v) for v in (float("inf"), float("-inf"), Decimal("inf")))
    assert is_cursor(Decimal("1e400"))


def test_a_row_is_known_by_its_id_and_its_cursor() -> None:
    moment = NINE.replace(tzinfo=dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=1)))
    assert (
        StreamRow("a", moment).identity
        == StreamRow("a", elsewhere, "k").identity
        == ("a", "2026-11-01T09:00:00.000000+00:00")
    )
    assert StreamRow("a", 1).identity != StreamRow("a", 2).identity != StreamRow("b", 2).identity
    assert StreamRow("a", 1, "a").place == Place(1, "a")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"position": None, "swept_to": None, "swept_from": {"type": "x", "value": ""}},
        {"position": None, "swept_to": None, "swept_from": {"type": "decimal", "value": "x"}},
        {"position": {"cursor": "1"}, "swept_to": None, "swept_from": None},
    ],
)
def test_what_is_no_position_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="can't be read"):
        from_document(document)
