"""The sensor that tells of failed checks and runs: real instance, real webhook, each thing once."""

import itertools
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from alert_receiver import AlertReceiver
from dagster import DagsterEvent, DagsterInstance
from factories import ScriptedEngine, fail_for_good, make_instance
from temp_project import TempProject

from batch_assets.core.errors import ConfigError, EngineDead
from batch_assets.core.steps import Step
from batch_assets.dagster.sensors import alert_receivers, alerts
from batch_assets.dagster.sensors.alerts import Cursor, build_alerts_sensor, deliver
from batch_assets.settings import Settings, load_settings
from batch_assets.store.alerts import Alert, AlertKind, add_alerts
from batch_assets.store.database import now, open_database
from batch_assets.store.tables import alerts as outbox

SHARES = {"share": 0.041, "limit": 0.02, "records": 132}
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@dg.op
def an_op() -> None:
    """Do nothing."""


@dg.job(name="t__launch_outputs")
def a_job() -> None:
    an_op()


class Desk:
    """A sensor and what it looks at. `tick` does what the daemon does, with a sensor built anew as after a restart."""

    def __init__(self, folder: Path, store_url: str, instance: DagsterInstance | None = None) -> None:
        self.folder = folder
        self.instance = instance or make_instance(folder / "dagster")
        self.store_url = store_url
        self.urls: list[str] = []
        self.cursor: str | None = None

    def tick(self, *, keep_cursor: bool = True) -> str:
        """Evaluate the sensor once; return its words. A daemon that is killed doesn't keep the cursor."""
        settings = Settings(
            home=self.folder, db_url=self.store_url, alert_urls="\n".join(self.urls), ui_url="http://ui:3000"
        )
        sensor = build_alerts_sensor(settings)
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = sensor.evaluate_tick(context)
        if keep_cursor:
            self.cursor = result.cursor
        assert result.run_requests == []
        return result.skip_message or ""

    def start_run(self, **tags: str) -> str:
        """Leave a run at work."""
        return self.instance.create_run_for_job(a_job, status=dg.DagsterRunStatus.STARTED, tags=tags).run_id

    def check(
        self,
        run_id: str,
        partition: str | None = "b1|v1--m1",
        *,
        name: str = "error_share",
        passed: bool = False,
        severity: dg.AssetCheckSeverity = ERROR,
        metadata: Mapping[str, Any] = SHARES,
    ) -> None:
        """Record what a check found."""
        evaluation = dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey(["t", "llm_outputs"]), check_name=name, passed=passed, severity=severity,
            metadata=metadata, partition=partition, blocking=False,
        )  # fmt: skip
        event = DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
            job_name=a_job.name,
            step_key="an_op",
            event_specific_data=evaluation,
        )
        self.instance.report_dagster_event(event, run_id)

    def end(self, run_id: str, how: str = "SUCCESS", why: str = "its process (12 on host) is gone") -> str:
        """End a run."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        if how == "FAILURE":
            self.instance.report_run_failed(run, why)
        elif how == "CANCELED":
            self.instance.report_run_canceled(run)
        else:
            event = DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name, message="done")
            self.instance.report_dagster_event(event, run_id)
        return run_id

    def fail_check(self, partition: str = "b1|v1--m1", **options: Any) -> str:
        """Have a whole run of one failed check."""
        run_id = self.start_run()
        self.check(run_id, partition, **options)
        return self.end(run_id)

    def fail_run(self) -> str:
        """Have a whole run that failed."""
        return self.end(self.start_run(), "FAILURE")

    def rows(self) -> list[dict[str, Any]]:
        """Return the outbox."""
        database = open_database(self.store_url)
        with database.read() as connection:
            rows = connection.execute(sa.select(outbox).order_by(outbox.c.alert_key)).mappings()
            found = [dict(r) for r in rows]
        database.close()
        return found

    def execute(self, statement: sa.Executable) -> None:
        """Change the outbox behind everybody's back."""
        database = open_database(self.store_url)
        with database.write() as connection:
            connection.execute(statement)
        database.close()

    def unsent(self) -> int:
        """Return how many alerts aren't done."""
        return sum(r["sent_at"] is None for r in self.rows())

    def let_time_pass(self) -> None:
        """Make every later try due."""
        self.execute(sa.update(outbox).values(next_try_at=now(), claimed_until=None))


