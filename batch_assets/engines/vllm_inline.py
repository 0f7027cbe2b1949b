"""vLLM in this process (inline): one thread steps the engine, there are no children. If it dies, so do we."""

import asyncio
import contextlib
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_assets.core.completions import Completion
from batch_assets.core.errors import ConfigError, EngineDead
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request
from batch_assets.engines.vllm_engine import (
    import_vllm,
    make_args,
    make_prompt,
    make_sampling,
    read_output,
    refuse,
    run_out_of_time,
    set_environment,
)
from batch_assets.engines.weights import Weights, locate_weights


@dataclass(slots=True, kw_only=True)
class _Live:
    """A request inside the engine."""

    request: Request
    future: "Future[Completion]"
    started: float


@dataclass(slots=True, kw_only=True)
class _Order:
    """A request on its way into the engine."""

    number: str
    live: _Live


class InlineVllm:
    """`LLMEngine`, stepped by one thread of ours. All calls of vLLM happen in that thread."""

    is_restartable = False

    def __init__(self, entry: ModelEntry, cache_dir: Path) -> None:
        self._entry = entry
        self._cache_dir = cache_dir
        self._inbox: queue.SimpleQueue[_Order | str | None] = queue.SimpleQueue()
        """Requests to add, numbers of requests to abort, None to stop."""
        self._live: dict[str, _Live] = {}
        self._number = 0
        self._engine: Any = None
        self._thread: threading.Thread | None = None
        self._death: BaseException | None = None
        self._is_over = False

    async def open(self) -> None:
        """Load the model in the engine's thread; takes about a quarter of a minute for a small one."""
        weights = locate_weights(self._entry, self._cache_dir)
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(weights, ready), name="vllm-engine", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ready)

    async def complete(self, request: Request) -> Completion:
        """Answer one request."""
        if self._death is not None or self._thread is None:
            raise EngineDead(f"vLLM is not running: {self._death}")
        self._number += 1
        number = str(self._number)
        future: Future[Completion] = Future()
        live = _Live(request=request, future=future, started=time.monotonic())
        self._inbox.put(_Order(number=number, live=live))
        if self._is_over:  # it ended in this moment, and may not have seen the order
            self._end_all()
        try:
            async with asyncio.timeout(self._entry.timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as e:
            self._inbox.put(number)
            raise run_out_of_time(self._entry) from e
        except asyncio.CancelledError:
            self._inbox.put(number)
            raise

    async def close(self) -> None:
        """Stop the thread after its present step."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)
        self._thread = None

    def _run(self, weights: Weights, ready: "Future[None]") -> None:
        try:
            self._engine = _start(self._entry, weights)
        except BaseException as e:  # noqa: BLE001 - the engine's edge: whatever stopped it is the caller's to know
            self._death = e
            ready.set_exception(e if isinstance(e, ConfigError) else EngineDead(f"vLLM didn't start: {e}"))
            return
        ready.set_result(None)
        try:
            while self._take_orders():
                if self._live:
                    self._step()
        except BaseException as e:  # noqa: BLE001 - the engine's edge: a failed step means that no request is safe
            self._death = e
        finally:
            self._engine = None
            self._is_over = True
            self._end_all()

    def _end_all(self) -> None:
        """Tell every request that is in the engine or on its way there that no answer will come."""
        error = EngineDead("vLLM was closed")
        if self._death is not None:
            words = f"vLLM died: {type(self._death).__name__}: {self._death}"
            error = EngineDead(words, took_requests_down=True)
        with contextlib.suppress(queue.Empty):
            while True:
                order = self._inbox.get_nowait()
                if isinstance(order, _Order):
                    _settle(order.live.future, error)
        for live in self._live.values():
            _settle(live.future, error)
        self._live.clear()

    def _take_orders(self) -> bool:
        """Do what was put into the inbox; wait for something while nothing is live. False means stop."""
        while True:
            try:
                order = self._inbox.get(block=not self._live)
            except queue.Empty:
                return True
            if order is None:
                return False
            if isinstance(order, str):
                self._abort(order)
                continue
            try:
                self._add(order.number, order.live)
            except Exception as e:  # noqa: BLE001 - the engine's edge: what vLLM can't take is that record's failure
                _settle(order.live.future, refuse(e))

    def _add(self, number: str, live: _Live) -> None:
        if live.future.cancelled():
            return
        self._engine.add_request(number, make_prompt(self._engine, live.request), make_sampling(live.request))
        self._live[number] = live

    def _abort(self, number: str) -> None:
        if self._live.pop(number, None) is not None:
            self._engine.abort_request([number])

    def _step(self) -> None:
        for output in self._engine.step():
            if not output.finished:
                continue
            live = self._live.pop(output.request_id, None)
            if live is None:
                continue
            _settle(live.future, read_output(output, live.started))


def _settle(future: "Future[Completion]", outcome: Completion | Exception) -> None:
    """Hand an outcome over, unless nobody waits for it any more."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _start(entry: ModelEntry, weights: Weights) -> Any:
    set_environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    vllm = import_vllm()
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(vllm.EngineArgs(**make_args(entry, weights)))
