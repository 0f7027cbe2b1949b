"""The peak memory of a process that freezes a file, of one that asks all its records, and of one with nothing to do.

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

from workload import WORDS, make_fake_entry, make_records, make_task, print_result

PHASES = ("import", "freeze", "ask", "again")
SHORT = (20_000, 200_000)
LONG = (200, 2_000)
LONG_BYTES = 200_000


def run_phase(phase: str, folder: Path) -> dict[str, Any]:
    """Do one phase in this process; return its peak and what it did."""
    from batch_assets.core.partition_keys import PartitionKey
    from batch_assets.pipeline.ask_partitions import ask_partitions
    from batch_assets.pipeline.freeze import freeze_batches
    from batch_assets.pipeline.platform import open_platform
    from batch_assets.settings import Settings
    from batch_assets.sources.files import FileSource

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
            command = [sys.executable, __file__, "--phase", phase, "--folder", name]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[phase] = json.loads(out.splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, nargs="*", default=SHORT, help="counts of records of about 54 characters")
    parser.add_argument("--long", type=int, nargs="*", default=LONG, help="counts of records of 200 KB")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
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
    print_result({"figures": found})


if __name__ == "__main__":
    main()
