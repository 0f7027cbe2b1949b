"""How the in-process engine ends, with a stand-in for vLLM: every request hears of it; one bad record kills none."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batch_assets.core.errors import EngineDead, RequestFailed
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.engines import vllm_inline
from batch_assets.engines.vllm_entry import VllmEntry
from batch_assets.engines.vllm_inline import InlineVllm


class StandIn:
    """Takes requests; dies at the first step after `may_die` is set; can't tokenize the text `bad`."""

    def __init__(self) -> None:
        self.may_die = threading.Event()
        self.added: list[str] = []
        self.model_config = SimpleNamespace(max_model_len=100)
        self.all_special_tokens: list[str] = []

    def get_tokenizer(self) -> "StandIn":
        return self

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        if messages[0]["content"] == "bad":
            raise KeyError("no such role")
        return [1, 2, 3]

    def add_request(self, number: str, *_: Any) -> None:
        self.added.append(number)

    def step(self) -> list[Any]:
        if self.may_die.wait(0.01):
            raise RuntimeError("a kernel failed")
        return []


def make_engine(monkeypatch: pytest.MonkeyPatch, inner: StandIn) -> InlineVllm:
    monkeypatch.setattr(vllm_inline, "_start", lambda *_: inner)
    monkeypatch.setattr(vllm_inline, "make_sampling", lambda _request: None)
    monkeypatch.setattr(vllm_inline, "locate_weights", lambda *_: None)
    return InlineVllm(VllmEntry(model_id="m", weights="w", engine="vllm", timeout_s=30), Path())


def ask(text: str) -> Request:
    return Request(request_key=text, messages=(Message("user", text),), schema={}, sampling=Sampling())


def test_every_request_hears_of_the_engines_death(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = StandIn()

    async def run() -> list[Any]:
        engine = make_engine(monkeypatch, inner)
        await engine.open()
        tasks = [asyncio.create_task(engine.complete(ask(str(n)))) for n in range(3)]
        while len(inner.added) < 3:
            await asyncio.sleep(0.005)
        inner.may_die.set()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(EngineDead):
            await engine.complete(ask("late"))
        await engine.close()
        return found

    found = asyncio.run(run())
    assert [type(e) for e in found] == [EngineDead] * 3
    assert all(e.took_requests_down for e in found)


def test_a_record_that_the_tokenizer_breaks_on_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = StandIn()

    async def run() -> None:
        engine = make_engine(monkeypatch, inner)
        await engine.open()
        async with asyncio.timeout(10):
            with pytest.raises(RequestFailed) as caught:
                await engine.complete(ask("bad"))
        assert (caught.value.kind, caught.value.is_passing) == ("bad_request", False)
        task = asyncio.create_task(engine.complete(ask("good")))
        while not inner.added:
            await asyncio.sleep(0.005)
        task.cancel()
        inner.may_die.set()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert inner.added, "the engine went on"
