"""A fake engine, for tests and benchmarks only: it makes its answers up from the JSON schema, without a model."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, ValidationError

from batch_assets.core.completions import Completion, Usage
from batch_assets.core.entries import Entry
from batch_assets.core.errors import ConfigError, EngineDead, format_problems
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request
from batch_assets.engines.base import Engine, EngineEntry
from batch_assets.engines.registry import register_engine

Share = Annotated[float, Field(ge=0, le=1)]
_CHARACTERS_PER_TOKEN = 4
_HH_MM = "^([01][0-9]|2[0-3]):[0-5][0-9]$"


class FakeArgs(Entry):
    """What `engine_args` may say to the fake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latency_s: Annotated[float, Field(ge=0)] = 0.0
    invalid_share: Share = 0.0
    """The share of requests whose answer is cut off, chosen by request key, so the same ones every time."""


class FakeEngine:
    """Answers every request with made-up values that fit its schema; the same request gets the same answer.

    A token is four characters; an answer of more than `max_tokens` is cut off.
    """

    is_restartable = False

    def __init__(self, args: FakeArgs) -> None:
        self._args = args
        self._is_open = False
        self.opened = 0
        self.completed = 0

    async def open(self) -> None:
        """Count the start; there is nothing to start."""
        self._is_open = True
        self.opened += 1

    async def complete(self, request: Request) -> Completion:
        """Make an answer up."""
        if not self._is_open:
            raise EngineDead("complete() before open() or after close()")
        started = time.monotonic()
        await asyncio.sleep(self._args.latency_s)  # 0 too: a real engine lets others have their turn
        rng = random.Random(request.request_key)
        is_chosen = rng.random() < self._args.invalid_share
        whole = json.dumps(make_value(request.schema, request.schema, rng), ensure_ascii=False)
        most = request.sampling.max_tokens * _CHARACTERS_PER_TOKEN
        text = whole[: min(most, len(whole) // 2)] if is_chosen else whole[:most]
        prompt_characters = sum(len(m.content) for m in request.messages)
        self.completed += 1
        return Completion(
            text=text,
            finish_reason="stop" if text == whole else "length",
            usage=Usage(prompt_tokens=_count_tokens(prompt_characters), completion_tokens=_count_tokens(len(text))),
            latency_s=time.monotonic() - started,
        )

    async def close(self) -> None:
        """Answer no more; there is nothing to free."""
        self._is_open = False


def _count_tokens(characters: int) -> int:
    return -(-characters // _CHARACTERS_PER_TOKEN)


@register_engine("fake")
class FakeEntry(EngineEntry):
    """An entry of the fake; `engine_args` are those of FakeArgs."""

    def check(self) -> None:
        """Refuse arguments that the fake doesn't know."""
        build_fake(self)

    def build(self, cache_dir: Path) -> Engine:  # noqa: ARG002 - nothing is prepared
        """Return the fake."""
        return build_fake(self)


def build_fake(entry: ModelEntry) -> FakeEngine:
    """Build the fake of an entry. ConfigError names the argument that it doesn't know."""
    try:
        return FakeEngine(FakeArgs.model_validate(entry.engine_args))
    except ValidationError as e:
        problems = format_problems(e)
        raise ConfigError(f"models.yaml: {entry.model_id}: engine_args: {problems}") from e


def make_value(schema: Mapping[str, object], root: Mapping[str, object], rng: random.Random) -> object:
    """Return a value that fits the JSON schemas that pydantic writes for plain models.

    Of patterns it knows the one for HH:MM; a text with another one gets a value that may not fit.
    """
    spec = cast("dict[str, Any]", schema)
    if "$ref" in spec:
        name = str(spec["$ref"]).rsplit("/", 1)[-1]
        return make_value(cast("dict[str, Any]", root["$defs"])[name], root, rng)
    if "const" in spec:
        return spec["const"]
    if "enum" in spec:
        return rng.choice(spec["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in spec:
            options: list[dict[str, Any]] = spec[choice]
            plain = [o for o in options if o.get("pattern") in (None, _HH_MM)]
            return make_value(rng.choice(plain or options), root, rng)
    match spec.get("type"):
        case "object":
            return _make_object(spec, root, rng)
        case "array":
            return _make_array(spec, root, rng)
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            step = int(spec.get("multipleOf", 1))
            low, high = _find_bounds(spec, 0, 9 * step, 1)
            return step * rng.randint(-(-int(low) // step), int(high) // step)
        case "number":
            low, high = _find_bounds(spec, 0.0, 1.0, 0.0)
            value = rng.uniform(low, high)
            return round(value, 3) if low < round(value, 3) < high else value
        case "null":
            return None
        case _:
            return _make_text(spec, rng)


def _make_object(spec: Mapping[str, Any], root: Mapping[str, object], rng: random.Random) -> dict[str, object]:
    properties: dict[str, Any] = spec.get("properties", {})
    if not properties and isinstance(spec.get("additionalProperties"), dict):
        return {"fake": make_value(spec["additionalProperties"], root, rng)}
    return {name: make_value(inner, root, rng) for name, inner in properties.items()}


def _make_array(spec: Mapping[str, Any], root: Mapping[str, object], rng: random.Random) -> list[object]:
    if "prefixItems" in spec:
        return [make_value(inner, root, rng) for inner in spec["prefixItems"]]
    least = int(spec.get("minItems", 0))
    most = int(spec.get("maxItems", least + 2))
    found: list[object] = []
    for _ in range(rng.randint(least, most) * (10 if spec.get("uniqueItems") else 1)):
        value = make_value(spec.get("items", {}), root, rng)
        if not spec.get("uniqueItems") or (value not in found and len(found) < most):
            found.append(value)
    return found


def _find_bounds(spec: Mapping[str, Any], low: float, high: float, step: float) -> tuple[float, float]:
    """Return the least and the greatest value that a number may have; if one is open, not far from the other."""
    span = high - low
    least = spec.get("minimum", spec["exclusiveMinimum"] + step if "exclusiveMinimum" in spec else None)
    most = spec.get("maximum", spec["exclusiveMaximum"] - step if "exclusiveMaximum" in spec else None)
    if least is None:
        least = low if most is None or most > low else most - span
    if most is None:
        most = high if least < high else least + span
    return least, most


def _make_text(spec: Mapping[str, Any], rng: random.Random) -> str:
    if spec.get("pattern") == _HH_MM:
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    day = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    match spec.get("format"):
        case "date":
            return day
        case "date-time":
            return f"{day}T12:00:00Z"
        case "time":
            return "12:00:00"
        case "uuid":
            return f"00000000-0000-4000-8000-{rng.randrange(16**12):012x}"
        case _:
            return "fake".ljust(spec.get("minLength", 0), "e")[: spec.get("maxLength")]
