"""What an alert says: figures, limits, partitions, links; never a record's text."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterRun

from batch_assets.core.errors import ConfigError, EngineDead, TooManyErrors
from batch_assets.dagster.sensors.alert_messages import MAX_BODY, MAX_LINE, compose, format_check, format_failed_run
from batch_assets.store.alerts import Alert, AlertKind

UI = "http://ui"
SHARES = {"share": 0.0412345, "limit": 0.02, "records": 132}


def check(metadata: Mapping[str, Any] | None = None, **fields: Any) -> Alert:
    given: dict[str, Any] = {"check_name": "error_share", "passed": False, "partition": "b1|v1--m1", **fields}
    evaluation = dg.AssetCheckEvaluation(asset_key=dg.AssetKey(["t", "llm_outputs"]), metadata=metadata, **given)
    return format_check(evaluation, "run-1", UI)


def fail_with(raiser: Callable[[], None]) -> DagsterEvent:
    """Return Dagster's event of a real run's failure."""

    @dg.op
    def an_op() -> None:
        raiser()

    @dg.job
    def a_job() -> None:
        an_op()

    with dg.DagsterInstance.ephemeral() as instance:
        result = a_job.execute_in_process(instance=instance, raise_on_error=False)
        [event] = [e for e in result.all_events if e.event_type is dg.DagsterEventType.RUN_FAILURE]
        return event


def run_alert(failure: DagsterEvent | None = None, **fields: Any) -> Alert:
    given: dict[str, Any] = {"job_name": "ticket__triage__launch_outputs", "run_id": "run-1", **fields}
    return format_failed_run(DagsterRun(**given), failure, UI)


def config(**fields: Any) -> dict[str, Any]:
    return {"ops": {"x_op": {"config": fields}}}


# Checks


def test_a_share_is_told_with_its_limit_and_records() -> None:
    told = check(SHARES)
    assert told.body == "t/llm_outputs error_share failed for b1|v1--m1: 0.04123 over the limit 0.02 (132 records)."
    assert (told.subject, told.link, told.kind) == ("t", "http://ui/runs/run-1", AlertKind.CHECK_FAILED)


def test_a_key_is_run_asset_check_and_partition() -> None:
    told = [check(), check(partition="b2"), check(check_name="c"), check(partition=None), check(SHARES)]
    assert told[0].key == "run-1|t/llm_outputs|error_share|b1|v1--m1"
    assert len({t.key for t in told}) == 4


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"records": 10, "records_without_row": 1}, ": records 10, records_without_row 1."),
        ({"distance": 0.25, "limit": 0.2}, ": distance 0.25, limit 0.2."),
        ({"share": 0.01, "limit": 0.02}, ": 0.01 against the limit 0.02."),
        ({"is_open": True, "count": 0}, ": is_open True, count 0."),
        ({"nothing": None}, "."),
        ({}, "."),
        (None, "."),
    ],
)
def test_other_checks_tell_their_figures(metadata: Mapping[str, Any] | None, words: str) -> None:
    assert check(metadata).body == f"t/llm_outputs error_share failed for b1|v1--m1{words}"


@pytest.mark.parametrize(
    "value",
    [
        "my card was stolen",
        dg.MetadataValue.md("- my card was stolen"),
        dg.MetadataValue.json({"first": ["my card was stolen"]}),
        dg.MetadataValue.url("http://x/my card was stolen"),
        dg.MetadataValue.path("my card was stolen"),
        dg.MetadataValue.table([dg.TableRecord({"text": "my card was stolen"})]),
    ],
)
def test_what_may_quote_a_record_is_left_out(value: Any) -> None:
    told = check({"first": value, **SHARES}, description="my card was stolen")
    assert "card" not in str(told)
    assert "over the limit" in told.body
    assert check({"first": value, "count": 1}).body.endswith(" for b1|v1--m1: count 1.")


def test_a_check_without_a_partition_names_none() -> None:
    assert check(SHARES, partition=None).body.startswith("t/llm_outputs error_share failed: 0.04")


def test_a_warning_says_that_it_is_one() -> None:
    told = check({"malformed_lines": 3}, severity=dg.AssetCheckSeverity.WARN)
    assert told.kind is AlertKind.CHECK_WARNED
    assert told.body == "t/llm_outputs error_share warns for b1|v1--m1: malformed_lines 3."


# Runs


def test_a_run_of_the_planner_is_told_by_its_task_and_partitions() -> None:
    told = run_alert(run_config=config(partitions=["b1|v", "b2|v"]))
    assert told.subject == "ticket__triage"
    assert told.body == (
        "run of ticket__triage (ticket__triage__launch_outputs) failed for b1|v, b2|v: no reason recorded."
    )
    assert (told.key, told.kind, told.link) == ("run-1", AlertKind.RUN_FAILED, "http://ui/runs/run-1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tags": {"dagster/partition": "b1|v1--m1"}}, "failed for b1|v1--m1: "),
        (
            {
                "tags": {
                    "dagster/asset_partition_range_start": "b1|v",
                    "dagster/asset_partition_range_end": "b9|v",
                }
            },
            "failed for b1|v to b9|v: ",
        ),
        ({"run_config": config(partitions=[f"b{n}" for n in range(9)])}, "failed for b0, b1, b2 and 6 more: "),
        ({"run_config": config(batches=["b1"], variants=["v1--m1"])}, "failed for b1: "),
        ({"run_config": config(retry="none")}, "failed: "),
        ({"run_config": {"ops": {"x": None}}}, "failed: "),
        ({}, "failed: "),
    ],
)
def test_the_partitions_of_a_run_are_named(fields: dict[str, Any], words: str) -> None:
    assert f" {words}" in run_alert(**fields).body


def test_the_task_of_a_run_from_the_web_ui_is_that_of_its_assets() -> None:
    told = run_alert(job_name="__ASSET_JOB", asset_selection={dg.AssetKey(["b", "x"]), dg.AssetKey(["a", "x"])})
    assert told.subject == "a, b"
    assert told.body.startswith("run of a, b failed: ")


def test_the_task_of_a_run_without_a_selection_is_that_of_the_step_that_failed() -> None:
    @dg.asset(key=["my__task", "llm_outputs"])
    def llm_outputs() -> None:
        raise ConfigError("no such model")

    job = dg.Definitions(assets=[llm_outputs]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        [event] = [e for e in result.all_events if e.event_type is dg.DagsterEventType.RUN_FAILURE]
    assert run_alert(event, job_name="__ASSET_JOB").body == "run of my__task failed: ConfigError: no such model."
    assert run_alert(job_name="__ASSET_JOB").body == "run of assets failed: no reason recorded."


@pytest.mark.parametrize(("value", "is_told"), [("true", True), ("false", False)])
def test_a_run_that_dagster_retries_says_so(value: str, is_told: bool) -> None:
    assert run_alert(tags={"dagster/will_retry": value}).body.endswith(" Dagster will retry it.") == is_told


def raise_ours() -> None:
    try:
        raise ValueError("my card was stolen")
    except ValueError as e:
        raise ConfigError("models.yaml: m1: weights: Field required\nand more") from e


def raise_wrapped() -> None:
    try:
        raise EngineDead("the server answers no more")
    except EngineDead as e:
        raise RuntimeError("my card was stolen") from e


def raise_other() -> None:
    raise ValueError("my card was stolen")


def raise_quoting() -> None:
    raise TooManyErrors("30 are errors, the first: HTTP 400: <b>my</b> [card](javascript:x) <https://x|`was`>")


def test_what_a_server_said_is_no_markup_in_a_message() -> None:
    body = run_alert(fail_with(raise_quoting)).body
    assert not set("<>[]`") & set(body)
    assert "the first: HTTP 400: " in body and "card" in body


@pytest.mark.parametrize(
    ("raiser", "words"),
    [
        (raise_ours, "ConfigError: models.yaml: m1: weights: Field required."),
        (raise_wrapped, "EngineDead: the server answers no more."),
        (raise_other, "ValueError in step an_op."),
    ],
)
def test_an_error_of_ours_is_quoted_and_that_of_others_only_named(raiser: Callable[[], None], words: str) -> None:
    told = run_alert(fail_with(raiser))
    assert told.body.endswith(f" failed: {words}")
    assert "card" not in str(told)


@pytest.mark.parametrize(
    ("message", "words"),
    [("its process is gone\nmore", "its process is gone."), ("gone.", "gone."), (None, "no reason recorded.")],
)
def test_a_run_without_an_error_tells_what_dagster_says(message: str | None, words: str) -> None:
    event = DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, job_name="j", message=message)
    assert run_alert(event).body.endswith(f" failed: {words}")


# Messages


def alerts(count: int, body: str = "it failed.", **fields: Any) -> list[Alert]:
    given: dict[str, Any] = {"kind": AlertKind.CHECK_FAILED, "subject": "t", "link": "http://ui/runs/r", **fields}
    return [Alert(key=str(n), body=f"{n}: {body}", run_id="r", **given) for n in range(count)]


@pytest.mark.parametrize(
    ("kind", "one", "many"),
    [
        (AlertKind.CHECK_FAILED, "check failed: t", "2 checks failed: t"),
        (AlertKind.CHECK_WARNED, "check warns: t", "2 checks warn: t"),
        (AlertKind.RUN_FAILED, "run failed: t", "2 runs failed: t"),
    ],
)
def test_a_title_counts_and_names_the_task(kind: AlertKind, one: str, many: str) -> None:
    assert (compose(kind, alerts(1))[0], compose(kind, alerts(2))[0]) == (one, many)


def test_a_title_names_each_task_once() -> None:
    told = [*alerts(2), *alerts(1, subject="u"), *alerts(1)]
    assert compose(AlertKind.CHECK_FAILED, told)[0] == "4 checks failed: t, u"


def test_each_alert_is_a_line_with_its_link() -> None:
    assert compose(AlertKind.CHECK_FAILED, alerts(2))[1] == (
        "0: it failed. http://ui/runs/r\n1: it failed. http://ui/runs/r"
    )


@pytest.mark.parametrize(
    ("count", "last"), [(20, "19: it failed. http://ui/runs/r"), (21, "and 1 more"), (500, "and 480 more")]
)
def test_of_many_twenty_are_listed(count: int, last: str) -> None:
    assert compose(AlertKind.CHECK_FAILED, alerts(count))[1].splitlines()[-1] == last


def test_a_message_stays_within_what_services_take() -> None:
    title, body = compose(AlertKind.CHECK_FAILED, alerts(30, "x" * (MAX_LINE - 10), subject="y" * 300))
    shown = body.splitlines()
    assert len(body) <= MAX_BODY + 20
    assert shown[-1] == f"and {30 - (len(shown) - 1)} more"
    assert len(title) <= 200


def test_a_line_is_one_line_and_not_endless() -> None:
    told = check(SHARES, partition="b1\nb2" + "x" * 900)
    assert len(told.body) == MAX_LINE
    assert told.body.endswith("…")
    assert "b1 b2x" in told.body
