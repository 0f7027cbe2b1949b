"""The client of OpenAI-compatible servers, against a real server on 127.0.0.1 that says what a test wants it to say."""

import asyncio
import email.utils
import gzip
import json
import re
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.engines import openai_engine
from batch_assets.engines.openai_engine import OpenAIEngine
from batch_assets.engines.openai_entry import OpenAIEntry

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = "sk-Very-Secret-0123456789"
REQUEST = Request(
    request_key="k",
    messages=(Message("system", "Sei kurz."), Message("user", "Привет\ud800 {{ x }}")),
    schema={"type": "object", "properties": {"a": {"type": "integer"}}},
    sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=7, seed=3, stop=("\n",)),
)
PLAIN_REQUEST = Request(request_key="k", messages=REQUEST.messages, schema=REQUEST.schema, sampling=Sampling())


def make_body(content: object = '{"a":1}', finish_reason: object = "stop", **fields: Any) -> dict[str, Any]:
    """Return the body of a good answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}}
    return {"object": "chat.completion", "choices": [choice], "usage": usage, **fields}


def say(body: object, status: int = 200, **headers: str) -> Handler:
    """Return a handler that always gives the same answer: bytes as they are, all else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, headers={"Content-Type": "application/json", **headers})

    return handle


@asynccontextmanager
async def serve(
    complete: Handler, models: Handler | None = None, tokenize: Handler | None = None
) -> AsyncIterator[str]:
    """Run a server for as long as the block lasts; yield its base URL."""
    app = web.Application()
    app.router.add_get("/v1/models", models or say({"object": "list", "data": []}))
    app.router.add_post("/v1/chat/completions", complete)
    if tokenize is not None:
        app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def make_engine(base_url: str, **fields: Any) -> OpenAIEngine:
    entry = {"model_id": "m", "weights": "org/model", "engine": "openai", "base_url": base_url, **fields}
    return OpenAIEngine(OpenAIEntry.model_validate(entry))


def ask(
    complete: Handler,
    request: Request = REQUEST,
    *,
    models: Handler | None = None,
    tokenize: Handler | None = None,
    **fields: Any,
) -> Completion:
    """Open an engine on a server of its own, ask once, and close it."""

    async def run() -> Completion:
        async with serve(complete, models, tokenize) as base_url:
            engine = make_engine(base_url, **fields)
            try:
                await engine.open()
                return await engine.complete(request)
            finally:
                await engine.close()

    return asyncio.run(run())


def fail(complete: Handler, **fields: Any) -> RequestFailed:
    """Ask once and return how it failed."""
    with pytest.raises(RequestFailed) as error:
        ask(complete, **fields)
    assert error.value.kind in ErrorKind
    return error.value


def run_on(complete: Handler, use: Callable[[OpenAIEngine], Coroutine[Any, Any, None]], **fields: Any) -> None:
    """Open an engine on a server of its own and use it."""

    async def run() -> None:
        async with serve(complete) as base_url:
            engine = make_engine(base_url, **fields)
            await engine.open()
            try:
                await use(engine)
            finally:
                await engine.close()

    asyncio.run(run())


# A good answer


