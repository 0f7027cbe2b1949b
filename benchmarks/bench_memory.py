"""The peak memory of a process that freezes a file, of one that asks all its records, and of one with nothing to do.

And of one that makes the results of answers of 5 KB, which another process has written straight into the store.

Each phase is a process of its own, on the fake engine and SQLite; a figure is its peak resident memory, in MB. Asking
must cost the same however many records there are; freezing holds the file, so it is told as a multiple of its size.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from workload import WORDS, make_fake_entry, make_records, make_task, print_result

from batch_assets.core.attempts import Status
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.prompts import load_prompts
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_partitions import ask_partitions
from batch_assets.pipeline.freeze import freeze_batches
from batch_assets.pipeline.make_results import make_results
from batch_assets.pipeline.partition_inputs import build_inputs
from batch_assets.pipeline.platform import Platform, open_platform
from batch_assets.settings import Settings
from batch_assets.sources.files import FileSource
from batch_assets.store.database import now
from batch_assets.store.partitions import finish_partition
from batch_assets.store.results import Claim, Ending, Group, Result, write_group

PHASES = ("import", "freeze", "ask", "again")
SHORT = (20_000, 200_000)
LONG = (200, 2_000)
LONG_BYTES = 200_000
ANSWERS = (5_000, 50_000, 100_000)
ANSWER_BYTES = 5_000
WRITTEN_AT_ONCE = 1_000


class LongAnswer(BaseModel):
    """An answer of which the text is most."""

    label: str
    text: str


def make_answers_task(folder: Path) -> Task:
    """Return a task whose answers are long."""
    task = make_task(folder, make_fake_entry(0.0, 256))
    prompts = load_prompts(folder / "prompts", LongAnswer)
    return Task(name=task.name, output=LongAnswer, prompts=prompts, models=task.models, ladder=task.ladder)


def write_answers(folder: Path) -> dict[str, Any]:
    """Freeze the file, and write an answer of 5 KB for each of its records, as a run that has finished leaves them."""
    task, platform, (partition,) = open_answers(folder)
    source = FileSource("data/*").bind(folder)
    list(freeze_batches(task, source, platform, [partition.batch], "write"))
    inputs = build_inputs(task, platform, partition)
    assert inputs is not None
    block = " ".join(random.Random(7).choices(WORDS, k=ANSWER_BYTES // 5))
    ids = [record.item_id for records in inputs.read() for record in records]
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        group = Group()
        for n, item_id in enumerate(ids[start : start + WRITTEN_AT_ONCE], start):
            payload = {"label": "a", "text": f"{n} {block}"[:ANSWER_BYTES]}
            at, attempt_id = now(), f"{n:032d}"
            group.claims.append(
                Claim(
                    attempt_id=attempt_id, key=inputs.key, item_id=item_id, batch=inputs.batch, request_key=f"k{n}",
                    base_key=f"k{n}", ladder_step=0, attempt=1, is_alone=False, parameters={}, run_id="write",
                    started_at=at,
                )
            )  # fmt: skip
            completion = Completion(
                text=json.dumps(payload), finish_reason="stop", usage=Usage(prompt_tokens=9, completion_tokens=9),
                latency_s=0.1,
            )  # fmt: skip
            group.endings.append(Ending(attempt_id=attempt_id, outcome="ok", ended_at=at, completion=completion))
            group.results.append(
                Result(
                    key=inputs.key, item_id=item_id, batch=inputs.batch, status=Status.OK, payload=payload,
                    error_kind=None, error=None, attempts=1, input_hash="i", request_spec=inputs.spec.request_spec,
                    accept_spec=inputs.spec.accept_spec, request_key=f"k{n}", attempt_id=attempt_id,
                    reused_from=None, run_id="write", updated_at=at,
                )
            )  # fmt: skip
        with platform.database.write() as connection:  # an ending needs its claim
            write_group(connection, Group(claims=group.claims))
            write_group(connection, Group(endings=group.endings, results=group.results))
    with platform.database.write() as connection:
        finish_partition(
            connection, inputs.key, inputs.batch, partition.variant, fingerprint=inputs.fingerprint,
            parts=inputs.parts, run_id="write",
        )  # fmt: skip
    return {}


def make_answers_results(folder: Path) -> dict[str, Any]:
    """Make the results of the one partition; return the peak of this process."""
    task, platform, partitions = open_answers(folder)
    started = time.perf_counter()
    made = list(make_results(task, platform, partitions, run_id="results"))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = made[0].figures["rows"]
    return {"peak_mb": round(peak_kb / 1024), "s": round(time.perf_counter() - started, 1), "rows": rows}


def open_answers(folder: Path) -> tuple[Task, Platform, list[PartitionKey]]:
    """Return the task with the long answers, its platform and its partitions."""
    task = make_answers_task(folder)
    platform = open_platform(Settings(home=folder / "home", db_url=""))
    return task, platform, [PartitionKey("load", v) for v in task.variants]


def measure_results(count: int) -> dict[str, Any]:
    """Measure making the results of `count` answers, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        make_records(count, Path(name) / "data" / "load.parquet")
        run_apart("write", name)
        return {"answers": count, **run_apart("results", name)}


