"""Each process killed in turn, during work: all completes without a hand, counted where the work leaves its traces.

A real webserver and daemon, store and instance in a PostgreSQL of the test's own. Slow because webserver and daemon
take twenty seconds to start, and each run of theirs six.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from postgres import Postgres
from web_ui import REPOSITORY, WebUi
from workplace import COUNTING_MODEL, Server, Workplace, find_free_port, start_server, wait_until

from batch_assets.cli.webui import READY
from batch_assets.store.database import parse_url

pytestmark = [pytest.mark.kills, pytest.mark.timeout(600)]

TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


class Mood(BaseModel):
    mood: Literal["glad", "sad"]


@dg.component_instance
def letters(_context) -> LlmTask:
    return LlmTask(name="letters", source=FileSource("files/*.jsonl", settle_s=1), output=Mood, models=["smollm2-135m"])
"""
VARIANT = "v1--smollm2-135m"
RECORDS, WINDOW, LATENCY_S = 60, 4, 0.3
AWAY_S = 15
"""Longer than Dagster tries to reach its database again (11 s) before it gives a run up."""
RECOVERS_S = 180
"""What the issue gives each victim."""
RUNS = """{ runsOrError(limit: 500) { ... on Runs { results {
    runId status jobName tags { key value } } } } }"""
