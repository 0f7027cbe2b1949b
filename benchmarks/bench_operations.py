"""What operating from the web UI costs: the planner's look, a backfill with holes, a new file, opening a page.

Each figure is taken on a project and home of its own, with the fake engine; all but the planner's with the real
webserver and daemon, as `batch-assets up` starts them. `page` needs Playwright and Chromium.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


class Label(BaseModel):
    label: Literal["card", "transfer", "login", "loan", "fee", "fraud", "app", "other"]
    urgent: bool


@dg.component_instance
def bench(_context) -> LlmTask:
    return LlmTask(name="bench", source=FileSource("files/*.csv", settle_s=2), output=Label, models=["fake"])
"""
OUTPUTS = ["bench", "llm_outputs"]
ASSETS = ("llm_outputs", "validated_results", "quarantine", "qa_samples", "run_reports")
MARK = "aaaaaaaaaaaaaaaaaaaaaaaa"


class Bench:
    """A project of one task, `batches` files of `records` records, prompts v1 to v`prompts`, and a home."""

    def __init__(self, root: Path, batches: int, prompts: int, records: int) -> None:
        self.root, self.records = root, records
        self.folder = root / "bench_defs" / "bench"
        (self.folder / "prompts").mkdir(parents=True)
        (self.folder / "files").mkdir()
        (root / "bench_defs" / "__init__.py").write_text("")
        (root / "bench_defs" / "models.yaml").write_text("fake:\n  weights: none\n  engine: fake\n")
        (self.folder / "__init__.py").write_text("")
        (self.folder / "task.py").write_text(TASK)
        for n in range(1, prompts + 1):
            text = f"---\ndescription: number {n}\nsystem: Sort the ticket.\n---\n{{{{ text }}}}\n"
            (self.folder / "prompts" / f"v{n}.md").write_text(text)
        self.batches = [f"b{i:05d}" for i in range(batches)]
        for batch in self.batches:
            self.write(batch)
        os.environ["BATCH_ASSETS_DEFS"] = str(root / "bench_defs")
        os.environ["BATCH_ASSETS_HOME"] = str(root / "home")
        os.environ.pop("BATCH_ASSETS_DB_URL", None)

    def write(self, batch: str) -> None:
        """Write the file of a batch, whole at once."""
        rows = [f"{batch}-{i},the text of record {i} of batch {batch}" for i in range(self.records)]
        hidden = self.folder / "files" / f".{batch}"
        hidden.write_text("\n".join(["item_id,text", *rows]) + "\n")
        hidden.rename(self.folder / "files" / f"{batch}.csv")

    def fill(self) -> None:
        """Write a store and an event log as if every partition had been made long ago; no engine, and quick."""
        from batch_assets.cli.session import open_session
        from batch_assets.core.identity import fingerprint
        from batch_assets.dagster.partitions import sync_partitions
        from batch_assets.store.database import now
        from batch_assets.store.tables import batches, partitions

        with open_session() as session:
            task, source = session.find_task("bench")
            sync_partitions(task, source, session.instance)
            moment = now()
            refs = source.list_batches()
            specs = {key: session.platform.spec(task, key) for key in task.variants}
            frozen = [
                {
                    "task": "bench", "batch": r.batch, "seq": i, "change_token": r.change_token, "source_hash": MARK,
                    "malformed": [], "records": self.records, "superseded": 0, "superseded_hash": "",
                    "frozen_at": moment,
                }
                for i, r in enumerate(refs, 1)
            ]  # fmt: skip
            finished = [
                {
                    "task": "bench", "batch": r.batch, "variant": key, "fingerprint": fingerprint(MARK, spec),
                    "content": MARK, "parts": {"source": MARK, **spec.parts}, "run_id": "r", "finished_at": moment,
                    "counts": {"ok": self.records, "invalid": 0, "error": 0, "reused": 0},
                }
                for r in refs
                for key, spec in specs.items()
            ]  # fmt: skip
            with session.platform.database.write() as connection:
                connection.execute(batches.insert(), frozen)
                connection.execute(partitions.insert(), finished)
            for ref in refs:
                path = session.platform.frames.path("bench", "source_records", ref.batch)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            versions = {f"{f['batch']}|{f['variant']}": f"{f['fingerprint']}.{MARK}" for f in finished}
            for asset in ASSETS:
                _copy_events(session.instance, asset, versions)
            _copy_events(session.instance, "variant_specs", {k: s.data_version for k, s in specs.items()})
            _copy_events(session.instance, "source_records", {r.batch: MARK for r in refs})