def test_a_request_says_all_that_can_change_the_answer_and_an_answer_comes_back_untouched() -> None:
    seen: list[tuple[Any, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((await request.json(), request.headers))
        return web.json_response(make_body(' {"a": 1}\n'))

    completion = ask(handle)
    assert completion.text == ' {"a": 1}\n'
    assert completion.finish_reason == "stop"
    assert completion.usage == Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8)
    assert completion.latency_s is not None
    assert 0 < completion.latency_s < 10
    [(body, headers)] = seen
    assert body == {
        "model": "org/model",
        "messages": [{"role": "system", "content": "Sei kurz."}, {"role": "user", "content": "Привет\ud800 {{ x }}"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["\n"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": REQUEST.schema},
        },
    }
    assert "Authorization" not in headers


def test_what_the_sampling_does_not_say_is_not_sent() -> None:
    seen: list[Any] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return web.json_response(make_body())

    ask(handle, PLAIN_REQUEST)
    assert not {"seed", "stop"} & set(seen[0])


@pytest.mark.parametrize("content_type", ["text/plain", "text/html; charset=utf-8", "application/octet-stream", ""])
def test_json_under_another_content_type_is_an_answer(content_type: str) -> None:
    assert ask(say(make_body(), **{"Content-Type": content_type})).text == '{"a":1}'


@pytest.mark.parametrize("finish_reason", ["length", "content_filter", "tool_calls", None])
def test_the_finish_reason_is_passed_on(finish_reason: str | None) -> None:
    assert ask(say(make_body(finish_reason=finish_reason))).finish_reason == finish_reason


@pytest.mark.parametrize("content", [None, ["a"], {"text": "a"}, 3])
def test_content_that_is_no_text_is_an_empty_answer(content: object) -> None:
    assert ask(say(make_body(content))).text == ""


def say_message(**message: object) -> Handler:
    body = make_body()
    body["choices"][0]["message"] = {"role": "assistant", **message}
    return say(body)


def test_content_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": '{"a"'}, {"type": "text", "text": ":1}"}, {"type": "image"}, None, {"text": 3}]
    assert ask(say(make_body(parts))).text == '{"a":1}'


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_is_in_the_reasoning_field_is_reasoning_and_no_answer(name: str) -> None:
    completion = ask(say_message(content=None, **{name: "First, …"}))
    assert (completion.text, completion.reasoning) == ("", "First, …")


@pytest.mark.parametrize("value", [None, "", 3, ["x"], {}])
def test_a_reasoning_or_refusal_that_is_no_text_is_none(value: object) -> None:
    completion = ask(say_message(content="x", reasoning=value, reasoning_content=value, refusal=value))
    assert (completion.text, completion.reasoning, completion.refusal) == ("x", None, None)


@pytest.mark.parametrize(
    "message",
    [{"content": None, "refusal": "I can't."}, {"content": [{"type": "refusal", "refusal": "I can't."}]}],
)
def test_a_models_refusal_is_passed_on(message: dict[str, object]) -> None:
    completion = ask(say_message(**message))
    assert (completion.text, completion.refusal) == ("", "I can't.")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ("many", Usage()),
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": 0}, Usage(completion_tokens=0)),
        ({"prompt_tokens": "11", "completion_tokens": True}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": 1.5}, Usage()),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(prompt_tokens=3)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, Usage(prompt_tokens=3)),
    ],
)
def test_unknown_usage_is_unknown_and_not_zero(usage: object, expected: Usage) -> None:
    assert ask(say(make_body(usage=usage))).usage == expected


def test_missing_usage_is_unknown() -> None:
    body = make_body()
    del body["usage"]
    assert ask(say(body)).usage == Usage(prompt_tokens=None, completion_tokens=None, cached_tokens=None)


# A failed request


@pytest.mark.parametrize(
    ("status", "kind", "is_passing"),
    [
        (202, ErrorKind.BAD_RESPONSE, True),
        (204, ErrorKind.BAD_RESPONSE, True),
        (304, ErrorKind.BAD_RESPONSE, True),
        (400, ErrorKind.BAD_REQUEST, False),
        (408, ErrorKind.TIMEOUT, True),
        (413, ErrorKind.BAD_REQUEST, False),
        (422, ErrorKind.BAD_REQUEST, False),
        (429, ErrorKind.RATE_LIMITED, True),
        (500, ErrorKind.SERVER_ERROR, True),
        (502, ErrorKind.SERVER_ERROR, True),
        (503, ErrorKind.SERVER_ERROR, True),
        (504, ErrorKind.SERVER_ERROR, True),
        (529, ErrorKind.SERVER_ERROR, True),
    ],
)
@pytest.mark.parametrize(
    "body",
    [b'{"error":{"message":"words"}}', b"<html><h1>Bad Gateway</h1></html>", b"", b"[]", b'{"error":null}', b"\xff"],
)
def test_each_status_has_its_kind_whatever_the_body_says(
    status: int, kind: ErrorKind, is_passing: bool, body: bytes
) -> None:
    failed = fail(say(body, status))
    assert (failed.kind, failed.is_passing) == (kind, is_passing)
    assert str(failed).startswith(f"HTTP {status}: ")
    assert "<html>" not in str(failed)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "x", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"},
        {"message": "x", "type": "BadRequestError", "param": "input_tokens", "code": 400},
        {"message": "x", "type": "BadRequestError", "param": "input_text", "code": 400},
        {"message": "x", "type": "exceed_context_size_error", "code": 400, "n_ctx": 4096},
    ],
    ids=["openai", "vllm", "vllm, by characters", "llama.cpp"],
)
def test_a_prompt_that_is_too_long_is_told_by_name_and_not_by_words(error: dict[str, object]) -> None:
    failed = fail(say({"error": error}, 400))
    assert (failed.kind, failed.is_passing) == (ErrorKind.CONTEXT_LENGTH, False)