def run_apart(phase: str, folder: str) -> dict[str, Any]:
    """Do one phase in a process of its own; return what it printed last."""
    command = [sys.executable, __file__, "--phase", phase, "--folder", folder]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def run_phase(phase: str, folder: Path) -> dict[str, Any]:
    """Do one phase in this process; return its peak and what it did."""
    if phase == "write":
        return write_answers(folder)
    if phase == "results":
        return make_answers_results(folder)
    task = make_task(folder, make_fake_entry(0.02, 256))
    source = FileSource("data/*").bind(folder)
    platform = open_platform(Settings(home=folder / "home", db_url=""))
    partitions = [PartitionKey(r.batch, v) for r in source.list_batches() for v in task.variants]
    started = time.perf_counter()
    sent = 0
    if phase == "freeze":
        list(freeze_batches(task, source, platform, [r.batch for r in source.list_batches()], phase))
    elif phase != "import":
        made = ask_partitions(task, platform, partitions, run_id=phase, log=lambda _: None)
        sent = sum(m.figures["sent"] for m in made)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mb": round(peak_kb / 1024), "s": round(time.perf_counter() - started, 1), "sent": sent}


def write_long_records(count: int, path: Path) -> None:
    """Write `count` records of 200 KB as JSON Lines, no two alike."""
    rng = random.Random(7)
    block = " ".join(rng.choices(WORDS, k=LONG_BYTES // 5))[:LONG_BYTES]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as f:
        for i in range(count):
            f.write(json.dumps({"item_id": f"r{i}", "text": f"{i} {block}"}) + "\n")


def measure(count: int, *, is_long: bool) -> dict[str, Any]:
    """Measure all phases over `count` records, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "data" / ("load.jsonl" if is_long else "load.parquet")
        if is_long:
            write_long_records(count, path)
        else:
            make_records(count, path)
        found: dict[str, Any] = {"records": count, "file_mb": round(path.stat().st_size / 2**20, 1)}
        for phase in PHASES:
            found[phase] = run_apart(phase, name)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, nargs="*", default=SHORT, help="counts of records of about 54 characters")
    parser.add_argument("--long", type=int, nargs="*", default=LONG, help="counts of records of 200 KB")
    parser.add_argument("--answers", type=int, nargs="*", default=ANSWERS, help="counts of answers of 5 KB")
    parser.add_argument("--phase", choices=(*PHASES, "write", "results"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        print_result(run_phase(args.phase, args.folder))
        return
    found: list[dict[str, Any]] = []
    print(f"{'records':>9} {'file MB':>8} " + " ".join(f"{p:>8}" for p in PHASES) + "   (peak MB)")
    for count, is_long in [*((n, False) for n in args.short), *((n, True) for n in args.long)]:
        f = measure(count, is_long=is_long)
        print(f"{count:>9} {f['file_mb']:>8} " + " ".join(f"{f[p]['peak_mb']:>8}" for p in PHASES), flush=True)
        found.append(f)
    for count in args.answers:
        f = measure_results(count)
        print(f"results of {count:>9} answers: {f['peak_mb']:>8} MB, {f['s']} s", flush=True)
        found.append(f)
    print_result({"figures": found})


if __name__ == "__main__":
    main()
