"""vLLM in this process (inline): one thread steps the engine, there are no children. If it dies, so do we."""

import asyncio
import contextlib
import os
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request
from batch_assets.engines.weights import Weights, locate_weights

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


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


class VllmEngine:
    """`LLMEngine`, stepped by one thread of ours. All calls of vLLM happen in that thread."""

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
            words = f"no answer in {self._entry.timeout_s:g} s"
            raise RequestFailed(ErrorKind.TIMEOUT, words, is_passing=True) from e
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
                words = f"vLLM refused the request: {type(e).__name__}: {e}"[:300]
                _settle(order.live.future, RequestFailed(ErrorKind.BAD_REQUEST, words, is_passing=False))

    def _add(self, number: str, live: _Live) -> None:
        if live.future.cancelled():
            return
        messages = [{"role": m.role, "content": m.content} for m in live.request.messages]
        tokenizer = self._engine.get_tokenizer()
        token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        limit = self._engine.model_config.max_model_len
        if len(token_ids) >= limit:
            words = f"the prompt has {len(token_ids)} tokens, the model takes {limit} with the answer"
            _settle(live.future, RequestFailed(ErrorKind.CONTEXT_LENGTH, words, is_passing=False))
            return
        self._engine.add_request(number, {"prompt_token_ids": token_ids}, _sampling(live.request))
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
            answer = output.outputs[0]
            usage = Usage(
                prompt_tokens=len(output.prompt_token_ids),
                completion_tokens=len(answer.token_ids),
                cached_tokens=output.num_cached_tokens,
            )
            done = Completion(
                text=answer.text,
                finish_reason=answer.finish_reason,
                usage=usage,
                latency_s=time.monotonic() - live.started,
            )
            _settle(live.future, done)


def _settle(future: "Future[Completion]", outcome: Completion | Exception) -> None:
    """Hand an outcome over, unless nobody waits for it any more."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _start(entry: ModelEntry, weights: Weights) -> Any:
    # The number said outright: left to itself, OpenMP was measured at a quarter of the speed on two cores.
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    for name, value in (ENVIRONMENT | threads).items():
        os.environ.setdefault(name, value)
    try:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as e:
        raise ConfigError(
            f"vLLM can't be imported ({e}): install the extra 'cpu' or 'gpu' of batch-assets, one of them"
        ) from e
    args: dict[str, Any] = {"structured_outputs_config": STRUCTURED_OUTPUTS, "seed": 0, **entry.engine_args}
    if weights.revision is not None:
        args["revision"] = weights.revision
    return LLMEngine.from_engine_args(EngineArgs(model=weights.model, **args))


def _sampling(request: Request) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    s = request.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        max_tokens=s.max_tokens,
        seed=s.seed,
        stop=list(s.stop),
        structured_outputs=StructuredOutputsParams(json=dict(request.schema)),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
