"""Records that version 0.1 asked with its own way of writing nested few-shot outputs: their attempts count."""

import json
from dataclasses import replace
from pathlib import Path

from factories import (
    ScriptedEngine,
    load_statuses,
    make_claim,
    make_inputs,
    make_records,
    make_task,
    run_partitions,
    write_rows,
)
from pydantic import BaseModel

from batch_assets.core.identity import request_key
from batch_assets.core.prompts import load_prompts
from batch_assets.store.database import Database


class Inner(BaseModel):
    z: int
    a: str


class Nested(BaseModel):
    parts: list[Inner]


def test_a_record_that_killed_the_engine_before_is_still_known(database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    examples = json.dumps([{"input": {"text": "t"}, "output": {"parts": [{"z": 1, "a": "x"}]}}])
    (folder / "v1.md").write_text(f"---\ndescription: d\nexamples: {examples}\n---\n{{{{ text }}}}\n")
    task = make_task(tmp_path / "other", output=Nested, rules_version="1")
    inputs = make_inputs(replace(task, prompts=load_prompts(folder, Nested)), "b1", make_records(["one"]))
    before = inputs.variant.prompt.render_as_before(make_records(["one"])[0])
    assert before is not None
    key = request_key(before, inputs.spec)
    claims = [make_claim("one", key=inputs.key, request_key=key, is_alone=True) for _ in range(2)]
    write_rows(database, claims=claims)
    engine = ScriptedEngine()
    run_partitions(database, engine, inputs)
    assert engine.asked == []
    assert load_statuses(database) == {"one": "error/kills_engine"}
