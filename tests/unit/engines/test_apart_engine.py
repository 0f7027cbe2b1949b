"""How the engine in processes of its own answers, fails and ends, with a stand-in for vLLM and a real watchdog."""

import asyncio
import gc
import multiprocessing
import os
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.models import ModelEntry, Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.engines import vllm_apart
from batch_assets.engines.vllm_apart import ApartVllm
from batch_assets.engines.vllm_entry import VllmEntry
from batch_assets.engines.watchdog import Watchdog

_spawn = multiprocessing.get_context("spawn")


class StandIn:
    """Answers with the prompt's own text: `hang` never, `odd` with an error, `die` with its death."""

    def __init__(self) -> None:
        self.errored = False
        self.live: set[str] = set()
        self.aborted: list[str] = []
        self.died = asyncio.Event()
        self.shutdowns = 0
        self.model_config = SimpleNamespace(max_model_len=6)
        self.all_special_tokens: list[str] = []

    def get_tokenizer(self) -> "StandIn":
        return self

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        return [ord(c) for c in messages[-1]["content"]]

    async def generate(self, prompt: dict[str, list[int]], _sampling: Any, number: str) -> AsyncGenerator[Any]:
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        self.live.add(number)
        try:
            await asyncio.sleep(0)
            if text == "odd":
                raise ValueError("no such grammar")
            if text == "die":
                self.errored = True
                self.died.set()
            if text == "hang" or self.errored:
                await self.died.wait()
                raise RuntimeError("the engine's core is gone")
            answer = SimpleNamespace(text=text, finish_reason="stop", token_ids=[1])
            tokens = prompt["prompt_token_ids"]
            yield SimpleNamespace(outputs=[answer], prompt_token_ids=tokens, num_cached_tokens=0, finished=True)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(text)
            raise
        finally:
            self.live.discard(number)

    def shutdown(self, _timeout_s: float | None = None) -> None:
        self.shutdowns += 1
        self.errored = True
        self.died.set()


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_apart, "make_sampling", lambda _request: None)
    monkeypatch.setattr(vllm_apart, "locate_weights", lambda *_: None)


