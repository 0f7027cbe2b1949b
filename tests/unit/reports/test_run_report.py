"""The figures of a run report, each against its formula."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batch_assets.reports.run_report import RunReport, make_report, percentile

FIGURES: dict[str, Any] = {
    "ok": 90,
    "invalid": 6,
    "error": 4,
    "reused": 10,
    "superseded": 3,
    "error_kinds": {"timeout": 4, "schema": 6},
    "attempts": 100,
    "asked_records": 90,
    "prompt_tokens": 9000,
    "completion_tokens": 1000,
    "cached_tokens": 500,
    "unknown_usage": 2,
    "engine_s": 50.0,
    "latencies_s": [0.1, 0.2, 0.3, 0.4],
    "price_per_gpu_hour": 3.6,
}


def report(**changed: Any) -> RunReport:
    return make_report(**{**FIGURES, **changed})


def test_each_figure_follows_its_formula() -> None:
    found = report()
    assert found.total == 100
    assert found.repeated == 10
    assert found.seconds == 50
    assert found.records_per_s == 1.8
    assert found.tokens_per_s == 200
    assert found.cost == pytest.approx(50 / 3600 * 3.6)
    assert (found.latency_p50_s, found.latency_p95_s) == (0.2, 0.4)
    assert (found.error_share, found.invalid_share) == (0.04, 0.06)


@settings(deadline=None)
@given(*[st.integers(0, 1000)] * 3)
def test_the_total_is_the_sum_of_the_states_and_the_shares_are_parts_of_it(ok: int, invalid: int, error: int) -> None:
    found = report(ok=ok, invalid=invalid, error=error)
    assert found.total == ok + invalid + error
    assert 0 <= found.error_share + found.invalid_share <= 1
    assert found.error_share * found.total == pytest.approx(error)


@pytest.mark.parametrize("nothing", [{"asked_records": 0, "attempts": 0, "engine_s": 0.0}, {"engine_s": 0.0}])
def test_where_nothing_was_asked_there_is_no_rate(nothing: dict[str, Any]) -> None:
    found = report(**nothing, latencies_s=[], prompt_tokens=0, completion_tokens=0)
    assert (found.records_per_s, found.tokens_per_s) == (None, None)
    assert (found.latency_p50_s, found.latency_p95_s) == (None, None)
    assert (found.seconds, found.cost) == (0, 0)


def test_unknown_usage_is_not_a_rate_of_zero() -> None:
    found = report(prompt_tokens=0, completion_tokens=0, cached_tokens=0, unknown_usage=100)
    assert found.tokens_per_s is None
    assert found.records_per_s == 1.8


def test_an_empty_partition_has_shares_of_zero() -> None:
    found = report(ok=0, invalid=0, error=0)
    assert (found.error_share, found.invalid_share) == (0, 0)


def test_figures_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="repeated"):
        report(attempts=1, asked_records=2)


def test_the_numbers_are_what_is_known_and_can_be_plotted() -> None:
    found = report().numbers()
    assert all(type(value) in (int, float) for value in found.values())
    assert (found["error_share"], found["invalid_share"], found["records_per_s"], found["total"]) == (
        0.04, 0.06, 1.8, 100,
    )  # fmt: skip
    assert {"prompt_tokens", "completion_tokens", "cached_tokens", "tokens_per_s", "cost"} <= set(found)


def test_a_shares_number_is_rounded_to_be_read_and_the_share_itself_is_exact() -> None:
    found = report(ok=2, invalid=1, error=0)
    assert found.numbers()["invalid_share"] == 0.333333
    assert found.invalid_share == 1 / 3


def test_what_is_unknown_is_no_number() -> None:
    rates = {"records_per_s", "tokens_per_s", "latency_p50_s", "latency_p95_s"}
    assert not rates & set(report(asked_records=0, attempts=0, engine_s=0.0, latencies_s=[]).numbers())
    tokens = {"prompt_tokens", "completion_tokens", "cached_tokens", "tokens_per_s"}
    assert not tokens & set(report(unknown_usage=100).numbers())
    assert report(unknown_usage=99).numbers()["prompt_tokens"] == 9000
    assert report(attempts=0, asked_records=0, unknown_usage=0, prompt_tokens=0).numbers()["prompt_tokens"] == 0


def test_a_report_keeps_its_labels_and_one_without_them_has_none() -> None:
    labelled = report().model_copy(update={"labels": {"label": {"a": 3}}})
    assert RunReport.model_validate(labelled.model_dump(mode="json")) == labelled
    assert RunReport.model_validate(report().model_dump(mode="json", exclude={"labels"})).labels == {}


def find_percentile(values: list[int], share: Fraction) -> int:
    """Return the smallest value that at least `share` of all don't exceed, found by trying each."""
    return min(v for v in values if Fraction(sum(w <= v for w in values), len(values)) >= share)


@settings(deadline=None, max_examples=120)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=120), st.integers(0, 1000))
def test_a_percentile_is_the_smallest_value_that_its_share_does_not_exceed(values: list[int], permille: int) -> None:
    share = Fraction(permille, 1000)
    assert percentile(values, float(share)) == find_percentile(values, share)


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 100, 101])
def test_the_rank_is_exact_where_floats_are_not(count: int) -> None:
    values = list(range(1, count + 1))
    for percent in range(1, 101):
        assert percentile(values, percent / 100) == -(-count * percent // 100)


def test_the_order_of_values_does_not_matter_and_none_of_them_is_none() -> None:
    assert percentile(iter([3.0, 1.0, 2.0]), 0.5) == 2
    assert percentile([], 0.5) is None
