"""What of a plan is worth launching now: budget, waits, what is busy, what is being written."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import pytest
from factories import make_task

from batch_assets.core.errors import ConfigError
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.dagster.runs import check_job_names, job_name, op_config, op_name
from batch_assets.pipeline.dispatch import FAILURE_BUDGET, Choice, InFlight, choose, wait_after
from batch_assets.pipeline.plan import PartitionNeed, Plan
from batch_assets.sources.base import BatchRef
from batch_assets.store.failures import Failing

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
LONG_AGO = NOW - dt.timedelta(days=1)
P1, P2 = PartitionKey("b1", "v1--m1"), PartitionKey("b2", "v1--m1")


def need(partition: PartitionKey = P1, **fields: object) -> PartitionNeed:
    return PartitionNeed(partition=partition, fingerprint="wanted", missing=1, **fields)


def fail(
    partition: str = "b1|v1--m1", failures: int = 1, step: Step = Step.OUTPUTS, wanted: str = "wanted",
    failed_at: dt.datetime = LONG_AGO,
) -> Mapping[tuple[Step, str], Failing]:  # fmt: skip
    failing = Failing(
        step=step, partition=partition, wanted=wanted, failures=failures, error="it broke", run_id="r",
        failed_at=failed_at,
    )  # fmt: skip
    return {(step, partition): failing}


def look(
    tmp_path: Path, failing: Mapping[tuple[Step, str], Failing] | None = None, in_flight: InFlight | None = None,
    budget: int = FAILURE_BUDGET, is_patient: bool = True, **plan: object,
) -> Choice:  # fmt: skip
    made = Plan(task=make_task(tmp_path), **plan)
    return choose(made, failing or {}, in_flight or InFlight(), NOW, budget=budget, is_patient=is_patient)


def test_all_that_is_needed_is_launched(tmp_path: Path) -> None:
    ref = BatchRef(batch="b3", locator="b3.csv", change_token="1")
    found = look(tmp_path, needs=(need(P1), need(P2)), unfrozen=(ref,), outdated=(P1,), versions={P1: "f.c"})
    assert [n.partition for n in found.needs] == [P1, P2]
    assert found.unfrozen == (ref,)
    assert found.outdated == (P1,)
    assert not found.is_empty
    assert look(tmp_path).format_summary() == "nothing is missing or stale"


def test_what_is_leased_or_on_the_list_of_a_run_is_busy(tmp_path: Path) -> None:
    in_flight = InFlight(partitions={Step.OUTPUTS: frozenset({str(P2)})})
    found = look(tmp_path, in_flight=in_flight, needs=(need(P1, leased_by="r"), need(P2)))
    assert (found.needs, found.busy) == ((), 2)
    assert found.format_summary() == "2 partitions are at work or in the queue"


def test_a_list_for_another_step_keeps_nobody_busy(tmp_path: Path) -> None:
    in_flight = InFlight(partitions={Step.RESULTS: frozenset({str(P1)})})
    assert len(look(tmp_path, in_flight=in_flight, needs=(need(P1),)).needs) == 1


@pytest.mark.parametrize(("failures", "is_held"), [(FAILURE_BUDGET - 1, False), (FAILURE_BUDGET, True)])
def test_a_partition_that_failed_as_often_as_the_budget_allows_is_held(
    tmp_path: Path, failures: int, is_held: bool
) -> None:
    found = look(tmp_path, fail(failures=failures), needs=(need(),))
    assert bool(found.over_budget) == is_held
    assert bool(found.needs) != is_held
    assert look(tmp_path, fail(failures=failures), needs=(need(),), budget=failures + 1).needs


def test_a_change_starts_the_budget_anew(tmp_path: Path) -> None:
    assert look(tmp_path, fail(failures=99, wanted="what it was"), needs=(need(),)).needs


@pytest.mark.parametrize(("seconds", "is_waiting"), [(59, True), (60, False)])
def test_a_partition_that_failed_twice_waits_a_minute(tmp_path: Path, seconds: int, is_waiting: bool) -> None:
    failing = fail(failures=2, failed_at=NOW - dt.timedelta(seconds=seconds))
    found = look(tmp_path, failing, needs=(need(),))
    assert bool(found.waiting) == is_waiting
    assert bool(found.needs) != is_waiting


def test_the_wait_doubles_up_to_an_hour() -> None:
    assert [wait_after(n).total_seconds() for n in (0, 1, 2, 3, 4, 7, 8, 1000)] == [
        30, 30, 60, 120, 240, 1920, 3600, 3600,
    ]  # fmt: skip


def test_those_that_failed_least_go_first(tmp_path: Path) -> None:
    found = look(tmp_path, fail(str(P1)), needs=(need(P1), need(P2)))
    assert [n.partition for n in found.needs] == [P2, P1]


def test_a_gate_that_refused_results_is_not_asked_again_until_the_output_changes(tmp_path: Path) -> None:
    failing = fail(step=Step.RESULTS, wanted="f.c")
    held = look(tmp_path, failing, outdated=(P1,), versions={P1: "f.c"})
    assert held.is_empty
    assert held.format_summary() == "1 have results that a check holds back: b1|v1--m1"
    assert look(tmp_path, failing, outdated=(P1,), versions={P1: "f.d"}).outdated == (P1,)


@pytest.mark.parametrize(
    ("age_s", "is_settled"), [(0, False), (9.9, False), (10, True), (-9.9, False), (-10, True), (-3600, True)]
)
def test_a_file_that_was_just_written_waits(tmp_path: Path, age_s: float, is_settled: bool) -> None:
    ref = BatchRef(batch="b1", locator="", change_token="1", changed_at=NOW.timestamp() - age_s, settle_s=10)
    found = look(tmp_path, unfrozen=(ref,))
    assert bool(found.unfrozen) == is_settled
    assert found.unsettled == (() if is_settled else ("b1",))
    assert look(tmp_path, unfrozen=(ref,), is_patient=False).unfrozen, "a person who launches it means it"


def test_a_broken_file_is_held_until_it_changes(tmp_path: Path) -> None:
    failing = fail("b1", FAILURE_BUDGET, Step.SOURCES, wanted="12:34")
    assert look(tmp_path, failing, unfrozen=(BatchRef(batch="b1", locator="", change_token="12:34"),)).is_empty
    assert look(tmp_path, failing, unfrozen=(BatchRef(batch="b1", locator="", change_token="12:35"),)).unfrozen


def test_partitions_of_a_batch_that_is_to_be_frozen_come_later(tmp_path: Path) -> None:
    found = look(tmp_path, needs=(need(P1), need(P2)), unfrozen=(BatchRef(batch="b1", locator="", change_token="1"),))
    assert [n.partition for n in found.needs] == [P2]


def test_names_of_jobs_and_ops() -> None:
    assert job_name("t", Step.OUTPUTS, "qwen-2.5") == "t__launch_outputs__qwen_2_5"
    assert op_name(job_name("t", Step.SOURCES)) == "t__launch_sources_op"
    assert op_config("j", {"a": 1}) == {"ops": {"j_op": {"config": {"a": 1}}}}


def test_two_models_that_would_have_one_job_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models a-b and a\.b differ in signs alone"):
        check_job_names(make_task(tmp_path, models=("a-b", "a.b")))