def test_words_alone_do_not_make_a_kind() -> None:
    failed = fail(say({"error": {"message": "rate limit: maximum context length; timeout", "code": None}}, 400))
    assert (failed.kind, failed.is_passing) == (ErrorKind.BAD_REQUEST, False)


def test_a_prompt_that_a_filter_refuses_is_refused() -> None:
    failed = fail(say({"error": {"message": "x", "code": "content_filter", "param": "prompt"}}, 400))
    assert (failed.kind, failed.is_passing) == (ErrorKind.REFUSED, False)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "too hot"}}, "HTTP 400: too hot"),
        ({"error": "too hot"}, "HTTP 400: too hot"),
        ({"message": "too hot", "object": "error"}, "HTTP 400: too hot"),
        ({"detail": "too hot"}, "HTTP 400: no message"),
        ({"error": {"message": "x" * 1000}}, "HTTP 400: " + "x" * 290),
    ],
)
def test_the_servers_words_are_passed_on_and_bounded(body: object, words: str) -> None:
    assert str(fail(say(body, 400))) == words


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds_is_heard(status: int) -> None:
    assert fail(say({}, status, **{"Retry-After": "7"})).retry_after_s == 7
    assert fail(say({}, status, **{"Retry-After": "1.5"})).retry_after_s == 1.5  # no header by RFC 9110, but sent


def test_retry_after_as_a_date_is_heard() -> None:
    started = time.time()
    date = email.utils.formatdate(started + 90, usegmt=True)  # in whole seconds
    wait_s = fail(say({}, 429, **{"Retry-After": date})).retry_after_s
    assert wait_s is not None
    assert 89 - (time.time() - started) <= wait_s <= 90


def test_a_retry_after_of_days_does_not_make_a_run_sleep_for_days() -> None:
    assert fail(say({}, 429, **{"Retry-After": "864000"})).retry_after_s == 3600
    assert fail(say({}, 429, **{"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"})).retry_after_s == 3600


@pytest.mark.parametrize("value", ["", "soon", "-1", "5.5.5", "²", "Wed, 99 Oct 2065 07:28:00 GMT"])
def test_a_retry_after_that_says_nothing_is_none(value: str) -> None:
    failed = fail(say({}, 429, **{"Retry-After": value}))
    assert (failed.kind, failed.retry_after_s) == (ErrorKind.RATE_LIMITED, None)


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=12) | st.text(st.sampled_from("0123456789²٣+-: ,GMTWedOct"), max_size=30))
def test_any_retry_after_is_a_bounded_wait_or_none(value: str) -> None:
    waited = openai_engine._read_retry_after(value)
    assert waited is None or 0 <= waited <= 3600


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"<html>Welcome to nginx</html>",
        b'{"choices":',
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b"[]",
        b"3",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":{}}',
        b'{"choices":null}',
        b'{"choices":[null]}',
        b'{"choices":[{}]}',
        b'{"choices":[{"message":null}]}',
        b'{"choices":[{"message":"text"}]}',
        b'{"error":{"message":"overloaded"}}',
    ],
    ids=lambda body: body[:30].decode(errors="replace") or "nothing",
)
def test_a_200_that_is_no_answer_is_a_bad_response(body: bytes) -> None:
    failed = fail(say(body))
    assert (failed.kind, failed.is_passing) == (ErrorKind.BAD_RESPONSE, True)


