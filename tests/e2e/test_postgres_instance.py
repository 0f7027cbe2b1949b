"""Store and instance in PostgreSQL, with a real webserver and daemon; each process killed in turn, and all completes.

Slow because webserver and daemon take twenty seconds to start, and each run of theirs six.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL
from web_ui import WebUi
from workplace import COUNTING_MODEL, Server, Workplace, find_free_port, start_server, wait_until

from batch_assets.cli.webui import READY
from batch_assets.resources import PID_TAG
from batch_assets.store.database import parse_url

T = "ticket_triage"
MODEL = "smollm2-135m"
BATCHES = ["2026-11-01", "2026-11-02", "2026-11-03"]
WINDOW = 4
RUN = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status tags { key value } } } }"
FAILURES = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
    ... on ExecutionStepFailureEvent { message error { message cause { message } } }
    ... on EngineEvent { message error { message } } ... on RunFailureEvent { message } } } } }"""
RETRIES = """query($id: String!) { runsOrError(filter: {tags: [{key: "dagster/parent_run_id", value: $id}]}) {
    ... on Runs { results { runId } } } }"""


@dataclass
class Installation:
    """`up` as a person would start it, and what it serves."""

    place: Workplace
    server: Server
    url: URL
    process: subprocess.Popen[bytes]
    ui: WebUi
    log: Path

    def child(self, name: str) -> psutil.Process:
        """Return the webserver or the daemon that lives now."""
        found = [c for c in psutil.Process(self.process.pid).children() if any(name in a for a in c.cmdline())]
        assert len(found) == 1, found
        return found[0]

    def query(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(sql), values)]

    def tags(self, run_id: str) -> dict[str, str]:
        return {t["key"]: t["value"] for t in self.ui.ask(RUN, id=run_id)["runOrError"]["tags"]}

    def require_success(self, run_id: str) -> None:
        """Wait for a run, and say why it failed if it did."""
        status = self.ui.wait_for_run(run_id)
        events = self.ui.ask(FAILURES, id=run_id)["logsForRun"]["events"]
        assert status == "SUCCESS", f"{[e for e in events if e]}\n{self.log.read_text()[-6000:]}"

    def launch_and_wait_for(self, partition: str, requests: int) -> str:
        """Launch a run of llm_outputs and return its id once it has sent so many requests."""
        seen = self.server.count()
        run_id = self.ui.materialize([[T, "llm_outputs"]], partition)
        wait_until(lambda: self.server.count() >= seen + requests, 90, "some requests")
        return run_id

    def wait(self, is_true: Callable[[], bool], timeout_s: float, what: str) -> None:
        try:
            wait_until(is_true, timeout_s, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log.read_text()[-4000:]}") from e

    def assert_complete(self, partition: str, kills: int) -> None:
        """Check a partition by the store and by the server's log: nothing lost, a window repeated for each kill."""
        batch, _, variant = partition.partition("|")
        prompt_ver = variant.partition("--")[0]
        rows = self.query(
            "SELECT status, count(*) FROM llm_batch_results WHERE batch = :b AND prompt_ver = :p GROUP BY 1",
            b=batch, p=prompt_ver,
        )  # fmt: skip
        assert sum(n for _, n in rows) == 44, rows
        assert partition in self.ui.versions([T, "llm_outputs"])
        counts = self.server.counts()
        assert sum(counts.values()) - len(counts) <= kills * WINDOW
        assert self.query("SELECT count(*) FROM concurrency_slots WHERE run_id IS NOT NULL") == [(0,)]


@pytest.fixture(scope="module")
def installation(pg_server: URL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    name = f"instance_{os.getpid()}"
    admin = sa.create_engine(pg_server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = parse_url(pg_server.set(database=name).render_as_string(hide_password=False))
    root = tmp_path_factory.mktemp("pg")
    place = Workplace(root, environment={"BATCH_ASSETS_DB_URL": url.render_as_string(hide_password=False)})
    server = start_server(root, latency_s=0.4)
    place.copy_defs(COUNTING_MODEL.format(port=server.port, window=WINDOW))
    port, log = find_free_port(), root / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "batch_assets.cli.main", "up", "--port", str(port)],
            cwd=root, env=place.variables(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    made = Installation(place, server, url, process, WebUi(port), log)
    try:
        made.wait(lambda: READY in log.read_text() or process.poll() is not None, 120, "readiness")
        assert process.poll() is None, log.read_text()
        for asset, keys in (("source_records", BATCHES), ("variant_specs", [f"v1--{MODEL}"])):
            runs = [made.ui.materialize([[T, asset]], key) for key in keys]
            assert {made.ui.wait_for_run(r) for r in runs} == {"SUCCESS"}
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        server.stop()
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_partition_materializes_and_its_events_lie_in_postgresql(installation: Installation) -> None:
    partition = f"{BATCHES[0]}|v1--{MODEL}"
    run_id = installation.ui.materialize([[T, "llm_outputs"]], partition)
    installation.require_success(run_id)
    installation.assert_complete(partition, kills=0)
    events = "SELECT count(*) FROM event_logs WHERE run_id = :r AND dagster_event_type = 'ASSET_MATERIALIZATION'"
    assert installation.query(events, r=run_id) == [(1,)]
    assert not list(installation.place.home.rglob("*.db")), "nothing is kept in SQLite beside it"
    assert PID_TAG in installation.tags(run_id), "the platform told which process the run has"


def test_a_run_whose_worker_is_killed_is_retried_and_goes_on(installation: Installation) -> None:
    partition = f"{BATCHES[1]}|v1--{MODEL}"
    run_id = installation.launch_and_wait_for(partition, 2 * WINDOW)
    os.kill(int(installation.tags(run_id)[PID_TAG]), signal.SIGKILL)
    assert installation.ui.wait_for_run(run_id) == "FAILURE"

    def retries() -> list[str]:
        return [r["runId"] for r in installation.ui.ask(RETRIES, id=run_id)["runsOrError"]["results"]]

    installation.wait(lambda: bool(retries()), 60, "the retry")
    installation.require_success(retries()[0])
    installation.assert_complete(partition, kills=1)


def test_a_daemon_that_is_killed_is_started_again_and_the_run_goes_on(installation: Installation) -> None:
    partition = f"{BATCHES[2]}|v1--{MODEL}"
    killed = installation.child("dagster._daemon")
    run_id = installation.launch_and_wait_for(partition, WINDOW)
    killed.kill()
    installation.require_success(run_id)
    installation.assert_complete(partition, kills=1)
    installation.wait(lambda: "the daemon ended with status -9" in installation.log.read_text(), 30, "the news of it")
    installation.wait(lambda: installation.child("dagster._daemon").pid != killed.pid, 30, "another daemon")


def test_up_that_is_killed_leaves_neither_of_the_two_behind(installation: Installation) -> None:
    children = [installation.child("dagster_webserver"), installation.child("dagster._daemon")]
    installation.process.kill()
    _, alive = psutil.wait_procs(children, timeout=40)
    assert alive == []
