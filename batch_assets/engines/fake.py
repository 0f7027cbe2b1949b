"""A fake engine, for tests and benchmarks only: it makes its answers up from the JSON schema, without a model."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request

Share = Annotated[float, Field(ge=0, le=1)]


class FakeArgs(BaseModel):
    """What `engine_args` may say to the fake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_s: Annotated[float, Field(ge=0)] = 0.0
    invalid_share: Share = 0.0
    """The share of requests whose answer is cut off, chosen by request key, so the same ones every time."""


class FakeEngine:
    """Answers every request with made-up values that fit its schema; the same request gets the same answer."""

    def __init__(self, args: FakeArgs) -> None:
        self._args = args
        self.opened = 0
        self.completed = 0

    async def open(self) -> None:
        """Count the start; there is nothing to start."""
        self.opened += 1

    async def complete(self, request: Request) -> Completion:
        """Make an answer up."""
        started = time.monotonic()
        if self._args.latency_s:
            await asyncio.sleep(self._args.latency_s)
        rng = random.Random(request.request_key)
        is_cut = rng.random() < self._args.invalid_share
        text = json.dumps(make_value(request.schema, request.schema, rng), ensure_ascii=False)
        prompt_characters = sum(len(m.content) for m in request.messages)
        self.completed += 1
        return Completion(
            text=text[: len(text) // 2] if is_cut else text,
            finish_reason="length" if is_cut else "stop",
            usage=Usage(prompt_tokens=prompt_characters // 4 + 1, completion_tokens=len(text) // 4 + 1),
            latency_s=time.monotonic() - started,
        )

    async def close(self) -> None:
        """Do nothing; there is nothing to free."""


def build_fake(entry: ModelEntry) -> FakeEngine:
    """Build the fake of an entry. ConfigError names the argument that it doesn't know."""
    try:
        return FakeEngine(FakeArgs.model_validate(entry.engine_args))
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in e.errors())
        raise ConfigError(f"models.yaml: {entry.model_id}: engine_args: {problems}") from e


def make_value(schema: Mapping[str, object], root: Mapping[str, object], rng: random.Random) -> object:
    """Return a value that fits the JSON schemas that pydantic writes for plain models."""
    spec = cast("dict[str, Any]", schema)
    if "$ref" in spec:
        name = str(spec["$ref"]).rsplit("/", 1)[-1]
        return make_value(cast("dict[str, Any]", root["$defs"])[name], root, rng)
    if "const" in spec:
        return spec["const"]
    if "enum" in spec:
        return rng.choice(spec["enum"])
    if "anyOf" in spec:
        return make_value(rng.choice(spec["anyOf"]), root, rng)
    match spec.get("type"):
        case "object":
            properties = cast("dict[str, Any]", spec.get("properties", {}))
            return {name: make_value(inner, root, rng) for name, inner in properties.items()}
        case "array":
            count = rng.randint(spec.get("minItems", 0), max(spec.get("minItems", 0), spec.get("maxItems", 2)))
            return [make_value(spec["items"], root, rng) for _ in range(count)]
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return rng.randint(int(spec.get("minimum", 0)), int(spec.get("maximum", 9)))
        case "number":
            return round(rng.uniform(spec.get("minimum", 0.0), spec.get("maximum", 1.0)), 3)
        case "null":
            return None
        case _:
            return _make_text(spec, rng)


def _make_text(spec: Mapping[str, Any], rng: random.Random) -> str:
    if spec.get("pattern") == "^([01][0-9]|2[0-3]):[0-5][0-9]$":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return "fake"[: spec.get("maxLength", 4)]