FAILURES = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
    ... on ExecutionStepFailureEvent { message error { message cause { message } } }
    ... on EngineEvent { message error { message } } ... on RunFailureEvent { message } } } } }"""
START = "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
CHECKS = """query($key: AssetKeyInput!, $name: String!) {
    assetCheckExecutions(assetKey: $key, checkName: $name, limit: 100) { runId status evaluation { partition } } }"""


@dataclass
class Installation:
    """`up` as a person would start it, all that it stands on, and what went through it until now."""

    place: Workplace
    server: Server
    postgres: Postgres
    url: sa.URL
    process: subprocess.Popen[bytes]
    ui: WebUi
    log: Path
    heard: Path
    batches: list[str] = field(default_factory=list[str])
    kills: int = 0
    """How many of them may have cost a window of requests."""

    def child(self, name: str) -> psutil.Process:
        """Return the webserver or the daemon that lives now."""
        found = [c for c in psutil.Process(self.process.pid).children() if any(name in a for a in c.cmdline())]
        assert len(found) == 1, found
        return found[0]

    def query(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(sql), values)]

    def begin(self, batch: str) -> str:
        """Write a new file; return the run that asks its records, in the middle of that."""
        seen = self.server.count()
        folder = self.place.defs / "letters" / "files"
        lines = [json.dumps({"item_id": f"{batch}-{i}", "text": f"letter {i} of {batch}"}) for i in range(RECORDS)]
        (folder / f".{batch}").write_text("\n".join([*lines, "{ not JSON"]) + "\n")
        (folder / f".{batch}").rename(folder / f"{batch}.jsonl")
        self.batches.append(batch)
        self.wait(lambda: self.server.count() >= seen + 3 * WINDOW, 120, f"requests of {batch}")
        return self.query("SELECT run_id FROM llm_leases WHERE batch = :b", b=batch)[0][0]

    def finish(self, batch: str) -> None:
        """Wait until a batch has its results, and check that nothing is lost or asked again beyond the windows."""
        self.wait(lambda: self._is_done(batch), RECOVERS_S, f"the results of {batch}")
        rows = "SELECT item_id, status FROM llm_batch_results WHERE batch = :b"
        assert Counter(self.query(rows, b=batch)) == Counter((f"{batch}-{i}", "ok") for i in range(RECORDS))
        counts = self.server.counts()
        assert len(counts) == RECORDS * len(self.batches)
        assert sum(counts.values()) - len(counts) <= self.kills * WINDOW

    def _is_done(self, batch: str) -> bool:
        with suppress(OSError):  # the webserver may be away
            return f"{batch}|{VARIANT}" in self.ui.versions(["letters", "validated_results"])
        return False

    def ask(self, query: str, **variables: Any) -> Any:
        """Ask until the webserver answers: after an outage it fails once for each connection that it had kept."""
        answers: list[Any] = []

        def is_answered() -> bool:
            with suppress(OSError):
                answers.append(self.ui.ask(query, **variables))
            return bool(answers)

        wait_until(is_answered, 60, "an answer of the webserver")
        return answers[0]

    def runs(self) -> list[dict[str, Any]]:
        found = self.ask(RUNS)["runsOrError"]["results"]
        return [{**run, "tags": {t["key"]: t["value"] for t in run["tags"]}} for run in found]

    def require_success(self, run_id: str) -> None:
        """Check how a run ended, and say why if it failed."""
        if self.run(run_id)["status"] != "SUCCESS":
            events = self.ask(FAILURES, id=run_id)["logsForRun"]["events"]
            pytest.fail(f"{run_id}: {[e for e in events if e]}\n{self.log.read_text()[-6000:]}")

    def is_quiet(self) -> bool:
        return all(r["status"] in ("SUCCESS", "FAILURE") for r in self.runs())

    def run(self, run_id: str) -> dict[str, Any]:
        return next(r for r in self.runs() if r["runId"] == run_id)

    def wait(self, is_true: Callable[[], bool], timeout_s: float, what: str) -> None:
        try:
            wait_until(is_true, timeout_s, what)
        except AssertionError as e:
            runs = "\n".join(str(r) for r in self.runs()[:8])
            raise AssertionError(f"{e}\n{runs}\n{self.log.read_text()[-6000:]}") from e


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def installation(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    root = tmp_path_factory.mktemp("turn")
    url = parse_url(postgres.url.render_as_string(hide_password=False))
    heard, alert_port = root / "alerts.log", find_free_port()
    place = Workplace(
        root,
        environment={
            "BATCH_ASSETS_DB_URL": url.render_as_string(hide_password=False),
            "BATCH_ASSETS_SENSOR_INTERVAL_S": "3",
            "BATCH_ASSETS_ALERT_URLS": f"json://127.0.0.1:{alert_port}/s3cr3t-hook-path",
        },
    )
    server = start_server(root, LATENCY_S)
    script = Path(__file__).parent.parent / "alert_receiver.py"
    receiver = subprocess.Popen([sys.executable, str(script), str(alert_port), str(heard)])
    place.copy_defs(COUNTING_MODEL.format(port=server.port, window=WINDOW), tasks=())
    folder = place.defs / "letters"
    (folder / "prompts").mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "task.py").write_text(TASK)
    (folder / "prompts" / "v1.md").write_text("---\ndescription: the first\n---\nIs this glad? {{ text }}\n")
    port, log = find_free_port(), root / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "batch_assets.cli.main", "up", "--port", str(port)],
            cwd=root, env=place.variables(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    made = Installation(place, server, postgres, url, process, WebUi(port), log, heard)
    try:
        made.wait(lambda: READY in log.read_text() or process.poll() is not None, 120, "readiness")
        assert process.poll() is None, log.read_text()
        made.ui.ask(START, s={**REPOSITORY, "sensorName": "letters__missing_and_stale"})
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        made.server.stop()
        receiver.kill()
        receiver.wait()


def test_the_webserver_is_started_again_and_the_run_goes_on(installation: Installation) -> None:
    run_id = installation.begin("a-webserver")
    installation.child("dagster_webserver").kill()
    installation.finish("a-webserver")
    installation.require_success(run_id)
    assert "the webserver ended with status -9; it starts again" in installation.log.read_text()
    events = "SELECT count(*) FROM event_logs WHERE run_id = :r AND dagster_event_type = 'ASSET_MATERIALIZATION'"
    assert installation.query(events, r=run_id) == [(1,)], "events lie in PostgreSQL"
    assert not list(installation.place.home.rglob("*.db")), "nothing is kept in SQLite beside it"


def test_the_daemon_is_started_again_and_the_run_goes_on(installation: Installation) -> None:
    run_id = installation.begin("b-daemon")
    installation.child("dagster._daemon").kill()
    installation.finish("b-daemon")
    installation.require_success(run_id)  # it has a process of its own
    assert "the daemon ended with status -9; it starts again" in installation.log.read_text()


def test_a_run_whose_worker_is_killed_is_retried_and_goes_on(installation: Installation) -> None:
    run_id = installation.begin("c-worker")
    installation.kills += 1
    os.kill(installation.query("SELECT pid FROM llm_runs WHERE run_id = :r", r=run_id)[0][0], signal.SIGKILL)
    installation.finish("c-worker")
    assert installation.run(run_id)["status"] == "FAILURE"
    (retry,) = [r["runId"] for r in installation.runs() if r["tags"].get("dagster/parent_run_id") == run_id]
    installation.require_success(retry)


def test_a_model_server_that_is_away_too_long_fails_a_run_and_the_planner_asks_again(
    installation: Installation,
) -> None:
    run_id = installation.begin("d-server")
    installation.kills += 3  # up to three tries of what was in flight when it went
    port = installation.server.port
    installation.server.stop()
    installation.wait(lambda: installation.run(run_id)["status"] == "FAILURE", 60, "the end of the run")
    installation.server = start_server(installation.place.root, LATENCY_S, port)
    installation.finish("d-server")


def test_postgresql_that_is_away_for_a_while_costs_no_work(installation: Installation) -> None:
    run_id = installation.begin("e-postgres")
    installation.kills += 1
    installation.postgres.kill()
    time.sleep(AWAY_S)
    installation.postgres.start()
    installation.finish("e-postgres")
    installation.require_success(run_id)  # it waited, and began its step again


def test_nothing_stays_taken_and_each_failure_was_told_once(installation: Installation) -> None:
    installation.wait(installation.is_quiet, 90, "the end of all runs")
    assert installation.query("SELECT count(*) FROM llm_leases") == [(0,)]
    assert installation.query("SELECT count(*) FROM concurrency_slots WHERE run_id IS NOT NULL") == [(0,)]
    failed = {r["runId"] for r in installation.runs() if r["status"] == "FAILURE"}
    checks = installation.ask(CHECKS, key={"path": ["letters", "source_records"]}, name="lines_readable")
    warned = {c["evaluation"]["partition"] for c in checks["assetCheckExecutions"] if c["status"] == "FAILED"}
    assert warned == set(installation.batches)

    def lines() -> list[str]:
        messages = [json.loads(text)["message"] for text in installation.heard.read_text().splitlines()]
        return [line for message in messages for line in message.splitlines()]

    expected = len(failed) + len(warned)
    installation.wait(lambda: len(lines()) >= expected, 60, f"{expected} alerts")
    told = lines()
    assert Counter(run for run in failed for line in told if line.endswith(run)) == dict.fromkeys(failed, 1), told
    assert len(told) == expected, told
    assert installation.query("SELECT count(*) FROM llm_alerts WHERE sent_at IS NULL") == [(0,)]


def test_up_that_is_killed_leaves_neither_of_the_two_behind(installation: Installation) -> None:
    children = [installation.child("dagster_webserver"), installation.child("dagster._daemon")]
    installation.process.kill()
    _, alive = psutil.wait_procs(children, timeout=40)
    assert alive == []