def run(test: Callable[[ApartVllm, list[StandIn]], Any], monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Run a test with an open engine, which is closed at the end; the list has the stand-ins in their order."""
    made: list[StandIn] = []

    def start(_entry: ModelEntry, _weights: None, watchdog: Watchdog) -> StandIn:
        assert psutil.pid_exists(watchdog.group), "the watchdog is there before the engine"
        made.append(StandIn())
        return made[-1]

    monkeypatch.setattr(vllm_apart, "_start", start)
    entry = VllmEntry.model_validate({"model_id": "m", "weights": "w", "engine": "vllm", "timeout_s": 30, **fields})

    async def run_it() -> None:
        engine = ApartVllm(entry, Path())
        async with asyncio.timeout(60):
            await engine.open()
            try:
                await test(engine, made)
            finally:
                await engine.close()

    asyncio.run(run_it())


def ask(text: str) -> Request:
    return Request(request_key=text, messages=(Message("user", text),), schema={}, sampling=Sampling())


async def wait_for_live(stand_in: StandIn, count: int) -> None:
    while len(stand_in.live) < count:
        await asyncio.sleep(0.001)


def test_many_requests_at_once_each_have_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, made: list[StandIn]) -> None:
        found = await asyncio.gather(*(engine.complete(ask(str(n))) for n in range(50)))
        assert [c.text for c in found] == [str(n) for n in range(50)]
        assert made[0].aborted == [], "an answered request is not aborted"

    run(test, monkeypatch)


def test_a_record_that_vllm_cannot_take_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, _made: list[StandIn]) -> None:
        asked = (engine.complete(ask(t)) for t in ("a", "odd", "too long", "b"))
        a, odd, long, b = await asyncio.gather(*asked, return_exceptions=True)
        assert (a.text, b.text) == ("a", "b")
        assert isinstance(odd, RequestFailed) and isinstance(long, RequestFailed)
        assert (odd.kind, odd.is_passing) == ("bad_request", False)
        assert (long.kind, long.is_passing) == ("context_length", False)
        assert (await engine.complete(ask("c"))).text == "c"

    run(test, monkeypatch)


def test_a_cancelled_request_is_aborted_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, made: list[StandIn]) -> None:
        task = asyncio.create_task(engine.complete(ask("hang")))
        await wait_for_live(made[0], 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (made[0].aborted, made[0].live) == (["hang"], set())
        assert (await engine.complete(ask("a"))).text == "a"

    run(test, monkeypatch)


def test_a_request_that_takes_too_long_is_aborted_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, made: list[StandIn]) -> None:
        with pytest.raises(RequestFailed, match="no answer in 0.05 s") as error:
            await engine.complete(ask("hang"))
        assert (error.value.kind, error.value.is_passing) == ("timeout", True)
        assert made[0].aborted == ["hang"]

    run(test, monkeypatch, timeout_s=0.05)


def test_every_request_hears_of_the_engines_death_and_it_can_be_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, made: list[StandIn]) -> None:
        waiting = [asyncio.create_task(engine.complete(ask("hang"))) for _ in range(3)]
        await wait_for_live(made[0], 3)
        found = await asyncio.gather(engine.complete(ask("die")), *waiting, return_exceptions=True)
        late = await asyncio.gather(engine.complete(ask("late")), return_exceptions=True)
        for error in (*found, *late):
            assert isinstance(error, EngineDead)
            assert error.took_requests_down, "what was in flight may be the cause, also for one that came later"
        assert "vLLM died: RuntimeError: the engine's core is gone" in str(found[0])
        dead = weakref.ref(made.pop())
        await engine.close()
        await engine.open()
        assert (await engine.complete(ask("a"))).text == "a"
        gc.collect()
        assert dead() is None, "the errors that are left don't hold on to it"

    run(test, monkeypatch)


def test_closing_is_nobodys_death(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: ApartVllm, made: list[StandIn]) -> None:
        task = asyncio.create_task(engine.complete(ask("hang")))
        await wait_for_live(made[0], 1)
        await engine.close()
        with pytest.raises(EngineDead, match="vLLM was closed") as error:
            await task
        assert not error.value.took_requests_down
        with pytest.raises(EngineDead, match="vLLM is not running"):
            await engine.complete(ask("a"))
        await engine.close()
        made[0].shutdown()  # what AsyncLLM's __del__ does
        assert made[0].shutdowns == 1

    run(test, monkeypatch)


@pytest.mark.parametrize(
    ("cause", "raised"),
    [(ConfigError("vLLM can't be imported"), ConfigError), (RuntimeError("no memory"), EngineDead)],
)
def test_an_engine_that_does_not_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, cause: Exception, raised: type[Exception]
) -> None:
    watchdogs: list[Watchdog] = []
    processes: list[Any] = []

    def start(_entry: ModelEntry, _weights: None, watchdog: Watchdog) -> None:
        watchdogs.append(watchdog)
        with watchdog.adopting():
            processes.append(_spawn.Process(target=time.sleep, args=(300,)))
            processes[0].start()
        raise cause

    monkeypatch.setattr(vllm_apart, "_start", start)
    engine = ApartVllm(VllmEntry(model_id="m", weights="w", engine="vllm"), Path())

    async def run_it() -> None:
        with pytest.raises(raised, match=str(cause)):
            await engine.open()
        await engine.close()
        await engine.close()

    asyncio.run(run_it())
    assert not psutil.pid_exists(watchdogs[0].group)
    assert not psutil.pid_exists(processes[0].pid), "neither it nor a zombie"
    assert not watchdogs[0].folder.exists()


def test_a_start_that_is_cancelled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Any] = []

    def start(_entry: ModelEntry, _weights: None, watchdog: Watchdog) -> None:
        with watchdog.adopting():
            processes.append(_spawn.Process(target=time.sleep, args=(300,)))
            processes[0].start()
            processes[0].join()  # as vLLM waits for its processes; they end when the group does
        raise RuntimeError("the engine's core did not start")

    monkeypatch.setattr(vllm_apart, "_start", start)
    engine = ApartVllm(VllmEntry(model_id="m", weights="w", engine="vllm"), Path())

    async def run_it() -> None:
        task = asyncio.create_task(engine.open())
        while not processes or processes[0].pid is None:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.close()

    asyncio.run(asyncio.wait_for(run_it(), 60))
    assert processes[0].exitcode is not None


def test_the_variables_of_a_start_are_there_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/before")
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    with vllm_apart._environment({"TMPDIR": "/new", "VLLM_RPC_BASE_PATH": "/new"}):
        assert (os.environ["TMPDIR"], os.environ["VLLM_RPC_BASE_PATH"]) == ("/new", "/new")
    assert os.environ["TMPDIR"] == "/before"
    assert "VLLM_RPC_BASE_PATH" not in os.environ