def test_a_server_that_does_not_answer_in_time_is_a_timeout() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    failed = fail(hang, timeout_s=0.05)
    assert (failed.kind, failed.is_passing, str(failed)) == (ErrorKind.TIMEOUT, True, "no answer in 0.05 s")


def test_a_connection_that_is_reset_was_dropped() -> None:
    async def reset(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        return web.Response()

    failed = fail(reset)
    assert (failed.kind, failed.is_passing) == (ErrorKind.DROPPED, True)


def test_an_answer_that_breaks_off_was_dropped() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices":')
        assert request.transport
        request.transport.close()
        return response

    failed = fail(break_off)
    assert (failed.kind, failed.is_passing) == (ErrorKind.DROPPED, True)


def test_a_server_that_has_gone_is_a_lost_connection() -> None:
    async def run() -> None:
        async with serve(say(make_body())) as base_url:
            engine = make_engine(base_url)
            await engine.open()
        for kinds in ({ErrorKind.CONNECTION, ErrorKind.DROPPED}, {ErrorKind.CONNECTION}):  # the first may be a kept one
            with pytest.raises(RequestFailed) as error:
                await engine.complete(REQUEST)
            assert error.value.kind in kinds
            assert error.value.is_passing
        await engine.close()

    asyncio.run(run())


def test_a_failed_request_does_not_spoil_the_next() -> None:
    answers = iter([say(b"", 500), say(b"nonsense"), say(make_body())])

    async def handle(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    async def use(engine: OpenAIEngine) -> None:
        for _ in range(2):
            with pytest.raises(RequestFailed):
                await engine.complete(REQUEST)
        assert (await engine.complete(REQUEST)).text == '{"a":1}'

    run_on(handle, use)


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "no-such-charset", "utf-7", "\udcff"])
@pytest.mark.parametrize(
    "body", [b'"\xe9"', '{"choices":[{"message":{"content":"é"}}]}'.encode("latin-1"), b"\x00\x01"]
)
def test_a_body_in_whatever_encoding_raises_nothing_else(charset: str, body: bytes) -> None:
    failed = fail(
        say(body, **{"Content-Type": f"application/json; charset={charset}".encode("ascii", "replace").decode()})
    )
    assert (failed.kind, failed.is_passing) == (ErrorKind.BAD_RESPONSE, True)


def test_a_page_instead_of_an_answer_is_told_in_plain_words() -> None:
    failed = fail(say(b"<html>Sign in</html>", **{"Content-Type": "text/html"}))
    assert str(failed) == "the server's answer is not JSON; it calls itself text/html"


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_without_an_end_is_no_answer(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(openai_engine, "LARGEST_BODY", 2**20)
    written = 0

    async def go_on(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**16)
            written += 2**16
            await asyncio.sleep(0)

    failed = fail(go_on, timeout_s=60)
    assert (failed.kind, str(failed)) == (ErrorKind.BAD_RESPONSE, "the server's answer has more than 1 MiB")
    assert written < 2**25, "its connection is closed"


def test_a_small_body_that_unpacks_to_a_huge_one_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "LARGEST_BODY", 2**20)
    failed = fail(say(gzip.compress(b" " * 2**22), **{"Content-Encoding": "gzip"}))
    assert (failed.kind, str(failed)) == (ErrorKind.BAD_RESPONSE, "the server's answer has more than 1 MiB")


