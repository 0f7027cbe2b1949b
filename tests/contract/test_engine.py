"""The contract of an engine, held to each of them: the fake, and the client of a real server on 127.0.0.1.

Another engine joins by a case of its own: a function that yields an `EngineCase`, added to CASES. An engine opens once
for all the tests that only ask, so that one that takes long to start can join too.
"""

import asyncio
import json
import random
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from aiohttp import web
from pydantic import BaseModel, ConfigDict

from batch_assets.core.acceptance import accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import Completion
from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.core.tasks import Task
from batch_assets.engines.base import Engine
from batch_assets.engines.factory import build_engine
from batch_assets.engines.fake import FakeEntry, make_value
from batch_assets.engines.openai_entry import OpenAIEntry

T = TypeVar("T")
AT_ONCE = 150


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: Literal["card", "transfer", "fee"]
    urgent: bool


TASK = Task(name="t", output=Answer, prompts={}, models={})


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """An engine under test, in a loop of its own.

    `build` returns another one that isn't open. `refused`: a request that this engine refuses, where there is one.
    `unopenable` returns one whose open() fails, where that can be had.
    """

    engine: Engine
    run: Callable[[Coroutine[Any, Any, T]], T]
    build: Callable[[], Engine]
    refused: Request | None = None
    unopenable: Callable[[], Engine] | None = None

    def ask(self, request: Request) -> Completion:
        """Ask the open engine once."""
        return self.run(self.engine.complete(request))


def make_request(text: str = "I lost my card.", **sampling: Any) -> Request:
    messages = (
        Message("system", "Answer with one JSON object with the keys label and urgent."),
        Message("user", text),
    )
    values = {"temperature": 0.0, "max_tokens": 64, **sampling}
    return Request(
        request_key=f"key of {text}",
        messages=messages,
        schema=Answer.model_json_schema(),
        sampling=Sampling.model_validate(values),
    )


@contextmanager
def open_case(
    build: Callable[[], Engine], run: Callable[[Coroutine[Any, Any, T]], T], **more: Any
) -> Iterator[EngineCase]:
    """Yield a case whose engine is open until the block ends."""
    engine = build()
    run(engine.open())
    try:
        yield EngineCase(engine=engine, run=run, build=build, **more)
    finally:
        run(engine.close())


# Cases


@contextmanager
def fake_case(folder: Path) -> Iterator[EngineCase]:
    entry = FakeEntry(model_id="m", weights="none", engine="fake")
    with asyncio.Runner() as loop, open_case(lambda: build_engine(entry, folder), loop.run) as case:
        yield case


@contextmanager
def openai_case(folder: Path) -> Iterator[EngineCase]:
    with socket.socket() as closed, asyncio.Runner() as loop:
        closed.bind(("127.0.0.1", 0))
        server, base_url = loop.run(start_server())

        def build(url: str = base_url) -> Engine:
            entry = OpenAIEntry(model_id="m", weights="m", engine="openai", base_url=url, timeout_s=20)
            return build_engine(entry, folder)

        def build_unopenable() -> Engine:
            return build(f"http://127.0.0.1:{closed.getsockname()[1]}/v1")

        refused = make_request("x" * 10_000)
        try:
            with open_case(build, loop.run, refused=refused, unopenable=build_unopenable) as case:
                yield case
        finally:
            loop.run(server.cleanup())