def _copy_events(instance: Any, asset: str, versions: dict[str, str]) -> None:
    """Report one materialization, and copy its rows in the event log for all the other partitions."""
    import dagster as dg

    mark = "MARKMARKMARK"
    tags = {"dagster/data_version": mark}
    figures = {"records": 5, "error_share": 0.0}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(["bench", asset], partition=mark, metadata=figures, tags=tags)
    )
    path = instance.event_log_storage.path_for_shard("index")
    with closing(sqlite3.connect(path)) as log, log:
        columns = [row[1] for row in log.execute("PRAGMA table_info(event_logs)")]
        last = log.execute("SELECT * FROM event_logs ORDER BY id DESC LIMIT 1").fetchone()
        row = dict(zip(columns, last, strict=True))
        tag_columns = [r[1] for r in log.execute("PRAGMA table_info(asset_event_tags)")]
        found = log.execute("SELECT * FROM asset_event_tags WHERE event_id = ?", (row["id"],)).fetchall()
        tag_rows = [dict(zip(tag_columns, values, strict=True)) for values in found]
        log.execute("DELETE FROM event_logs WHERE id = ?", (row["id"],))
        log.execute("DELETE FROM asset_event_tags WHERE event_id = ?", (row["id"],))
        for number, (partition, version) in enumerate(versions.items(), row["id"]):
            made = {**row, "id": number, "partition": partition}
            text = made["event"].replace(f'"partition": "{mark}"', f'"partition": "{partition}"')
            made["event"] = text.replace(mark, version)
            _insert(log, "event_logs", made)
            for tag in tag_rows:
                value = version if tag["value"] == mark else tag["value"]
                _insert(log, "asset_event_tags", {**tag, "id": None, "event_id": number, "value": value})