def test_a_request_whose_kept_connection_breaks_is_not_sent_again() -> None:
    seen: list[int] = []

    async def break_the_second(request: web.Request) -> web.StreamResponse:
        seen.append(1)
        assert request.transport
        if len(seen) > 1:
            request.transport.abort()
        return web.json_response(make_body())

    async def use(engine: OpenAIEngine) -> None:
        await engine.complete(REQUEST)
        with pytest.raises(RequestFailed) as error:
            await engine.complete(REQUEST)
        assert error.value.kind == ErrorKind.DROPPED

    run_on(break_the_second, use)
    assert len(seen) == 2


# A redirect


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("is_list", [True, False])
def test_no_redirect_is_followed_and_the_key_goes_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, status: int, is_list: bool
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    elsewhere: list[str] = []

    async def run() -> None:
        async def note(request: web.Request) -> web.StreamResponse:
            elsewhere.append(request.path)
            return web.json_response(make_body())

        async with serve(note, note) as other:
            redirect = say(b"", status, Location=f"{other}/chat/completions?token=secret")
            with pytest.raises(
                EngineDead, match=r"a redirect to http://127.0.0.1/v1/chat/completions; none is followed"
            ):
                async with serve(redirect, redirect if is_list else None) as base_url:
                    engine = make_engine(base_url, api_key_env="SOME_KEY")
                    try:
                        await engine.open()
                        await engine.complete(REQUEST)
                    finally:
                        await engine.close()

    asyncio.run(run())
    assert elsewhere == []


def test_a_redirect_after_an_answer_is_one_requests_failure() -> None:
    answers = iter([say(make_body()), say(b"", 302, Location="http://[bad")])

    async def handle(request: web.Request) -> web.StreamResponse:
        return await next(answers)(request)

    async def use(engine: OpenAIEngine) -> None:
        await engine.complete(REQUEST)
        with pytest.raises(RequestFailed, match="a redirect to another address"):
            await engine.complete(REQUEST)

    run_on(handle, use)


# A prompt that is too long

LISTED = {"data": [{"id": "other", "max_model_len": 5}, {"id": "org/model", "max_model_len": 20}]}


async def never(_: web.Request) -> web.StreamResponse:
    raise AssertionError("it was sent")