@pytest.fixture(scope="module")
def instance_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an instance without runs: a copy takes a fifth of the time that a new one does."""
    folder = tmp_path_factory.mktemp("instance")
    with make_instance(folder) as instance:
        assert instance.get_runs() == []
    return folder


@pytest.fixture
def new_desk(quick_path: Path, sqlite_url: str, instance_template: Path) -> Iterator[Desk]:
    """Yield a desk whose sensor never ticked and tells nobody."""
    shutil.copytree(instance_template, quick_path / "dagster")
    found = Desk(quick_path, sqlite_url)
    with found.instance:
        yield found


@pytest.fixture
def receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as found:
        yield found


@pytest.fixture
def desk(new_desk: Desk, receiver: AlertReceiver) -> Desk:
    """Return a desk whose sensor has had its first tick and tells the receiver."""
    new_desk.urls = [receiver.url]
    new_desk.tick()
    return new_desk


# What is told


def test_a_failed_check_is_told_once_with_its_figures_and_link(desk: Desk, receiver: AlertReceiver) -> None:
    run_id = desk.fail_check()
    assert desk.tick().startswith("1 new alerts, 1 messages sent")
    for _ in range(3):
        assert desk.tick() == "0 new alerts, 0 messages sent"
    [message] = receiver.messages
    assert message["title"] == "check failed: t"
    assert message["message"] == (
        "t/llm_outputs error_share failed for b1|v1--m1: 0.041 over the limit 0.02 (132 records). "
        f"http://ui:3000/runs/{run_id}"
    )
    assert message["type"] == "failure"


def test_on_both_databases_of_the_store(new_desk: Desk, store_url: str, receiver: AlertReceiver) -> None:
    desk = new_desk
    desk.store_url = store_url
    desk.urls = [receiver.url]
    desk.tick()
    desk.fail_check()
    desk.fail_run()
    desk.tick()
    desk.tick()
    assert sorted(receiver.titles) == ["check failed: t", "run failed: t"]
    assert desk.unsent() == 0


def test_on_both_databases_of_the_instance(
    quick_path: Path, sqlite_url: str, empty_store_url: str, receiver: AlertReceiver
) -> None:
    overrides: dict[str, Any] = {"telemetry": {"enabled": False}}
    if empty_store_url.startswith("postgresql"):
        overrides["storage"] = {"postgres": {"postgres_url": empty_store_url}}
    with dg.DagsterInstance.local_temp(str(quick_path), overrides=overrides) as instance:
        desk = Desk(quick_path, sqlite_url, instance)
        desk.urls = [receiver.url]
        desk.tick()
        desk.fail_check("b1")
        live = desk.start_run()
        desk.check(live, "b2")
        desk.fail_run()
        desk.tick()
        desk.end(live)
        desk.tick()
    assert sorted(line.split(":")[0] for line in receiver.lines) == [
        "run of t (t__launch_outputs) failed",
        "t/llm_outputs error_share failed for b1",
        "t/llm_outputs error_share failed for b2",
    ]


def test_a_check_that_passes_is_not_told(desk: Desk, receiver: AlertReceiver) -> None:
    desk.fail_check(passed=True)
    desk.tick()
    assert desk.rows() == receiver.messages == []


def test_a_warning_is_told_as_one(desk: Desk, receiver: AlertReceiver) -> None:
    desk.fail_check("b1", name="lines_readable", severity=WARN, metadata={"malformed_lines": 3})
    desk.tick()
    assert receiver.titles == ["check warns: t"]
    assert receiver.lines[0].startswith("t/llm_outputs lines_readable warns for b1: malformed_lines 3. http://ui")
    assert receiver.messages[0]["type"] == "warning"


def test_a_check_that_fails_again_in_a_later_run_is_told_again(desk: Desk, receiver: AlertReceiver) -> None:
    for _ in range(2):
        desk.fail_check()
        desk.tick()
    assert len(receiver.messages) == 2


def test_a_check_that_fails_twice_in_one_run_is_told_once(desk: Desk, receiver: AlertReceiver) -> None:
    run_id = desk.start_run()
    desk.check(run_id)
    desk.check(run_id)
    desk.end(run_id)
    desk.tick()
    assert len(receiver.lines) == 1


@pytest.mark.parametrize("how", ["SUCCESS", "FAILURE", "CANCELED"])
def test_checks_are_told_however_their_run_ends(desk: Desk, receiver: AlertReceiver, how: str) -> None:
    run_id = desk.start_run()
    desk.check(run_id)
    desk.end(run_id, how)
    desk.tick()
    assert sorted(receiver.titles) == ["check failed: t", *(["run failed: t"] if how == "FAILURE" else [])]


def test_a_killed_run_is_told_with_its_reason(desk: Desk, receiver: AlertReceiver) -> None:
    run_id = desk.end(desk.start_run(**{"dagster/will_retry": "true"}), "FAILURE")
    desk.tick()
    desk.tick()
    assert receiver.lines == [
        "run of t (t__launch_outputs) failed: its process (12 on host) is gone. Dagster will retry it. "
        f"http://ui:3000/runs/{run_id}"
    ]


def test_many_at_once_are_one_message_per_tick_and_kind(desk: Desk, receiver: AlertReceiver) -> None:
    run_id = desk.start_run()
    for n in range(45):
        desk.check(run_id, f"b{n:02}|v1--m1")
    for n in range(3):
        desk.check(run_id, f"b{n}", severity=WARN, name="lines_readable")
    desk.end(run_id, "FAILURE")
    desk.fail_run()
    desk.tick()
    assert sorted(receiver.titles) == ["2 runs failed: t", "3 checks warn: t", "45 checks failed: t"]
    [checks] = [m["message"].splitlines() for m in receiver.messages if m["title"].startswith("45")]
    assert checks[-1] == f"and {45 - (len(checks) - 1)} more"
    assert desk.unsent() == 0


def test_a_run_at_work_is_told_of_before_it_ends_and_not_again_after(desk: Desk, receiver: AlertReceiver) -> None:
    run_id = desk.start_run()
    desk.check(run_id, "b1")
    desk.tick()
    desk.check(run_id, "b2")
    desk.tick()
    assert [line.split(": ")[0].split()[-1] for line in receiver.lines] == ["b1", "b2"]
    desk.end(run_id)
    desk.tick()
    assert len(receiver.messages) == 2
    assert Cursor.model_validate_json(desk.cursor or "").live == {}


def test_what_the_assets_of_a_real_project_find_is_told(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: AlertReceiver
) -> None:
    monkeypatch.setenv("BATCH_ASSETS_ALERT_URLS", receiver.url)
    project = TempProject(quick_path, monkeypatch, on_disk=True)
    for batch in ("b1", "b2"):
        project.write(batch, {f"{batch}r{n}": f"text of {batch}r{n}" for n in range(4)})
    sensor = project.load().definitions.resolve_sensor_def("alerts")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with project.instance:
        first = sensor.evaluate_tick(dg.build_sensor_context(instance=project.instance))
        assert project.launch(Step.SOURCES, batches=["b1", "b2"], variants=["v1--m1"]).success
        project.use(ScriptedEngine({f"text of b1r{n}": fail_for_good() for n in range(2)}))
        checked = project.launch(Step.OUTPUTS, partitions=["b1|v1--m1", "b2|v1--m1"])
        project.use(ScriptedEngine(default=EngineDead("the server at :9 answers no more")))
        failed = project.materialize(["llm_outputs"], partition="b1|v1--m1", retry="errors")
        assert (checked.success, failed.success) == (True, False)
        sensor.evaluate_tick(dg.build_sensor_context(instance=project.instance, cursor=first.cursor))
    assert sorted(receiver.lines) == [
        "run of t failed for b1|v1--m1: EngineDead: model m1: the server at :9 answers no more. "
        f"http://127.0.0.1:3000/runs/{failed.run_id}",
        "t/llm_outputs error_share failed for b1|v1--m1: 0.5 over the limit 0.25 (4 records). "
        f"http://127.0.0.1:3000/runs/{checked.run_id}",
    ]


# Once, whatever is killed


def test_a_replay_from_an_old_cursor_is_silent(desk: Desk, receiver: AlertReceiver) -> None:
    desk.fail_check()
    desk.fail_run()
    desk.tick(keep_cursor=False)
    assert len(receiver.messages) == 2
    assert desk.tick() == "0 new alerts, 0 messages sent"
    assert len(receiver.messages) == 2


def test_a_replay_without_any_cursor_neither_repeats_nor_drops(desk: Desk, receiver: AlertReceiver) -> None:
    desk.fail_check("b1")
    desk.tick(keep_cursor=False)
    desk.cursor = None
    desk.fail_check("b2")
    desk.tick()
    assert [line.split(": ")[0].split()[-1] for line in receiver.lines] == ["b1", "b2"]


def test_what_was_collected_by_a_tick_that_died_before_sending_is_sent(
    desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.fail_check()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(alerts, "deliver", die)
        with pytest.raises(KeyboardInterrupt):
            desk.tick()
    assert receiver.messages == []
    assert desk.tick() == "0 new alerts, 1 messages sent"
    assert len(receiver.messages) == 1


def test_history_is_not_told_by_the_first_tick(
    new_desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "LOOK_BACK_S", 0)
    desk = new_desk
    desk.urls = [receiver.url]
    desk.fail_check("old")
    desk.fail_run()
    desk.tick()
    desk.fail_check("new")
    desk.tick()
    [line] = receiver.lines
    assert "failed for new" in line


def test_the_first_tick_tells_what_a_kill_just_before_it_left_untold(new_desk: Desk, receiver: AlertReceiver) -> None:
    new_desk.urls = [receiver.url]
    new_desk.fail_check()
    new_desk.tick()
    assert receiver.titles == ["check failed: t"]


@pytest.mark.parametrize("cursor", ["nonsense", "{}", "[]", '{"ends": {"RUN_SUCCESS": 7}}'])
def test_a_cursor_that_cannot_be_read_starts_anew(desk: Desk, receiver: AlertReceiver, cursor: str) -> None:
    desk.fail_check()
    desk.cursor = cursor
    desk.tick()
    desk.tick()
    assert receiver.titles == ["check failed: t"]


def test_an_end_that_is_committed_late_under_a_smaller_id_is_not_missed(desk: Desk, receiver: AlertReceiver) -> None:
    # As PostgreSQL may do it; here by taking the end out of what is seen, which is all that such a tick knows.
    late, early = desk.fail_run(), desk.fail_run()
    desk.tick()
    cursor = json.loads(desk.cursor or "")
    failures = cursor["ends"][dg.DagsterEventType.RUN_FAILURE.value]
    assert len(failures["seen"]) == 2
    failures["seen"].remove(min(failures["seen"]))
    desk.cursor = json.dumps(cursor)
    desk.execute(sa.delete(outbox).where(outbox.c.alert_key == late))
    desk.tick()
    assert [r["alert_key"] for r in desk.rows()] == sorted([late, early])


def test_the_cursor_stays_small(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "OVERLAP", 2)
    for _ in range(6):
        desk.fail_run()
        desk.tick()
    position = Cursor.model_validate_json(desk.cursor or "").ends[dg.DagsterEventType.RUN_FAILURE.value]
    assert len(position.seen) <= 2
    assert len(desk.rows()) == 6


# Bounded ticks


def test_more_runs_than_a_tick_takes_are_told_by_the_next_ones(
    desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "RUNS_PER_TICK", 2)
    runs = [desk.fail_run() for _ in range(5)]
    words = [desk.tick() for _ in range(3)]
    assert ["more runs" in w for w in words] == [True, True, False]
    assert receiver.titles == ["2 runs failed: t", "2 runs failed: t", "run failed: t"]
    assert sorted(r["run_id"] for r in desk.rows()) == sorted(runs)


def test_a_run_too_long_for_one_tick_is_read_on_in_the_next(
    desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = desk.start_run()
    for n in range(5):
        desk.check(run_id, f"b{n}")
    desk.end(run_id)
    monkeypatch.setattr(alerts, "PAGE", 2)
    clock = itertools.count()  # each look at the clock takes a second
    monkeypatch.setattr(alerts.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(alerts, "COLLECT_S", 2)
    words = [desk.tick() for _ in range(4)]
    assert "more runs" in words[0]
    assert "more runs" not in words[-1]
    assert sorted(line.split(": ")[0].split()[-1] for line in receiver.lines) == [f"b{n}" for n in range(5)]
    assert Cursor.model_validate_json(desk.cursor or "").ending == {}


def test_pages_lose_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "PAGE", 3)
    run_id = desk.start_run()
    for n in range(10):
        desk.check(run_id, f"b{n}", passed=n % 3 == 0)
    desk.end(run_id)
    desk.tick()
    assert len(desk.rows()) == 6


# Delivery


def test_a_receiver_that_is_down_gets_everything_once_when_it_is_up_again(desk: Desk, receiver: AlertReceiver) -> None:
    receiver.status = 503
    desk.fail_check("b1")
    words = desk.tick()
    assert "0 messages sent; 1 wait for a later try: 1 (json): " in words
    desk.fail_check("b2")
    desk.tick()
    assert (receiver.messages, receiver.refused, desk.unsent()) == ([], 2, 2)
    desk.tick()
    assert receiver.refused == 2, "tried again before its time"
    receiver.status = 200
    desk.let_time_pass()
    desk.tick()
    desk.let_time_pass()
    desk.tick()
    assert receiver.titles == ["2 checks failed: t"]
    assert desk.unsent() == 0
    assert [r["tries"] for r in desk.rows()] == [1, 1]


def test_what_waits_goes_out_soon_after_the_receiver_takes_something_new(desk: Desk, receiver: AlertReceiver) -> None:
    receiver.status = 500
    desk.fail_check("b1")
    desk.tick()
    receiver.status = 200
    desk.fail_check("b2")
    desk.tick()
    desk.tick()
    assert [line.split(": ")[0].split()[-1] for line in receiver.lines] == ["b2", "b1"]


def test_a_port_where_nobody_listens_is_tried_again(desk: Desk, receiver: AlertReceiver) -> None:
    with AlertReceiver() as gone:
        pass
    desk.urls = [gone.url]
    desk.fail_check()
    assert "1 wait for a later try" in desk.tick()
    desk.urls = [receiver.url]
    desk.let_time_pass()
    desk.tick()
    assert len(receiver.messages) == 1


def test_a_receiver_that_answers_nothing_holds_a_tick_up_for_a_bounded_time(
    desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_receivers, "SEND_S", 0.3)
    receiver.released.clear()
    desk.fail_check()
    words = desk.tick()  # the socket's own time-out, of 4 s, would have other words
    assert receiver.heard.is_set()
    assert "1 wait for a later try: 1 (json): no answer within 0.3 s" in words
    assert desk.unsent() == 1


def test_of_two_receivers_the_one_that_has_it_does_not_get_it_again(desk: Desk, receiver: AlertReceiver) -> None:
    with AlertReceiver(secret="other-s3cr3t") as other:
        desk.urls = [receiver.url, other.url]
        other.status = 500
        desk.fail_check()
        desk.fail_run()
        desk.tick()
        assert (len(receiver.messages), len(other.messages), desk.unsent()) == (2, 0, 2)
        for _ in range(2):
            desk.let_time_pass()
            desk.tick()
        other.status = 200
        desk.let_time_pass()
        desk.tick()
        desk.let_time_pass()
        desk.tick()
        assert sorted(receiver.titles) == sorted(other.titles) == ["check failed: t", "run failed: t"]
        assert desk.unsent() == 0


def test_a_receiver_that_failed_and_was_taken_out_is_waited_for_no_more(desk: Desk, receiver: AlertReceiver) -> None:
    with AlertReceiver() as other:
        other.status = 500
        desk.urls = [receiver.url, other.url]
        desk.fail_check()
        desk.tick()
        desk.urls = [receiver.url]
        desk.let_time_pass()
        desk.tick()
    assert (len(receiver.messages), desk.unsent()) == (1, 0)


def test_two_deliverers_at_once_send_each_alert_once(desk: Desk, receiver: AlertReceiver) -> None:
    # A tick that outlived its time-out goes on in the code server while the daemon begins the next one.
    database = open_database(desk.store_url)
    found = Alert(key="k", kind=AlertKind.RUN_FAILED, subject="t", body="it failed.", link="http://ui", run_id="r")
    with database.write() as connection:
        add_alerts(connection, [found])
    [one] = alert_receivers.check_alert_urls([receiver.url])
    receiver.released.clear()
    first = Thread(target=deliver, args=(database, [one]))
    first.start()
    assert receiver.heard.wait(20)
    assert deliver(database, [one]) == (0, [])
    receiver.released.set()
    first.join()
    assert len(receiver.messages) == 1
    database.close()


# Settings and secrets


def test_without_a_receiver_nothing_is_kept_and_the_tick_says_so(
    desk: Desk, receiver: AlertReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.urls = []
    desk.fail_check("unheard")
    desk.fail_run()
    assert desk.tick() == "nobody is told: BATCH_ASSETS_ALERT_URLS is empty"
    assert desk.rows() == []
    desk.urls = [receiver.url]
    desk.fail_check("heard")
    desk.tick()
    [line] = receiver.lines
    assert "failed for heard" in line


@pytest.mark.parametrize(
    "bad", ["jsn://host/s3cr3t-token", "slack://s3cr3t-token", "s3cr3t-token", "mailto://s3cr3t-token"]
)
def test_a_url_that_nobody_understands_is_refused_when_the_definitions_load(
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    bad: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("BATCH_ASSETS_ALERT_URLS", f"json://127.0.0.1:1/x {bad}")
    project = TempProject(quick_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"^BATCH_ASSETS_ALERT_URLS: URL 2 of 2 ") as raised:
        project.load()
    told = [str(raised.value), repr(load_settings()), caplog.text, *capfd.readouterr()]
    assert not [text for text in told if "s3cr3t" in text]


@pytest.mark.parametrize("how", ["taken", "refused", "gone", "hangs"])
def test_no_secret_of_a_url_is_in_a_row_a_log_or_a_tick(
    desk: Desk,
    receiver: AlertReceiver,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.NOTSET)
    desk.urls = [receiver.url.replace("//", "//user:s3cr3t-p%40ss@") + "?+X-Token=s3cr3t-header"]
    if how == "refused":
        receiver.status = 401
    if how == "gone":
        receiver.stop()
    if how == "hangs":
        monkeypatch.setattr(alert_receivers, "SEND_S", 0.2)
        receiver.released.clear()
    desk.fail_check()
    words = desk.tick()
    [row] = desk.rows()
    assert (row["sent_at"] is None) == (how != "taken") == bool(row["error"])
    told = [words, str(row), desk.cursor or "", caplog.text, *capfd.readouterr()]
    assert not [text for text in told if "s3cr3t" in text]