def _insert(log: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    log.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


@contextmanager
def serve() -> Iterator[int]:
    """Start webserver and daemon as a person does; yield the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = Path(os.environ["BATCH_ASSETS_HOME"]).parent / "up.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "batch_assets.cli.main", "up", "--port", str(port)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            _wait(lambda: re.search("^ready", log.read_text(), re.MULTILINE) is not None, 180, "the web UI")
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait(is_true: Callable[[], bool], timeout_s: float, what: str) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.25)


def _count_materialized(ui: Any, asset: list[str]) -> int:
    query = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        partitionStats { numMaterialized } } } }"""
    return ui.ask(query, key={"path": asset})["assetNodeOrError"]["partitionStats"]["numMaterialized"]


def measure_planner(root: Path, batches: int) -> dict[str, Any]:
    """Plan over `batches` x 5 finished output partitions, and over as many of which every one is stale."""
    bench = Bench(root, batches, prompts=5, records=5)
    bench.fill()
    from batch_assets.cli.session import open_session
    from batch_assets.dagster.asset_keys import load_recorded
    from batch_assets.pipeline.plan import make_plan

    with open_session() as session:
        bound = session.find_task("bench")

        def look() -> tuple[float, Any]:
            started = time.perf_counter()
            plan = make_plan(*bound, session.platform, load_recorded(session.instance, bound[0]), is_counting=False)
            return round(time.perf_counter() - started, 2), plan

        done_s, plan = look()
        assert len(plan.done) == batches * 5, (len(plan.done), len(plan.needs))
        assert plan.is_empty, plan.needs[:3]
    for path in (bench.folder / "prompts").glob("*.md"):
        path.write_text(path.read_text() + "Be short.\n")
    with open_session() as session:
        bound = session.find_task("bench")
        started = time.perf_counter()
        plan = make_plan(*bound, session.platform, load_recorded(session.instance, bound[0]), is_counting=False)
        stale_s = round(time.perf_counter() - started, 2)
        assert len(plan.needs) == batches * 5
    return {"partitions": batches * 5, "done_s": done_s, "stale_s": stale_s}


def measure_backfill(root: Path, batches: int) -> dict[str, Any]:
    """Backfill `batches` partitions of one variant from the UI, every eleventh left out, to the last of them."""
    from web_ui import WebUi

    wanted = batches
    bench = Bench(root, wanted + wanted // 10 + 1, prompts=1, records=5)
    freeze = [sys.executable, "-c", FREEZE, json.dumps(bench.batches)]
    subprocess.run(freeze, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with_holes = [b for i, b in enumerate(bench.batches) if i % 11 != 5][:wanted]
    with serve() as port:
        ui = WebUi(port)
        started, clock = time.monotonic(), time.time()
        backfill = ui.backfill({tuple(OUTPUTS): [f"{b}|v1--fake" for b in with_holes]})
        _wait(lambda: _count_materialized(ui, OUTPUTS) >= wanted, 600, "the last materialization")
        last_s = round(time.monotonic() - started, 1)
        status = ui.wait_for_backfill(backfill)
        ended_s = round(time.monotonic() - started, 1)
        query = "{ runsOrError(limit: 500) { ... on Runs { results { runId jobName creationTime startTime } } } }"
        runs = [r for r in ui.ask(query)["runsOrError"]["results"] if r["jobName"] == "__ASSET_JOB"]
        created = [round(r["creationTime"] - clock, 1) for r in runs]
        began = [round(r["startTime"] - clock, 1) for r in runs if r["startTime"]]
        starts = sum(_count_starts(ui, r["runId"]) for r in runs)
    return {
        "partitions": wanted, "runs": len(runs), "runs_created_s": [min(created), max(created)],
        "first_run_began_s": min(began), "began_before_last": sum(b < last_s for b in began),
        "engine_starts": starts, "last_materialization_s": last_s,
        "backfill_ended_s": ended_s, "status": status,
    }  # fmt: skip


FREEZE = """
import json, sys
from batch_assets.cli.launch import Launcher
from batch_assets.cli.session import open_session
from batch_assets.dagster.runs import SOURCES_JOB, job_name, op_config
from batch_assets.dagster.partitions import sync_partitions
with open_session() as s:
    bound = s.find_task("bench")
    sync_partitions(*bound, s.instance)
    name = job_name("bench", SOURCES_JOB)
    config = op_config(name, {"batches": json.loads(sys.argv[1]), "variants": list(bound[0].variants)})
    done = s.project.definitions.resolve_job_def(name).execute_in_process(run_config=config, instance=s.instance)
    sys.exit(not done.success)
"""


def _count_starts(ui: Any, run_id: str) -> int:
    query = """query($id: ID!) { logsForRun(runId: $id, limit: 10000) { ... on EventConnection {
        events { ... on MessageEvent { message } } } } }"""
    events = ui.ask(query, id=run_id)["logsForRun"]["events"]
    return sum("starting the engine" in e.get("message", "") for e in events)


def measure_new_file(root: Path, interval_s: int) -> dict[str, Any]:
    """A new file in the watched folder, to its validated results; every sensor looks each `interval_s` seconds."""
    from web_ui import REPOSITORY, WebUi

    bench = Bench(root, 1, prompts=1, records=20)
    os.environ["BATCH_ASSETS_SENSOR_INTERVAL_S"] = str(interval_s)
    with serve() as port:
        ui = WebUi(port)
        start = "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
        ui.ask(start, s={**REPOSITORY, "sensorName": "bench__new_data"})
        results = ["bench", "validated_results"]
        _wait(lambda: _count_materialized(ui, results) == 1, 300, "the results of the first file")
        started = time.monotonic()
        bench.write("later")
        _wait(lambda: _count_materialized(ui, results) == 2, 300, "the results of the new file")
        return {"sensor_interval_s": interval_s, "new_file_to_results_s": round(time.monotonic() - started, 1)}


CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
PAGE_LOADS = 5


def measure_page(root: Path, batches: int) -> dict[str, Any]:
    """Open the partitions of llm_outputs, `batches` x 5 of them all materialized, in a browser, until the bar is drawn.

    Measured from the start of the navigation to the counts, which are drawn with the bar. The first load of the first
    browser finds a webserver that has never been asked; each of the others is a browser with an empty cache.
    """
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if executable is None:
        raise SystemExit(f"no Chromium: install one, or set CHROMIUM ({', '.join(CHROMIUMS)} were looked for)")
    Bench(root, batches, prompts=5, records=5).fill()
    opened: list[float] = []
    slowest: list[list[Any]] = []
    reloads: list[float] = []
    with serve() as port, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(PAGE_LOADS):
            context = browser.new_context(viewport={"width": 1500, "height": 1000})
            page = context.new_page()
            asked: list[tuple[str, float]] = []
            page.on("requestfinished", lambda r, asked=asked: asked.append((_name_request(r), r.timing["responseEnd"])))
            started = time.monotonic()
            page.goto(f"http://127.0.0.1:{port}/assets/bench/llm_outputs?view=partitions", wait_until="commit")
            _wait_for_bar(page, batches * 5)
            opened.append(round(time.monotonic() - started, 2))
            page.wait_for_load_state("networkidle")
            slowest.append([[n, round(ms)] for n, ms in sorted(asked, key=lambda a: -a[1])[:5]])
            started = time.monotonic()
            page.reload(wait_until="commit")
            _wait_for_bar(page, batches * 5)
            reloads.append(round(time.monotonic() - started, 2))
            context.close()
        browser.close()
    return {
        "partitions": batches * 5, "first_s": opened[0], "later_s": opened[1:], "reloads_s": reloads,
        "slowest_requests_ms": {"first": slowest[0], "later": slowest[-1]},
    }  # fmt: skip


def _wait_for_bar(page: Any, partitions: int) -> None:
    """Wait for the counts of the bar above, and for the first batch in the list below it."""
    page.get_by_text(re.compile(rf"^Materialized \(({partitions}|{partitions:,})\)$")).wait_for(timeout=120_000)
    page.get_by_text("b00000", exact=True).first.wait_for(timeout=120_000)


def _name_request(request: Any) -> str:
    """Return what a request asks for: the operation of a GraphQL query, else the path."""
    asked = re.search(r"/graphql\?op=(\w+)", request.url)
    return asked[1] if asked else re.sub(r"^https?://[^/]+|\?.*$", "", request.url)


def main() -> None:
    """Measure what is asked for; print one JSON document on the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["planner", "backfill", "new-file", "page"])
    parser.add_argument("--batches", type=int, help="planner and page: 2000 (by 5 variants); backfill: 200")
    parser.add_argument("--interval", type=int, default=10, help="new-file: seconds between two looks of a sensor")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        os.chdir(root)
        match args.what:
            case "planner":
                found = measure_planner(root, args.batches or 2000)
            case "backfill":
                found = measure_backfill(root, args.batches or 200)
            case "new-file":
                found = measure_new_file(root, args.interval)
            case _:
                found = measure_page(root, args.batches or 2000)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