def make_long(characters: int) -> Request:
    messages = (Message("user", "é" * (characters // 2)),)
    return Request(request_key="k", messages=messages, schema={}, sampling=Sampling())


def test_a_prompt_that_cant_fit_is_counted_by_the_server_and_not_sent() -> None:
    seen: list[Any] = []

    async def count(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        return web.json_response({"count": 20, "max_model_len": 20, "tokens": [1] * 20})

    with pytest.raises(RequestFailed, match="the prompt has 20 tokens, the model takes 20") as error:
        ask(never, make_long(20), models=say(LISTED), tokenize=count)
    assert (error.value.kind, error.value.is_passing) == (ErrorKind.CONTEXT_LENGTH, False)
    assert seen == [{"model": "org/model", "messages": [{"role": "user", "content": "é" * 10}]}]


def test_a_prompt_of_fewer_bytes_than_tokens_that_fit_isnt_even_counted() -> None:
    assert ask(say(make_body()), make_long(18), models=say(LISTED), tokenize=never).text == '{"a":1}'


@pytest.mark.parametrize(
    "count", [say({"count": 19}), say({"count": None}), say(b"x"), say([]), say({}, 404), say({}, 500), say({}, 302)]
)
def test_a_prompt_that_fits_or_cant_be_counted_is_sent(count: Handler) -> None:
    assert ask(say(make_body()), make_long(40), models=say(LISTED), tokenize=count).text == '{"a":1}'


@pytest.mark.parametrize(
    "listed",
    [{"data": [{"id": "org/model"}]}, {"data": [{"id": "org/model", "max_model_len": None}]}, {"data": None}, [], 3]
    + [{"data": [3]}, {"data": [{"id": "other", "max_model_len": 5}]}, {"data": [{"max_model_len": 5}]}],
)
def test_where_the_server_names_no_limit_nothing_is_counted(listed: object) -> None:
    assert ask(say(make_body()), make_long(40), models=say(listed), tokenize=never).text == '{"a":1}'


def test_a_server_that_doesnt_count_is_asked_once() -> None:
    asked: list[str] = []

    async def no_such_page(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=404)

    async def run() -> None:
        async with serve(say(make_body()), say(LISTED), no_such_page) as base_url:
            engine = make_engine(base_url)
            await engine.open()
            for _ in range(3):
                await engine.complete(make_long(40))
            await engine.close()

    asyncio.run(run())
    assert asked == ["/tokenize"]


# A dead engine


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the key was refused: look at SOME_KEY"),
        (402, "no credit"),
        (403, "may not do this: look at SOME_KEY"),
        (404, "the server's words: no such model or address: check weights and base_url"),
        (405, "base_url"),
    ],
)
def test_a_status_that_every_request_would_meet_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    with pytest.raises(EngineDead, match=f"HTTP {status}: .*{words}") as error:
        ask(say({"error": {"message": "the server's words"}}, status), api_key_env="SOME_KEY")
    assert not error.value.took_requests_down


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_where_none_is_named_tells_the_field_to_name_it_by(status: int) -> None:
    with pytest.raises(EngineDead, match=f"HTTP {status}: no key was sent: .* api_key_env in models.yaml"):
        ask(say(make_body()), models=say(b"", status))


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_key_that_is_refused_costs_no_record(status: int) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        raise AssertionError("a record was sent")

    with pytest.raises(EngineDead, match=f"HTTP {status}"):
        ask(never, models=say(b"", status))


@pytest.mark.parametrize("status", [200, 404, 405, 500])
def test_a_server_that_does_not_list_its_models_is_asked_all_the_same(status: int) -> None:
    assert ask(say(make_body()), models=say(b"<html>", status)).text == '{"a":1}'


@pytest.mark.parametrize(
    "address", ["closed port", "http://", "not an address", "ftp://127.0.0.1/v1", "http://127.0.0.1:99999/v1"]
)
def test_an_address_where_nobody_answers_is_a_dead_engine(address: str) -> None:
    if address == "closed port":
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{s.getsockname()[1]}/v1"

    async def run() -> None:
        engine = make_engine(address)
        try:
            await engine.open()
        finally:
            await engine.close()
            await engine.close()

    with pytest.raises(EngineDead, match="can't be reached: .*: start it, or correct base_url in models.yaml") as error:
        asyncio.run(run())
    if "127.0.0.1:" in address and "99999" not in address:
        assert "Connection refused" in str(error.value)


@pytest.mark.parametrize("waits", [{"timeout_s": 0.05}, {"timeout_s": 600, "outage_s": 0.05}])
def test_a_server_that_accepts_and_says_nothing_is_a_dead_engine(waits: dict[str, float]) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(EngineDead, match="no answer in 0.05 s: start it"):
        ask(say(make_body()), models=hang, **waits)


# The key


def test_the_key_comes_from_the_environment_and_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f"{KEY}\n")
    seen: list[str | None] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(make_body())

    ask(handle, models=handle, api_key_env="SOME_KEY")
    assert seen == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize(
    ("value", "problem"), [(None, "is not set"), ("", "is not set"), ("a\nb", "control character")]
)
def test_a_key_that_cannot_be_sent_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str | None, problem: str
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match=f"m: the environment variable SOME_KEY .*{problem}"):
        ask(say(make_body()), api_key_env="SOME_KEY")


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 429, 500])
def test_the_key_is_in_no_error_though_the_server_repeats_it(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    with pytest.raises((RequestFailed, EngineDead)) as error:
        ask(say({"error": {"message": f"wrong key: {KEY}"}}, status), api_key_env="SOME_KEY")
    assert_secret(error.value)


@pytest.mark.parametrize("status", [200, 301, 400, 403, 429, 500])
@pytest.mark.parametrize("kind", ["text/html", "application/json", KEY, f"text/{KEY}"])
def test_nor_where_it_repeats_all_headers_in_a_page(monkeypatch: pytest.MonkeyPatch, status: int, kind: str) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)

    async def echo(request: web.Request) -> web.StreamResponse:
        page = f"<pre>{dict(request.headers)}</pre>"
        headers = {"Content-Type": kind, "Location": f"/{KEY}", "Retry-After": KEY, "X-Echo": KEY}
        return web.Response(body=page.encode(), status=status, reason=f"no {KEY}", headers=headers)

    with pytest.raises((RequestFailed, EngineDead)) as error:
        ask(echo, api_key_env="SOME_KEY")
    assert_secret(error.value)
    if status == 301:
        with pytest.raises(EngineDead, match="a redirect") as dead:
            ask(never, models=echo, api_key_env="SOME_KEY")
        assert_secret(dead.value)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_nor_where_it_doesnt_speak_http(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    # aiohttp's error for it has the request's headers in its repr.
    monkeypatch.setenv("SOME_KEY", KEY)

    async def break_protocol(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.write(answer)  # type: ignore[attr-defined]
        request.transport.close()
        return web.Response()

    with pytest.raises(RequestFailed) as error:
        ask(break_protocol, api_key_env="SOME_KEY")
    assert error.value.kind == ErrorKind.DROPPED
    assert_secret(error.value)
    with pytest.raises(EngineDead) as dead:
        ask(never, models=break_protocol, api_key_env="SOME_KEY")
    assert_secret(dead.value)


def test_the_engine_itself_doesnt_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)

    async def use(engine: OpenAIEngine) -> None:
        assert KEY not in repr(engine) + str(engine)

    run_on(say(make_body()), use, api_key_env="SOME_KEY")


def assert_secret(error: BaseException) -> None:
    """Look for the key in an error, in all that led to it, and in its traceback."""
    assert KEY.lower() not in "".join(traceback.format_exception(error)).lower()
    cause: BaseException | None = error
    while cause is not None:
        assert KEY.lower() not in (str(cause) + repr(cause) + repr(vars(cause))).lower()
        cause = cause.__cause__ or cause.__context__


# Many at once


def test_a_cancelled_request_is_given_up_at_the_server_too() -> None:
    async def run() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def hang(_: web.Request) -> web.StreamResponse:
            arrived.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                gone.set()
                raise
            raise AssertionError

        async with serve(hang) as base_url:
            engine = make_engine(base_url)
            await engine.open()
            task = asyncio.create_task(engine.complete(REQUEST))
            await asyncio.wait_for(arrived.wait(), 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(gone.wait(), 5)
            await engine.close()

    asyncio.run(run())


def test_requests_are_in_flight_together_however_many_they_are() -> None:
    count = 150  # aiohttp itself stops at 100

    async def run() -> None:
        arrived: list[str] = []
        all_here = asyncio.Event()

        async def wait_for_all(request: web.Request) -> web.StreamResponse:
            arrived.append((await request.json())["messages"][0]["content"])
            if len(arrived) == count:
                all_here.set()
            await all_here.wait()
            return web.json_response(make_body((await request.json())["messages"][0]["content"]))

        async with serve(wait_for_all) as base_url:
            engine = make_engine(base_url, max_in_flight=count)
            await engine.open()
            texts = [f"request {n}" for n in range(count)]
            requests = [
                Request(request_key=t, messages=(Message("user", t),), schema={}, sampling=Sampling()) for t in texts
            ]
            answers = await asyncio.wait_for(asyncio.gather(*map(engine.complete, requests)), 20)
            assert [a.text for a in answers] == texts
            await engine.close()

    asyncio.run(run())


def test_an_address_may_end_with_a_slash() -> None:
    async def run() -> None:
        async with serve(say(make_body())) as base_url:
            engine = make_engine(f"{base_url}/")
            await engine.open()
            assert re.fullmatch(r'\{"a":1\}', (await engine.complete(REQUEST)).text)
            await engine.close()

    asyncio.run(run())