async def start_server() -> tuple[web.AppRunner, str]:
    """Start a server that answers like a model: by schema, up to max_tokens, and not to prompts that are too long."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        prompt = "".join(m["content"] for m in body["messages"])
        if len(prompt) > 5000:
            error = {"message": "too long", "type": "BadRequestError", "param": "input_tokens", "code": 400}
            return web.json_response({"error": error}, status=400)
        schema = body["response_format"]["json_schema"]["schema"]
        whole = json.dumps(make_value(schema, schema, random.Random(prompt)))
        text = whole[: body["max_tokens"] * 4]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop" if text == whole else "length",
        }
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
        return web.json_response({"choices": [choice], "usage": usage})

    async def list_models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", list_models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


Case = Callable[[Path], AbstractContextManager[EngineCase]]
CASES: list[Any] = [
    pytest.param(fake_case, id="fake"),
    pytest.param(openai_case, id="openai"),
    # A real vLLM: pytest.param(vllm_case, id="vllm", marks=pytest.mark.vllm)
]


@pytest.fixture(scope="module", params=CASES)
def engine_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineCase]:
    """The engines that the contract is held to, one after the other, each open once."""
    make: Case = request.param
    with make(tmp_path_factory.mktemp("engine")) as case:
        yield case


# One request


def test_an_answer_is_text_that_fits_the_schema_with_its_figures(engine_case: EngineCase) -> None:
    completion = engine_case.ask(make_request())
    assert completion.finish_reason == "stop"
    assert accept(completion, TASK).status is Status.OK, completion.text
    assert completion.latency_s is not None
    assert completion.latency_s >= 0
    usage = completion.usage
    assert usage.prompt_tokens is None or usage.prompt_tokens > 5
    assert usage.completion_tokens is None or 1 <= usage.completion_tokens <= 64
    assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= (usage.prompt_tokens or 0)


def test_the_same_request_at_temperature_0_has_the_same_answer(engine_case: EngineCase) -> None:
    assert engine_case.ask(make_request()).text == engine_case.ask(make_request()).text


def test_an_answer_that_max_tokens_cuts_off_says_so(engine_case: EngineCase) -> None:
    completion = engine_case.ask(make_request(max_tokens=1))
    assert completion.finish_reason == "length"
    assert accept(completion, TASK).error_kind is ErrorKind.TRUNCATED


@pytest.mark.parametrize(
    "text", ["", "{{ x }} {% raw %}", "<|im_end|>\n<|im_start|>system", "\0", "Привет 😀 \u202e", "'\"\\"]
)
def test_any_text_can_be_asked_about(engine_case: EngineCase, text: str) -> None:
    assert accept(engine_case.ask(make_request(text)), TASK).status is Status.OK


def test_a_refused_request_is_a_value_of_a_closed_kind_and_the_engine_lives(engine_case: EngineCase) -> None:
    if engine_case.refused is None:
        pytest.skip("this engine refuses no request")
    with pytest.raises(RequestFailed) as error:
        engine_case.ask(engine_case.refused)
    assert error.value.kind == ErrorKind.CONTEXT_LENGTH
    assert error.value.is_passing is False
    assert str(error.value)
    assert accept(engine_case.ask(make_request()), TASK).status is Status.OK


# Many requests


def test_many_requests_at_once_each_have_their_answer(engine_case: EngineCase) -> None:
    requests = [make_request(f"Ticket {n}: where is my card?") for n in range(AT_ONCE)]

    async def ask_all() -> list[Completion]:
        return await asyncio.gather(*map(engine_case.engine.complete, requests))

    answers = engine_case.run(ask_all())
    assert [accept(a, TASK).status for a in answers] == [Status.OK] * AT_ONCE


def test_a_refused_request_among_others_fails_alone(engine_case: EngineCase) -> None:
    if engine_case.refused is None:
        pytest.skip("this engine refuses no request")
    requests = [make_request("one"), engine_case.refused, make_request("two")]

    async def ask_all() -> list[Completion | BaseException]:
        return await asyncio.gather(*map(engine_case.engine.complete, requests), return_exceptions=True)

    one, refused, two = engine_case.run(ask_all())
    assert isinstance(refused, RequestFailed)
    assert all(isinstance(a, Completion) and accept(a, TASK).status is Status.OK for a in (one, two))


def test_a_cancelled_request_ends_at_once_and_the_others_go_on(engine_case: EngineCase) -> None:
    async def cancel_half() -> list[Completion | BaseException]:
        tasks = [asyncio.create_task(engine_case.engine.complete(make_request(f"{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    answers = engine_case.run(cancel_half())
    assert all(isinstance(a, asyncio.CancelledError) for a in answers[::2])
    assert all(isinstance(a, Completion) and accept(a, TASK).status is Status.OK for a in answers[1::2])
    assert accept(engine_case.ask(make_request()), TASK).status is Status.OK


# Beginning and end


def test_an_engine_answers_between_open_and_close_and_not_before_or_after(engine_case: EngineCase) -> None:
    engine = engine_case.build()
    with pytest.raises(EngineDead):
        engine_case.run(engine.complete(make_request()))
    engine_case.run(engine.open())
    assert engine_case.run(engine.complete(make_request())).finish_reason == "stop"
    engine_case.run(engine.close())
    engine_case.run(engine.close())
    with pytest.raises(EngineDead):
        engine_case.run(engine.complete(make_request()))


def test_an_engine_that_was_never_opened_can_be_closed(engine_case: EngineCase) -> None:
    engine_case.run(engine_case.build().close())


def test_an_engine_that_could_not_open_says_so_and_can_be_closed(engine_case: EngineCase) -> None:
    if engine_case.unopenable is None:
        pytest.skip("this engine always opens")
    engine = engine_case.unopenable()
    with pytest.raises((EngineDead, ConfigError)):
        engine_case.run(engine.open())
    engine_case.run(engine.close())
    engine_case.run(engine.close())
