"""An answer's text is kept to the letter: in the frame, in the sample, and in what tells that it changed."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from factories import ScriptedEngine, Stage, make_model
from pydantic import BaseModel

from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.canonical import DIGEST_HEX_DIGITS, canonical_json
from batch_assets.core.tasks import Task
from batch_assets.store.fallbacks import load_fallback
from batch_assets.store.partitions import load_partition
from batch_assets.store.tables import qa_samples

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


class Place(BaseModel):
    name: str


class Found(BaseModel):
    """Texts at each depth: plain, in an object, in a list of objects."""

    label: str
    place: Place
    others: list[Place]


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, store_url)
    made.write("b1", ["1"])
    yield made
    made.platform.database.close()
    made.instance.dispose()


def make_answer(text: str) -> dict[str, Any]:
    return {"label": text, "place": {"name": text}, "others": [{"name": text}]}


def answer(text: str) -> ScriptedEngine:
    return ScriptedEngine(default=json.dumps(make_answer(text), ensure_ascii=False))


def load_content(stage: Stage) -> str:
    with stage.platform.database.read() as connection:
        state = load_partition(connection, "t", "b1", "v1--m1")
    assert state is not None
    return state.content


def load_fallback_content(stage: Stage) -> str:
    with stage.platform.database.read() as connection:
        state = load_fallback(connection, "t", "b1", "v1--m1")
    assert state is not None
    return state.content


def hash_as_before(*rows: list[object]) -> str:
    """Return the content hash of the version that had canonical JSON only."""
    return hashlib.sha256("".join(map(canonical_json, rows)).encode()).hexdigest()[:DIGEST_HEX_DIGITS]


def run(place: Path, store_url: str, text: str) -> str:
    stage = Stage(place, store_url)
    stage.write("b1", ["1"])
    stage.run(stage.task(output=Found), answer(text))
    return load_content(stage)


@pytest.mark.parametrize("text", [COMPOSED, DECOMPOSED, "plain"])
def test_the_frame_and_the_sample_hold_the_answers_very_text(stage: Stage, text: str) -> None:
    stage.run(stage.task(output=Found), answer(text))
    frame = stage.platform.frames.read("t", VALIDATED_RESULTS, "b1", "v1--m1")
    assert frame is not None
    (row,) = frame.to_dicts()
    with stage.platform.database.read() as connection:
        sampled: Mapping[str, Any] = connection.scalar(sa.select(qa_samples.c.payload)) or {}
    for found in ({k.removeprefix("out_"): v for k, v in row.items()}, sampled):
        read = {
            k: json.loads(found[k]) if k != "label" and isinstance(found[k], str) else found[k]
            for k in Found.model_fields
        }
        assert read == make_answer(text)


def test_an_answer_that_differs_only_in_its_spelling_is_other_content(stage: Stage) -> None:
    task: Task = stage.task(output=Found)
    stage.run(task, answer(COMPOSED))
    composed = load_content(stage)
    assert composed == hash_as_before(["1", "ok", make_answer(COMPOSED), None]), "as the version before hashed it"
    stage.run(task, answer(COMPOSED), retry=RetryMode.ALL)
    assert load_content(stage) == composed
    stage.run(task, answer(DECOMPOSED), retry=RetryMode.ALL)
    assert load_content(stage) != composed


def test_the_fallbacks_answer_that_differs_only_in_its_spelling_is_other_content(stage: Stage) -> None:
    task = stage.task(output=Found, fallback=make_model("big"))
    stage.run(task, ScriptedEngine(default="no"), fallback=answer(COMPOSED))
    composed = load_fallback_content(stage)
    assert composed == hash_as_before(["1", "ok", make_answer(COMPOSED)])
    # The planner asks a fallback again only for what failed; a row that was replaced is what finishing must see.
    stage.run(task, ScriptedEngine(default="no"), fallback=answer(DECOMPOSED), retry=RetryMode.ALL)
    assert load_fallback_content(stage) != composed
