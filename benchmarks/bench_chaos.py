"""A run against a server that fails in seven ways, killed with -9 at random moments and started again each time.

At the end: is every record in exactly one state, is each `ok` right, and how much was asked again? An answer carries a
checksum of its record's text, so that a wrong one that passes as `ok` is seen. Server, run and this script are
processes of their own. A figure that breaks a promise is marked, and the exit code is 1.
"""

import argparse
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
from workload import make_records, print_result

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
from fault_server import find_score  # noqa: E402

LOAD = ROOT.parent / "shared" / "data" / "load_40k.parquet"
SHARES = {"500": 0.05, "429 1": 0.02, "reset": 0.01, "hang": 0.01, "invalid": 0.03, "cut_off": 0.02}
MODELS = """\
faults:
  weights: faults
  engine: openai
  base_url: http://127.0.0.1:{port}/v1
  max_in_flight: {window}
  timeout_s: 3
"""
TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Literal["a", "b"]
    score: int


@dg.component_instance
def chaos(_context) -> LlmTask:
    return LlmTask(name="chaos", source=FileSource("files/*.parquet"), output=Answer, models=["faults"])
"""
PROMPT = "---\ndescription: chaos\nsystem: Answer with JSON.\n---\ntext: {{ text }}\n"


class Chaos:
    """A project of one task and one file, a home, and a server that fails."""

    def __init__(self, root: Path, records: int, window: int, latency_s: float) -> None:
        self.root, self.window, self.port = root, window, find_free_port()
        folder = root / "chaos_defs" / "chaos"
        (folder / "prompts").mkdir(parents=True)
        (folder / "files").mkdir()
        (root / "chaos_defs" / "__init__.py").write_text("")
        (root / "chaos_defs" / "models.yaml").write_text(MODELS.format(port=self.port, window=window))
        (folder / "__init__.py").write_text("")
        (folder / "task.py").write_text(TASK)
        (folder / "prompts" / "v1.md").write_text(PROMPT)
        self.file = folder / "files" / "load.parquet"
        if LOAD.is_file():
            pl.read_parquet(LOAD, columns=["item_id", "text"]).head(records).write_parquet(self.file)
        else:
            make_records(records, self.file)
        self.log = root / "requests.log"
        command = [sys.executable, str(ROOT / "tests" / "fault_server.py"), str(self.port), str(self.log)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.server = subprocess.Popen([*command, str(latency_s), json.dumps(SHARES)], env=environment)
        wait_until(self.is_up, 30, "the server")

    def is_up(self) -> bool:
        """Whether the server takes connections."""
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def figures(self) -> dict[str, Any]:
        """Return what the server has counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/figures", timeout=30) as response:
            return json.load(response)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the run, as a person would."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{self.root}",
            "BATCH_ASSETS_DEFS": str(self.root / "chaos_defs"),
            "BATCH_ASSETS_HOME": str(self.root / "home"),
        }
        environment.pop("BATCH_ASSETS_DB_URL", None)
        command = [sys.executable, "-m", "batch_assets.cli.main", "run", "chaos"]
        with (self.root / "run.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the store."""
        with closing(sqlite3.connect(self.root / "home" / "store.db", timeout=30)) as connection:
            return connection.execute(sql).fetchall()


def find_free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_until(is_true: Any, timeout_s: float, what: str) -> None:
    """Look again and again until something is so."""
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def run_and_kill(chaos: Chaos, records: int, kills: int, rng: random.Random) -> int:
    """Start the run, kill it, and so on, then let it end; return its exit code."""
    for at in sorted(rng.uniform(0.02, 0.95) * records for _ in range(kills)):
        process = chaos.start()
        wait_until(lambda p=process, at=at: p.poll() is not None or chaos.figures()["requests"] >= at, 900, "a kill")
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself: {(chaos.root / 'run.log').read_text()[-3000:]}")
        process.send_signal(signal.SIGKILL)
        process.wait()
    return chaos.start().wait()


def judge(chaos: Chaos, kills: int) -> tuple[dict[str, Any], list[str]]:
    """Return the figures, and the promises that they break."""
    wanted = pl.read_parquet(chaos.file)
    rows = pl.DataFrame(
        chaos.query("SELECT item_id, status, payload, error_kind FROM llm_batch_results"),
        schema=["item_id", "status", "payload", "error_kind"],
        orient="row",
        infer_schema_length=None,
    )
    texts = dict(wanted.select("item_id", "text").iter_rows())
    good = rows.filter(pl.col("status") == "ok").select("item_id", "payload").iter_rows()
    wrong = sum(json.loads(payload)["score"] != find_score(texts[item_id]) for item_id, payload in good)
    (ended,) = chaos.query("SELECT count(*) FROM llm_attempts WHERE ended_at IS NOT NULL")[0]
    (deaths,) = chaos.query("SELECT count(*) FROM llm_attempts WHERE ended_at IS NULL")[0]
    server = chaos.figures()
    figures: dict[str, Any] = {
        "records": wanted.height,
        "rows": rows.height,
        "lost": wanted.join(rows, on="item_id", how="anti").height,
        "without_record": rows.join(wanted, on="item_id", how="anti").height,
        "twice": rows.height - rows["item_id"].n_unique(),
        "states": dict(Counter(f"{r[0]}/{r[1]}" if r[1] else r[0] for r in rows.select("status", "error_kind").rows())),
        "wrong_ok": wrong,
        "requests": server["requests"],
        "attempts_with_an_end": ended,
        "deaths": deaths,
        "repeats": server["requests"] - ended,
        "repeats_allowed": kills * chaos.window,
        "most_in_flight": server["most_in_flight"],
        "window": chaos.window,
        "given_up": server["cancelled"],
        "faults": dict(server["kinds"]),
        "leases": chaos.query("SELECT count(*) FROM llm_leases")[0][0],
    }
    broken = [name for name in ("lost", "without_record", "twice", "wrong_ok", "leases") if figures[name]]
    if not 0 <= figures["repeats"] <= figures["repeats_allowed"]:
        broken.append("repeats")
    if server["most_in_flight"] > chaos.window:
        broken.append("most_in_flight")
    if set(rows["status"]) - {"ok", "invalid", "error"} or not rows.height:
        broken.append("states")
    return figures, broken


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--latency-s", type=float, default=0.02, help="the server's, for a good answer")
    parser.add_argument("--seed", type=int, help="of the moments of the kills; another one each time by default")
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    with tempfile.TemporaryDirectory(prefix="chaos_") as name:
        chaos = Chaos(Path(name), args.records, args.window, args.latency_s)
        try:
            started = time.monotonic()
            code = run_and_kill(chaos, args.records, args.kills, random.Random(seed))
            seconds = time.monotonic() - started
            if code not in (0, 1):  # 1: a check fails, as more answers are refused than a task allows by default
                print((chaos.root / "run.log").read_text()[-3000:])
                print(f"the run ended with {code}")
                return 1
            figures, broken = judge(chaos, args.kills)
        finally:
            chaos.server.kill()
            chaos.server.wait()
    figures |= {"seconds": round(seconds, 1), "kills": args.kills, "seed": seed, "exit_code": code, "broken": broken}
    f = figures
    print(f"{f['records']} records, {f['kills']} kills, {f['seconds']} s: {f['states']}")
    print(f"  lost {f['lost']}, rows without a record {f['without_record']}, doubled {f['twice']}")
    print(f"  wrong answers marked ok {f['wrong_ok']}")
    print(f"  {f['requests']} requests, repeats {f['repeats']} (at most {f['repeats_allowed']})")
    print(
        f"  most in flight on the server {f['most_in_flight']} of a window of {f['window']}; {f['given_up']} given up"
    )
    print(f"broken promises: {', '.join(broken) or 'none'}")
    print_result(figures)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
