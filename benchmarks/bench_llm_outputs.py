"""The `llm_outputs` step against bare `LLM.chat` on the same prompts, real vLLM, each in a process of its own.

Both get the shipped tickets for both prompt versions, the same model entry and the same JSON schema. The engine's start
is measured apart: it is the same work for both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
TASK = "ticket_triage"


def measure_bare(_home: Path) -> dict[str, Any]:
    """Ask everything with LLM.chat, in one call per prompt version, as vLLM's documentation shows."""
    import os

    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    from batch_assets.engines.vllm_engine import ENVIRONMENT, STRUCTURED_OUTPUTS

    os.environ |= {**ENVIRONMENT, "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from batch_assets.dagster.project import load_project
    from batch_assets.engines.weights import locate_weights
    from batch_assets.pipeline.partition_inputs import to_records
    from batch_assets.settings import load_settings

    settings = load_settings()
    task, source = load_project(settings).tasks[TASK]
    entry = next(iter(task.models.values()))
    batches = [source.read(ref, ["text"]).frame for ref in source.list_batches()]
    records = [r for frame in batches for chunk in to_records(frame) for r in chunk]
    asked = [r for r in records if (r.fields["text"] or "").strip() and len(r.fields["text"] or "") < 10_000]
    started = time.perf_counter()
    weights = locate_weights(entry, settings.cache_dir)
    llm = LLM(model=weights.model, structured_outputs_config=STRUCTURED_OUTPUTS, seed=0, **entry.engine_args)
    start_s = time.perf_counter() - started
    s = entry.sampling
    guided = StructuredOutputsParams(json=task.output_schema)
    params = SamplingParams(temperature=s.temperature, max_tokens=s.max_tokens, structured_outputs=guided)
    started = time.perf_counter()
    count = 0
    for prompt in task.prompts.values():
        chats = [[{"role": m.role, "content": m.content} for m in prompt.render(r)] for r in asked]
        outputs = llm.chat(chats, params, use_tqdm=False)
        count += sum(bool(json.loads(o.outputs[0].text)) for o in outputs)
    return {"asked": count, "s": round(time.perf_counter() - started, 2), "start_s": round(start_s, 2)}


def measure_step(home: Path) -> dict[str, Any]:
    """Run what the asset runs, over all partitions."""
    from batch_assets.core.partition_keys import PartitionKey
    from batch_assets.dagster.project import load_project
    from batch_assets.pipeline.ask_partitions import ask_partitions
    from batch_assets.pipeline.freeze import freeze_batches
    from batch_assets.pipeline.platform import open_platform
    from batch_assets.run.partition_run import Progress
    from batch_assets.settings import load_settings

    settings = load_settings().model_copy(update={"home": home})
    task, source = load_project(settings).tasks[TASK]
    marks: dict[str, float] = {}

    def observe(progress: Progress) -> None:
        marks["starting" if progress.is_starting else "asking"] = marks.get(
            "starting" if progress.is_starting else "asking", time.perf_counter()
        )
        if progress.is_starting:
            marks.pop("asking", None)

    platform = open_platform(settings, observe)
    list(freeze_batches(task, source, platform, [r.batch for r in source.list_batches()], "freeze"))
    partitions = [PartitionKey(r.batch, v) for v in task.variants for r in source.list_batches()]
    made = list(ask_partitions(task, platform, partitions, run_id="bench", log=lambda _: None))
    ended = time.perf_counter()
    return {
        "asked": sum(m.figures["sent"] for m in made),
        "s": round(ended - marks["asking"], 2),
        "start_s": round(marks["asking"] - marks["starting"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured, in turns")
    parser.add_argument("--part", choices=("bare", "step"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(measure_bare(Path(name)) if args.part == "bare" else measure_step(Path(name))))
        return
    rounds: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        found: dict[str, Any] = {}
        for part in ("bare", "step"):
            command = [sys.executable, __file__, "--part", part]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[part] = json.loads(out.splitlines()[-1])
            rate = found[part]["asked"] / found[part]["s"]
            print(f"{part}: {found[part]['asked']} requests, {rate:.2f}/s, engine start {found[part]['start_s']} s")
        found["ratio"] = round(
            (found["step"]["asked"] / found["step"]["s"]) / (found["bare"]["asked"] / found["bare"]["s"]), 3
        )
        print(f"ratio llm_outputs / bare LLM.chat: {found['ratio']}")
        rounds.append(found)
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
