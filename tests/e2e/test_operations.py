"""A day at the web UI: new files, backfills with holes, an edited prompt, a partition that fails its check, a run that
is terminated; with a real webserver and daemon, through the GraphQL that a browser sends.

Slow because webserver and daemon take twenty seconds to start, and each run of theirs six.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest
from alert_receiver import AlertReceiver
from web_ui import LAUNCH, REPOSITORY, WebUi
from workplace import Server, Workplace, find_free_port, start_server, wait_until

from batch_assets.cli.webui import READY
from batch_assets.dagster.runs import LAUNCHED_BY_RUN_TAG, PLAN_JOB, op_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

T = "ops"
V1, V2 = "v1--small", "v2--small"
OUTPUTS, VALIDATED = [T, "llm_outputs"], [T, "validated_results"]
WINDOW = 4
SLOW_RECORDS = 16
LONG, LONG_RECORDS = "zlong", 40
SETTLE_S = 3
MODELS = f"""\
small:
  weights: counting
  engine: openai
  base_url: http://127.0.0.1:{{port}}/v1
  max_in_flight: {WINDOW}
  price_per_gpu_hour: 2.5
"""
TASK = f'''
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.core.tasks import Nightly, Thresholds
from batch_assets.sources.files import FileSource


class Label(BaseModel):
    label: Literal["card", "transfer", "login", "loan"]
    urgent: bool


@dg.component_instance
def {T}(_context) -> LlmTask:
    return LlmTask(
        name="{T}",
        source=FileSource("files/*.csv", settle_s={SETTLE_S}),
        output=Label,
        models=["small"],
        thresholds=Thresholds(max_error_share=0.1, min_records=10, stop_early=False),
        nightly=Nightly(at="02:30", timezone="America/New_York"),
        owners=["team:operators"],
    )
'''
PROMPT = "---\ndescription: {words}\nsystem: Sort the ticket {words}.\n---\n{{{{ text }}}}\n"
RUNS = """query($tags: [ExecutionTag!]!) { runsOrError(filter: {tags: $tags}, limit: 100) {
    ... on Runs { results { runId jobName status } } } }"""
EVENTS = """query($id: ID!) { logsForRun(runId: $id, limit: 10000) { ... on EventConnection { events {
    ... on MessageEvent { message } ... on ExecutionStepFailureEvent { error { message causes { message } } } } } } }"""
SENSOR = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
    sensorState { id status ticks(limit: 500) { timestamp status error { message } } } } } }"""
START_SENSOR = "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
STOP_SENSOR = "mutation($id: String!) { stopSensor(id: $id) { __typename } }"
TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
SLOTS = '{ instance { concurrencyLimit(concurrencyKey: "gpu") { slotCount claimedSlots { runId } } } }'
SCHEDULE = """query($s: ScheduleSelector!) { scheduleOrError(scheduleSelector: $s) { ... on Schedule {
    executionTimezone futureTicks(limit: 3) { results { timestamp } } scheduleState { id status } } } }"""
START_SCHEDULE = "mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) { __typename } }"
STOP_SCHEDULE = "mutation($id: String!) { stopRunningSchedule(id: $id) { __typename } }"
MADE = """query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
    assetMaterializations(limit: 500) { partition runId metadataEntries { label
        ... on TextMetadataEntry { text } ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
        ... on TableMetadataEntry { table { records schema { columns { name } } } } } } } } }"""
