"""The fake: says what it is, answers the same to the same request, and its answers fit."""

import asyncio
import datetime as dt
import enum
import inspect
import random
import uuid
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from batch_assets.core.acceptance import accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import Completion
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.core.tasks import Task
from batch_assets.defs.ticket_triage.task import Triage
from batch_assets.engines import fake
from batch_assets.engines.fake import FakeEngine, FakeEntry, build_fake, make_value


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: Colour
    size: Size | None


class Choices(BaseModel):
    one: Literal["only"]
    some: Literal["a", "b", 3]
    colour: Colour
    size: Size
    flag: bool
    nothing: None


class Nested(BaseModel):
    inner: Inner
    maybe: Inner | None
    many: list[Inner]
    by_name: dict[str, Inner]
    either: Inner | Colour | None
    deep: list[list[Inner | None]]


class Numbers(BaseModel):
    plain: int
    at_least: Annotated[int, Field(ge=10)]
    more: Annotated[int, Field(gt=100)]
    at_most: Annotated[int, Field(le=-10)]
    less: Annotated[int, Field(lt=0)]
    between: Annotated[int, Field(ge=3, le=3)]
    inside: Annotated[int, Field(gt=3, lt=5)]
    steps: Annotated[int, Field(multiple_of=5, ge=7, le=21)]
    number: float
    share: Annotated[float, Field(ge=0, le=1)]
    tiny: Annotated[float, Field(gt=0.0001, lt=0.0002)]
    big: Annotated[float, Field(ge=1e6)]
    low: Annotated[float, Field(le=-5)]


class Texts(BaseModel):
    plain: str
    short: Annotated[str, Field(max_length=2)]
    long: Annotated[str, Field(min_length=10)]
    exact: Annotated[str, Field(min_length=5, max_length=5)]
    time: Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    day: dt.date
    at: dt.datetime
    clock: dt.time
    key: uuid.UUID


class Lists(BaseModel):
    some: Annotated[list[int], Field(min_length=3)]
    few: Annotated[list[str], Field(max_length=1)]
    exact: Annotated[list[bool], Field(min_length=2, max_length=2)]
    unique: set[Colour]
    pair: tuple[int, str]
    anything: list[Any]


class Tagged(BaseModel):
    class Cat(BaseModel):
        kind: Literal["cat"]
        lives: Annotated[int, Field(ge=1, le=9)]

    class Dog(BaseModel):
        kind: Literal["dog"]

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    anything: Any


def ask(request: Request, engine: FakeEngine | None = None) -> Completion:
    engine = engine or build_fake(make_entry())

    async def run() -> Completion:
        await engine.open()
        try:
            return await engine.complete(request)
        finally:
            await engine.close()

    return asyncio.run(run())


def make_entry(**engine_args: Any) -> FakeEntry:
    return FakeEntry(model_id="m", weights="none", engine="fake", engine_args=engine_args)


def make_request(key: str, output: type[BaseModel] = Triage, **sampling: Any) -> Request:
    messages = (Message("user", "x" * 40),)
    schema = output.model_json_schema()
    return Request(request_key=key, messages=messages, schema=schema, sampling=Sampling(**sampling))


@pytest.mark.parametrize("output", [Triage, Choices, Nested, Numbers, Texts, Lists, Tagged])
def test_every_value_that_it_makes_up_is_accepted(output: type[BaseModel]) -> None:
    task = Task(name="t", output=output, prompts={}, models={})
    schema = output.model_json_schema()
    engine = build_fake(make_entry())

    async def run() -> None:
        await engine.open()
        for n in range(60):
            completion = await engine.complete(make_request(str(n), output, max_tokens=10_000))
            verdict = accept(completion, task)
            assert verdict.status is Status.OK, (verdict.error, completion.text, schema)

    asyncio.run(run())


def test_its_values_differ() -> None:
    schema = Nested.model_json_schema()
    assert len({repr(make_value(schema, schema, random.Random(n))) for n in range(20)}) > 10


def test_it_says_that_it_is_a_fake() -> None:
    assert "for tests and benchmarks only" in (fake.__doc__ or "")
    assert "without a model" in (fake.__doc__ or "")
    assert "made-up" in (FakeEngine.__doc__ or "")
    assert "fake" in ask(make_request("k", Texts)).text


def test_an_answer_goes_by_the_key_of_its_request_alone() -> None:
    engines = [build_fake(make_entry()) for _ in range(2)]
    answers = [[ask(make_request(str(n)), engine).text for n in range(20)] for engine in engines]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5


def test_it_counts_what_it_did() -> None:
    engine = build_fake(make_entry())
    for n in range(3):
        ask(make_request(str(n)), engine)
    assert (engine.opened, engine.completed) == (3, 3)


def test_a_share_of_its_answers_is_cut_off_and_says_so() -> None:
    answers = [ask(make_request(str(n)), build_fake(make_entry(invalid_share=0.3))) for n in range(200)]
    cut = [a for a in answers if a.finish_reason == "length"]
    assert 30 <= len(cut) <= 90
    task = Task(name="t", output=Triage, prompts={}, models={})
    assert {accept(a, task).error_kind for a in cut} == {ErrorKind.TRUNCATED}
    assert all(accept(a, task).status is Status.OK for a in answers if a not in cut)


def test_an_answer_of_more_than_max_tokens_is_cut_off() -> None:
    whole, cut = ask(make_request("k")), ask(make_request("k", max_tokens=2))
    assert (cut.text, cut.finish_reason, cut.usage.completion_tokens) == (whole.text[:8], "length", 2)


def test_its_tokens_are_four_characters() -> None:
    completion = ask(make_request("k"))
    assert completion.usage.prompt_tokens == 10
    assert completion.usage.completion_tokens == -(-len(completion.text) // 4)
    assert completion.usage.cached_tokens is None


@pytest.mark.parametrize(
    ("engine_args", "named"),
    [
        ({"latency": 1}, "latency: Extra"),
        ({"invalid_share": 2}, "invalid_share: "),
        ({"latency_s": -1}, "latency_s: "),
        ({"latency_s": float("inf")}, "latency_s: "),
        ({"latency_s": True}, "latency_s: "),
    ],
)
def test_an_argument_that_it_does_not_know_is_named(engine_args: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\.yaml: m: engine_args: {named}"):
        build_fake(make_entry(**engine_args))


def test_no_module_of_the_package_takes_the_fake_by_itself() -> None:
    assert inspect.signature(FakeEntry).parameters["engine"].default is inspect.Parameter.empty
