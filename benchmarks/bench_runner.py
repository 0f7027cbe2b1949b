"""The runner with store, claims and validation against a plain asyncio worker, both on the fake engine.

The peer is what a script would be: a semaphore, `json.loads`, pydantic, a line per answer into a file; nothing it does
outlives a kill, and nothing is asked once for two equal records.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from workload import Label, make_fake_entry, make_records, make_task, print_result


def measure_runner(folder: Path, url: str) -> dict[str, Any]:
    """Run llm_outputs' work over one batch, then once more with nothing to do."""
    from batch_assets.core.partition_keys import PartitionKey
    from batch_assets.pipeline.ask_partitions import ask_partitions
    from batch_assets.pipeline.freeze import freeze_batches
    from batch_assets.pipeline.platform import open_platform
    from batch_assets.settings import Settings
    from batch_assets.sources.files import FileSource

    task = make_task(folder, make_fake_entry(0.02, 256))
    source = FileSource("data/*.parquet").bind(folder)
    platform = open_platform(Settings(home=folder / "home", db_url=url))
    started = time.perf_counter()
    list(freeze_batches(task, source, platform, [r.batch for r in source.list_batches()], "freeze"))
    frozen_s = time.perf_counter() - started
    figures: dict[str, Any] = {"freeze_s": round(frozen_s, 3)}
    partitions = [PartitionKey(r.batch, v) for r in source.list_batches() for v in task.variants]
    for name in ("first", "second"):
        wall, cpu = time.perf_counter(), time.process_time()
        made = list(ask_partitions(task, platform, partitions, run_id=name, log=lambda _: None))
        figures[f"{name}_s"] = round(time.perf_counter() - wall, 3)
        figures[f"{name}_cpu_s"] = round(time.process_time() - cpu, 3)
        figures[f"{name}_sent"] = sum(m.figures["sent"] for m in made)
        figures["records"] = sum(m.figures["records"] for m in made)
        figures["invalid"] = sum(m.figures["invalid"] for m in made)
    return figures


def measure_worker(folder: Path) -> dict[str, Any]:
    """Run the plain asyncio worker over the same records."""
    import polars as pl

    from batch_assets.core.records import Record
    from batch_assets.core.requests import Request
    from batch_assets.engines.fake import build_fake

    entry = make_fake_entry(0.02, 256)
    task = make_task(folder, entry)
    engine = build_fake(entry)
    rows = pl.read_parquet(folder / "data" / "load.parquet").to_dicts()
    prompt = task.prompts["v1"]

    async def inputs() -> None:
        window = asyncio.Semaphore(256)
        await engine.open()
        with (folder / "out.jsonl").open("w") as out:

            async def ask(row: dict[str, str]) -> None:
                async with window:
                    messages = prompt.render(Record(item_id=row["item_id"], fields=row))
                    request = Request(
                        request_key=row["item_id"],
                        messages=messages,
                        schema=task.output_schema,
                        sampling=entry.sampling,
                    )
                    answer = await engine.complete(request)
                try:
                    Label.model_validate(json.loads(answer.text))
                    out.write(json.dumps({"item_id": row["item_id"], "text": answer.text}) + "\n")
                except (ValueError, ValidationError):
                    out.write(json.dumps({"item_id": row["item_id"], "error": answer.text}) + "\n")

            await asyncio.gather(*(ask(row) for row in rows))

    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(inputs())
    return {"s": round(time.perf_counter() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--db-url", default="", help="the store; default SQLite in a temporary folder")
    parser.add_argument("--part", choices=("runner", "worker"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        figures = measure_runner(args.folder, args.db_url) if args.part == "runner" else measure_worker(args.folder)
        figures["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        print_result(figures)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_records(args.records, folder / "data" / "load.parquet")
        parts: dict[str, Any] = {}
        for part in ("worker", "runner"):
            command = [sys.executable, __file__, "--part", part, "--folder", name, "--db-url", args.db_url]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            parts[part] = json.loads(out.splitlines()[-1])
    runner, worker = parts["runner"], parts["worker"]
    n = runner["records"]
    print(f"runner: {n} records, {runner['invalid']} invalid, {runner['first_sent']} sent")
    cpu_us = 1e6 * runner["first_cpu_s"] / n
    print(f"  {n / runner['first_s']:.0f} records/s, {cpu_us:.0f} us CPU/record, peak {runner['peak_mb']} MB")
    print(f"  again, with nothing to do: {runner['second_s']} s, {runner['second_sent']} sent")
    print(f"plain asyncio worker: {n / worker['s']:.0f} records/s, peak {worker['peak_mb']} MB")
    print(f"ratio runner / worker: {worker['s'] / runner['first_s']:.2f}")
    print_result(parts)


if __name__ == "__main__":
    main()