NODES = "{ assetNodes { assetKey { path } description kinds owners { ... on TeamAssetOwner { team } } groupName } }"
STATS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
    partitionStats { numMaterialized numPartitions numFailed } } } }"""
ERROR_SHARES = """query($key: AssetKeyInput!) {
    assetCheckExecutions(assetKey: $key, checkName: "error_share", limit: 100) {
        status runId evaluation { partition } } }"""


class Operator(WebUi):
    """What a person clicks beside materialize and backfill."""

    def launch_job(self, job: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Launch a job from its launchpad; return what the UI is answered."""
        selector = {**REPOSITORY, "pipelineName": job, "assetSelection": None, "assetCheckSelection": None}
        params = {"selector": selector, "runConfigData": op_config(job, config), "mode": "default"}
        return self.ask(LAUNCH, executionParams=params)["launchPipelineExecution"]

    def plan(self, **config: Any) -> list[str]:
        """Run the planner's job and what it launched, to their ends; return the ids of what it launched."""
        found = self.launch_job(PLAN_JOB, {"task": T, **config})
        run_id = found["run"]["runId"]
        assert self.wait_for_run(run_id) == "SUCCESS", self.messages(run_id)
        launched = [r["runId"] for r in self.runs(**{LAUNCHED_BY_RUN_TAG: run_id})]
        assert {self.wait_for_run(r) for r in launched} <= {"SUCCESS"}
        return launched

    def runs(self, **tags: str) -> list[dict[str, Any]]:
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        return self.ask(RUNS, tags=wanted)["runsOrError"]["results"]

    def messages(self, run_id: str) -> list[str]:
        """Return all that a run's page shows, errors included."""
        found: list[str] = []
        for event in self.ask(EVENTS, id=run_id)["logsForRun"]["events"]:
            error = event.get("error") or {}
            found += [event.get("message") or "", error.get("message") or ""]
            found += [cause["message"] for cause in error.get("causes") or ()]
        return found

    def count_starts(self, runs: list[str]) -> int:
        return sum("starting the engine" in m for r in runs for m in self.messages(r))

    def sensor(self, name: str) -> dict[str, Any]:
        return self.ask(SENSOR, s={**REPOSITORY, "sensorName": name})["sensorOrError"]["sensorState"]

    def turn_on(self, sensor: str) -> None:
        self.ask(START_SENSOR, s={**REPOSITORY, "sensorName": sensor})
        assert self.sensor(sensor)["status"] == "RUNNING"

    def turn_off(self, sensor: str) -> None:
        """Turn a sensor off, and again where a tick that ended just then has turned it on again (Dagster's race)."""
        looks = 0

        def is_off() -> bool:
            nonlocal looks
            state = self.sensor(sensor)
            looks = looks + 1 if state["status"] == "STOPPED" and state["ticks"][0]["status"] != "STARTED" else 0
            if state["status"] != "STOPPED":
                self.ask(STOP_SENSOR, id=state["id"])
            return looks >= 5

        wait_until(is_off, 60, f"{sensor} to be off", every_s=0.3)

    def made(self, asset: list[str]) -> list[dict[str, Any]]:
        """Return an asset's materializations, newest first, each with its metadata by name."""
        found = self.ask(MADE, key={"path": asset})["assetOrError"].get("assetMaterializations", [])
        for m in found:
            values = ({k: v for k, v in e.items() if k != "label"} for e in m["metadataEntries"])
            named = zip((e["label"] for e in m["metadataEntries"]), values, strict=True)
            m["metadata"] = {label: next(iter(value.values()), None) for label, value in named}
        return found

    def latest(self, asset: list[str], partition: str) -> dict[str, Any]:
        return next(m for m in self.made(asset) if m["partition"] == partition)["metadata"]

    def partitions(self, asset: list[str]) -> set[str]:
        return {m["partition"] for m in self.made(asset)}


