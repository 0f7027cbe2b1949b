"""When a run's errors are surely too many."""

import random
from pathlib import Path

import pytest
from factories import make_inputs, make_records, make_task

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.requests import Request
from batch_assets.core.tasks import Thresholds
from batch_assets.run.error_limit import ErrorLimit
from batch_assets.run.partition_run import Ask, OpenPartition, PartitionInputs

OK = Verdict(status=Status.OK, payload={})
INVALID = Verdict(status=Status.INVALID, error_kind=ErrorKind.SCHEMA, error="label: not one of")
TIMEOUT = Verdict(status=Status.ERROR, error_kind=ErrorKind.TIMEOUT, error="no answer in 3 s")
CUT = Verdict(status=Status.ERROR, error_kind=ErrorKind.CONTEXT_LENGTH, error="9000 tokens")


def make_ask(inputs: PartitionInputs, number: int = 0) -> Ask:
    messages = inputs.variant.prompt.render(make_records([f"r{number}"])[0])
    request = Request(request_key=f"k{number}", messages=messages, schema={}, sampling=inputs.variant.model.sampling)
    partition = OpenPartition(inputs=inputs, chunks=iter(()))
    return Ask(
        partition=partition, item_id="1", input_hash="h", base=request, request=request,
        attempts_before=0, is_suspect=False
    )  # fmt: skip


@pytest.fixture
def inputs(tmp_path: Path) -> PartitionInputs:
    return work_with(tmp_path)


def work_with(folder: Path, variant: str | None = None, **limits: float | bool) -> PartitionInputs:
    thresholds = Thresholds.model_validate({"max_error_share": 0.1, "min_records": 20, **limits})
    return make_inputs(make_task(folder, prompts=["v1", "v2"], thresholds=thresholds), "b1", [], variant)


def settle(stop: ErrorLimit, ask: Ask, *verdicts: Verdict) -> None:
    for verdict in verdicts:
        stop.record_sent(ask)
        stop.record_settled(ask, verdict)


def test_below_the_floor_nothing_stops_a_run(inputs: PartitionInputs) -> None:
    stop, ask = ErrorLimit(), make_ask(inputs)
    settle(stop, ask, *[TIMEOUT] * 19)
    assert stop.find_reason() is None
    settle(stop, ask, TIMEOUT)
    assert stop.find_reason() is not None


def test_the_reason_says_which_variant_how_many_the_limit_and_the_commonest_error(inputs: PartitionInputs) -> None:
    stop, ask = ErrorLimit(), make_ask(inputs)
    later = Verdict(status=Status.ERROR, error_kind=ErrorKind.TIMEOUT, error="another")
    settle(stop, ask, OK, INVALID, CUT, TIMEOUT, *[later] * 57)
    words = str(stop.find_reason())
    assert words.startswith("t v1--m1: 59 of the 61 records settled in this run are errors")
    assert "max_error_share (10.0%)" in words
    assert "58 are timeout, the first: no answer in 3 s." in words
    assert "the rest stays pending" in words


def test_a_share_near_its_limit_is_not_surely_above_it(inputs: PartitionInputs) -> None:
    stop, ask = ErrorLimit(), make_ask(inputs)
    fifth = [OK, OK, OK, OK, TIMEOUT]
    settle(stop, ask, *fifth * 15)
    assert stop.find_reason() is None, "15 of 75, at z = 3: at least 9.7 %"
    settle(stop, ask, *fifth * 5)
    assert stop.find_reason() is not None, "20 of 100: at least 10.7 %"


def test_a_cluster_of_bad_records_stops_no_healthy_run(inputs: PartitionInputs) -> None:
    for before in (1, 10, 20, 30, 59, 79, 200):
        stop, ask = ErrorLimit(), make_ask(inputs)
        for verdict in [*[OK] * before, *[TIMEOUT] * 20, *[OK] * 200]:
            settle(stop, ask, verdict)
            assert stop.find_reason() is None


def test_a_cluster_that_is_over_is_no_reason_to_stop_and_one_that_goes_on_is(inputs: PartitionInputs) -> None:
    stop, ask = ErrorLimit(), make_ask(inputs)
    settle(stop, ask, OK, *[TIMEOUT] * 39, *[OK] * 22)
    assert stop.find_reason() is None, "39 of 62, and none of the latest 20"
    settle(stop, ask, *[TIMEOUT] * 50)
    assert stop.find_reason() is not None


def test_invalid_answers_are_no_errors(inputs: PartitionInputs) -> None:
    stop = ErrorLimit()
    settle(stop, make_ask(inputs), *[INVALID] * 200)
    assert stop.find_reason() is None


def test_records_in_flight_count_as_good(inputs: PartitionInputs) -> None:
    # Refusals come back at once and answers late: the first to settle are all errors, and say little of the others.
    stop, ask = ErrorLimit(), make_ask(inputs)
    for _ in range(400):
        stop.record_sent(ask)
    for _ in range(30):
        stop.record_settled(ask, CUT)
    assert stop.find_reason() is None
    for _ in range(60):
        stop.record_settled(ask, CUT)
    assert stop.find_reason() is not None


def test_a_record_counts_once_however_often_it_is_tried(tmp_path: Path) -> None:
    stop, ask = ErrorLimit(), make_ask(work_with(tmp_path, max_error_share=0.3))
    for ask.failed in range(3):
        for _ in range(20):
            stop.record_sent(ask)
    for _ in range(20):
        stop.record_settled(ask, TIMEOUT)
    assert "20 of the 20 records" in str(stop.find_reason())


def test_variants_are_counted_apart(tmp_path: Path) -> None:
    stop = ErrorLimit()
    settle(stop, make_ask(work_with(tmp_path)), *[OK] * 500)
    settle(stop, make_ask(work_with(tmp_path, "v2--m1")), *[TIMEOUT] * 19)
    assert stop.find_reason() is None
    settle(stop, make_ask(work_with(tmp_path, "v2--m1")), TIMEOUT)
    assert str(stop.find_reason()).startswith("t v2--m1: 20 of the 20")


@pytest.mark.parametrize("limits", [{"stop_early": False}, {"max_error_share": 1.0}])
def test_a_task_may_have_it_otherwise(tmp_path: Path, limits: dict[str, float]) -> None:
    stop = ErrorLimit()
    settle(stop, make_ask(work_with(tmp_path, **limits)), *[TIMEOUT] * 500)
    assert stop.find_reason() is None


def count_stops(folder: Path, share: float, records: int, runs: int) -> int:
    """Return how many of `runs` are stopped where each of `records` fails with probability `share`."""
    ask, stopped = make_ask(work_with(folder)), 0
    for seed in range(runs):
        rng, stop = random.Random(seed), ErrorLimit()
        for _ in range(records):
            settle(stop, ask, TIMEOUT if rng.random() < share else OK)
            if stop.find_reason():
                stopped += 1
                break
    return stopped


def test_it_is_not_jumpy_and_not_asleep(tmp_path: Path) -> None:
    assert count_stops(tmp_path, 0.05, 1000, 40) == 0  # half of the limit
    assert count_stops(tmp_path, 0.10, 1000, 40) <= 4  # at the limit, looked at a thousand times
    assert count_stops(tmp_path, 0.20, 1000, 40) == 40  # twice the limit
