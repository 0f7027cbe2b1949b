"""What the benchmarks share: a task over generated records, in a folder of its own."""

import json
import random
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel

from batch_assets.core.attempts import Ladder
from batch_assets.core.models import ModelEntry, Sampling
from batch_assets.core.prompts import load_prompts
from batch_assets.core.tasks import Task
from batch_assets.engines.fake import FakeEntry

WORDS = ("card", "transfer", "login", "loan", "fee", "fraud", "app", "why", "where", "lost", "money", "please", "help")
PROMPT = """---
description: zero-shot
system: Sort the ticket. Answer with JSON.
---
{{ text }}
"""


class Label(BaseModel):
    """The answer."""

    label: Literal["card", "transfer", "login", "loan", "fee", "fraud", "app", "other"]
    urgent: bool


def make_records(count: int, path: Path) -> None:
    """Write `count` records of about 54 characters, 1 % of them repeats, as Parquet."""
    rng = random.Random(7)
    texts = [" ".join(rng.choices(WORDS, k=9)) for _ in range(count)]
    for i in rng.sample(range(1, count), count // 100):
        texts[i] = texts[i - 1]
    frame = pl.DataFrame({"item_id": [f"r{i:07d}" for i in range(count)], "text": texts})
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path)


def make_task(folder: Path, model: ModelEntry) -> Task:
    """Return a task of one prompt and one model."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "prompts" / "v1.md").write_text(PROMPT)
    prompts = load_prompts(folder / "prompts", Label)
    # No ladder: the peer asks nothing twice.
    return Task(
        name="bench", output=Label, prompts=prompts, models={model.model_id: model}, ladder=Ladder(steps=0)
    )  # fmt: skip


def make_fake_entry(invalid_share: float, window: int) -> FakeEntry:
    """Return an entry of the fake engine."""
    return FakeEntry(
        model_id="fake",
        weights="fake",
        engine="fake",
        engine_args={"invalid_share": invalid_share},
        sampling=Sampling(max_tokens=64),
        max_in_flight=window,
    )


def print_result(result: dict[str, object]) -> None:
    """Print the figures as one JSON document."""
    print(json.dumps(result))