@dataclass
class Office:
    """`up` on a project of small batches, the model's server, and who hears of alerts."""

    place: Workplace
    server: Server
    receiver: AlertReceiver
    process: subprocess.Popen[bytes]
    ui: Operator
    url: str
    log: Path

    @property
    def files(self) -> Path:
        return self.place.defs / T / "files"

    def write(self, batch: str, texts: list[str]) -> None:
        """Write the file of a batch, whole at once."""
        rows = [f'{batch}-{i},"{text}"' for i, text in enumerate(texts)]
        hidden = self.files / f".{batch}"
        hidden.write_text("\n".join(["item_id,text", *rows]) + "\n")
        hidden.rename(self.files / f"{batch}.csv")

    def wait(self, is_true: Any, what: str, timeout_s: float = 240) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return bool(is_true())

        try:
            wait_until(look, timeout_s, what, every_s=0.5)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log.read_text()[-6000:]}") from e

    def set_latency(self, latency_s: float) -> None:
        """Have the model's server answer slower or quicker."""
        self.server.stop()
        self.server = start_server(self.place.root, latency_s, self.server.port)

    def daemon(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie too, until it is waited for
                if "dagster._daemon" in child.cmdline():
                    return child
        return None


def tell(batch: str, count: int, refused: int = 0) -> list[str]:
    """Return a text for each record of a batch; the model's server refuses so many of them."""
    return [f"ticket {i} of {batch}{': refuse me' if i < refused else ''}" for i in range(count)]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    root = tmp_path_factory.mktemp("ops")
    server = start_server(root, latency_s=0.01)
    port, log = find_free_port(), root / "up.log"
    with AlertReceiver() as receiver, log.open("wb") as out:
        environment = {"BATCH_ASSETS_SENSOR_INTERVAL_S": "3", "BATCH_ASSETS_ALERT_URLS": receiver.url}
        place = Workplace(root, environment=environment)
        place.copy_defs(MODELS.format(port=server.port), tasks=())
        folder = place.defs / T
        (folder / "files").mkdir(parents=True)
        (folder / "prompts").mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "task.py").write_text(TASK)
        for name, words in (("v1", "in short"), ("v2", "with care")):
            (folder / "prompts" / f"{name}.md").write_text(PROMPT.format(words=words))
        process = subprocess.Popen(
            [sys.executable, "-m", "batch_assets.cli.main", "up", "--port", str(port)],
            cwd=root, env=place.variables(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        made = Office(place, server, receiver, process, Operator(port), url, log)
        try:
            made.wait(lambda: READY in log.read_text(), "readiness")
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            made.server.stop()


@pytest.fixture(scope="module")
def fed(office: Office) -> Office:
    """Files dropped into the folder while the sensor is on: one good, one slowly written, one that fails its check."""
    ui = office.ui
    ui.turn_on(f"{T}__new_data")
    office.write("good", tell("good", 5, refused=1))
    office.write("bad", tell("bad", 20, refused=4))
    with write_slowly(office.files / "slow.csv", tell("slow", SLOW_RECORDS)):
        office.wait(lambda: {"good", "bad"} <= ui.partitions([T, "source_records"]), "the files that are whole")
    results = {f"{b}|{v}" for b in ("good", "slow") for v in (V1, V2)}
    outputs = {f"bad|{v}" for v in (V1, V2)} | results
    office.wait(lambda: ui.partitions(VALIDATED) >= results, "the results of the new files")
    office.wait(lambda: ui.partitions(OUTPUTS) >= outputs, "all outputs")
    ui.turn_off(f"{T}__new_data")
    return office


@pytest.fixture(scope="module")
def planned(fed: Office) -> list[str]:
    """The planner's job from its launchpad, with a config: what it launched."""
    batches = [f"w{n}" for n in range(1, 8)]
    for batch in batches:
        fed.write(batch, tell(batch, 3))
    fed.write(LONG, tell(LONG, LONG_RECORDS))
    newest = (fed.files / f"{LONG}.csv").stat().st_mtime
    fed.wait(lambda: datetime.now().timestamp() > newest + SETTLE_S, "the files to settle")
    return fed.ui.plan(batches=["bad", *batches, LONG], variants=[V1], retry="errors", max_partitions=3)


@contextlib.contextmanager
def write_slowly(path: Path, texts: list[str]) -> Iterator[None]:
    """Write as a program does that knows nothing of renaming: half of it is there all the time, the rest comes last."""
    is_last = threading.Event()
    lines = "".join(f"slow-{i},{text}\n" for i, text in enumerate(texts))
    half = len(lines) // 2

    def write() -> None:
        with path.open("w") as f:
            f.write("item_id,text\n" + lines[:half])
            f.flush()
            while not is_last.wait(SETTLE_S / 3):
                os.utime(f.fileno())  # as if it had written a few bytes more
            f.write(lines[half:])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_last.set()
        writer.join()


def test_a_new_file_is_asked_by_itself_and_a_half_written_one_is_never_read(fed: Office) -> None:
    frozen = [m["metadata"]["records"] for m in fed.ui.made([T, "source_records"]) if m["partition"] == "slow"]
    assert frozen == [SLOW_RECORDS], "read once, when it was whole, and not with the others"
    assert [r for r in fed.ui.runs() if r["status"] == "FAILURE"] == [], "nor was it tried"
    counts = fed.server.counts()
    assert sum(counts.values()) == len(counts) == 2 * (5 + 20 + SLOW_RECORDS), "each record once of each variant"


def test_of_a_changed_file_only_the_changed_records_are_asked_again(fed: Office) -> None:
    before, asked = fed.ui.versions(OUTPUTS), fed.server.count()
    fed.ui.turn_on(f"{T}__new_data")
    fed.write("slow", ["another text", *tell("slow", SLOW_RECORDS)[1:]])
    changed = {f"slow|{v}" for v in (V1, V2)}

    def is_asked_again() -> bool:
        now = fed.ui.versions(OUTPUTS)
        return all(now[p] != before[p] for p in changed)

    fed.wait(is_asked_again, "the changed file's partitions")
    assert fed.server.count() == asked + 2
    now = fed.ui.versions(OUTPUTS)
    assert {p for p in now if now[p] != before[p]} == changed
    assert fed.ui.latest(OUTPUTS, f"slow|{V1}")["summary"] == "1 sent, 15 already done, 0 reused"
    fed.ui.turn_off(f"{T}__new_data")


def test_a_partition_above_its_error_share_is_held_back_and_told_of_once(fed: Office) -> None:
    bad = {f"bad|{v}" for v in (V1, V2)}
    found = fed.ui.check_results(OUTPUTS, "error_share")
    assert {partition for partition, status in found if status == "FAILED"} == bad
    assert {f"good|{v}" for v in (V1, V2)} <= {partition for partition, status in found if status == "SUCCEEDED"}
    assert not bad & fed.ui.partitions(VALIDATED), "one error of five is no alarm, four of twenty are"
    fed.wait(lambda: len(fed.receiver.lines) >= 2, "the alerts")
    runs = {m["partition"]: m["runId"] for m in fed.ui.made(OUTPUTS) if m["partition"] in bad}
    assert sorted(fed.receiver.lines) == [
        f"{T}/llm_outputs error_share failed for {p}: 0.2 over the limit 0.1 (20 records). {fed.url}/runs/{runs[p]}"
        for p in sorted(bad)
    ]


def test_a_partition_shows_figures_that_plot_and_its_first_failures(fed: Office) -> None:
    found = fed.ui.latest(OUTPUTS, f"bad|{V1}")
    numbers = {k: v for k, v in found.items() if isinstance(v, int | float)}
    assert {"records": 20, "sent": 20, "ok": 16, "error": 4, "error_share": 0.2}.items() <= numbers.items()
    assert {"invalid_share", "prompt_tokens", "completion_tokens", "tokens_per_s", "latency_p95_s"} <= numbers.keys()
    assert numbers["records_per_s"] > 0
    assert numbers["cost"] > 0
    table = found["first_failures"]
    assert [c["name"] for c in table["schema"]["columns"]] == ["item_id", "status", "reason", "error"]
    assert len(table["records"]) == 4
    assert all('"bad_request"' in r and "it was refused" in r for r in table["records"])
    stats = fed.ui.ask(STATS, key={"path": VALIDATED})["assetNodeOrError"]["partitionStats"]
    assert (stats["numMaterialized"], stats["numFailed"]) == (4, 0)


def test_every_asset_says_its_grain_its_kinds_and_its_owners(office: Office) -> None:
    nodes = office.ui.ask(NODES)["assetNodes"]
    assert len(nodes) == 7
    for node in nodes:
        assert node["description"].startswith("One row per "), node
        assert node["kinds"] and node["groupName"] == T
        assert [o["team"] for o in node["owners"]] == ["operators"]


def test_the_planner_launches_what_its_config_says_and_refuses_what_it_cannot(fed: Office, planned: list[str]) -> None:
    ui = fed.ui
    wrong = ui.launch_job(PLAN_JOB, {"task": "oops"})["run"]["runId"]
    (launched,) = planned
    made = {m["partition"]: m["metadata"]["summary"] for m in ui.made(OUTPUTS) if m["runId"] == launched}
    assert made == {
        f"bad|{V1}": "4 sent, 16 already done, 0 reused",
        f"w1|{V1}": "3 sent, 0 already done, 0 reused",
        f"w2|{V1}": "3 sent, 0 already done, 0 reused",
    }, "the errors of one, what is missing of others, three at most, of one variant"
    refused = ui.launch_job(PLAN_JOB, {"task": T, "max_partition": 2})
    assert refused["__typename"] == "RunConfigValidationInvalid"
    assert "max_partition" in str(refused["errors"])
    assert ui.wait_for_run(wrong) == "FAILURE"
    assert any("task: 'oops': there are ops" in m for m in ui.messages(wrong))


def test_a_backfill_with_holes_starts_one_engine_and_the_same_again_none(fed: Office, planned: list[str]) -> None:
    ui = fed.ui
    wanted = [f"w{n}|{V2}" for n in (1, 2, 4, 6, 7)]
    asked = fed.server.count()

    def launch() -> tuple[str, list[str]]:
        backfill = ui.backfill({tuple(OUTPUTS): wanted})
        fed.wait(lambda: len(find_runs(backfill)) > 1, "the backfill's runs: Dagster cuts it at the holes")
        fed.wait(lambda: {r["status"] for r in find_runs(backfill)} == {"SUCCESS"}, "their success")
        return backfill, [r["runId"] for r in find_runs(backfill)]

    def find_runs(backfill: str) -> list[dict[str, Any]]:
        return ui.runs(**{"dagster/backfill": backfill})

    first, runs = launch()
    assert ui.count_starts(runs) == 1
    assert {p for p in ui.partitions(OUTPUTS) if p.endswith(V2) and p.startswith("w")} == set(wanted)
    assert {m["runId"] for m in ui.made(OUTPUTS) if m["partition"] in wanted} <= set(runs)
    assert fed.server.count() == asked + 5 * 3
    _, runs = launch()
    assert ui.wait_for_backfill(first) == "COMPLETED_SUCCESS"
    assert {ui.latest(OUTPUTS, p)["summary"] for p in wanted} == {"0 sent, 3 already done, 0 reused"}
    assert ui.count_starts(runs) == 0
    assert fed.server.count() == asked + 5 * 3


def test_a_run_that_is_terminated_keeps_what_arrived_and_frees_what_it_held(fed: Office, planned: list[str]) -> None:
    ui, partition = fed.ui, f"{LONG}|{V1}"
    fed.set_latency(0.5)
    asked = fed.server.count()
    run = ui.materialize([OUTPUTS], partition)
    fed.wait(lambda: fed.server.count() >= asked + 3 * WINDOW, "three windows of requests")
    assert ui.ask(TERMINATE, id=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"
    assert ui.wait_for_run(run) == "CANCELED"
    sent = fed.server.count() - asked
    (kept,) = fed.place.query(f"SELECT count(*) FROM llm_batch_results WHERE batch = '{LONG}'")[0]
    assert sent - WINDOW <= kept < LONG_RECORDS, (sent, kept)
    assert fed.place.query(f"SELECT * FROM llm_leases WHERE run_id = '{run}'") == []
    slots = ui.ask(SLOTS)["instance"]["concurrencyLimit"]
    assert (slots["slotCount"], [c for c in slots["claimedSlots"] if c["runId"] == run]) == (1, [])
    fed.set_latency(0.01)
    assert ui.wait_for_run(ui.materialize([OUTPUTS], partition)) == "SUCCESS"
    assert ui.latest(OUTPUTS, partition)["summary"] == f"{LONG_RECORDS - kept} sent, {kept} already done, 0 reused"
    assert fed.server.count() - asked <= LONG_RECORDS + WINDOW


def test_of_an_edited_prompt_exactly_its_variant_is_asked_again(fed: Office) -> None:
    ui = fed.ui
    ui.turn_on(f"{T}__missing_and_stale")
    batches = [p.stem for p in fed.files.glob("*.csv")]
    everything = {f"{b}|{v}" for b in batches for v in (V1, V2)}
    fed.wait(lambda: ui.partitions(OUTPUTS) >= everything, "what was missing")
    before, asked = ui.versions(OUTPUTS), fed.server.count()
    records = sum(len(p.read_text().splitlines()) - 1 for p in fed.files.glob("*.csv"))
    prompt = fed.place.defs / T / "prompts" / "v1.md"
    prompt.write_text(PROMPT.format(words="in one word"))

    def is_asked_again() -> bool:
        now = ui.versions(OUTPUTS)
        return all(now[f"{b}|{V1}"] != before[f"{b}|{V1}"] for b in batches)

    # Without a click: the daemon loads the definitions anew each minute.
    fed.wait(is_asked_again, "the edited prompt's partitions")
    ui.turn_off(f"{T}__missing_and_stale")
    assert fed.server.count() == asked + records
    now = ui.versions(OUTPUTS)
    assert {p for p in now if p.endswith(V2) and now[p] != before[p]} == set()


def test_the_nightly_schedule_starts_and_ticks_by_the_clock_of_its_place(office: Office) -> None:
    selector = {**REPOSITORY, "scheduleName": f"{T}__nightly"}
    office.ui.ask(START_SCHEDULE, s=selector)
    found = office.ui.ask(SCHEDULE, s=selector)["scheduleOrError"]
    assert (found["scheduleState"]["status"], found["executionTimezone"]) == ("RUNNING", "America/New_York")
    zone = ZoneInfo("America/New_York")
    ticks = [datetime.fromtimestamp(t["timestamp"], zone) for t in found["futureTicks"]["results"]]
    assert len({t.date() for t in ticks}) == 3
    assert {f"{t:%H:%M}" for t in ticks} <= {"02:30", "03:00"}  # 03:00 in the night that has no 02:30
    office.ui.ask(STOP_SCHEDULE, id=found["scheduleState"]["id"])
    assert office.ui.ask(SCHEDULE, s=selector)["scheduleOrError"]["scheduleState"]["status"] == "STOPPED"


def test_a_daemon_that_is_killed_repeats_no_alert_and_loses_none(fed: Office) -> None:
    """The last test: what was told in all those before is still told once."""
    killed = fed.daemon()
    assert killed is not None
    killed.kill()
    at = datetime.now().timestamp()
    fed.wait(lambda: (d := fed.daemon()) is not None and d.pid != killed.pid, "another daemon")

    def has_looked() -> bool:
        return any(t["timestamp"] > at and t["status"] == "SKIPPED" for t in fed.ui.sensor("alerts")["ticks"])

    fed.wait(has_looked, "a look of the new daemon")
    checks = [
        c for c in fed.ui.ask(ERROR_SHARES, key={"path": OUTPUTS})["assetCheckExecutions"] if c["status"] == "FAILED"
    ]
    expected = {(c["runId"], f"error_share failed for {c['evaluation']['partition']}: ") for c in checks}
    expected |= {(r["runId"], "run of ") for r in fed.ui.runs() if r["status"] == "FAILURE"}
    for run_id, words in expected:
        assert len([x for x in fed.receiver.lines if words in x and x.endswith(f"/runs/{run_id}")]) == 1, words
    assert len(fed.receiver.lines) == len(expected)
