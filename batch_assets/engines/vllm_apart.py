"""vLLM in processes of its own (apart): its scheduling overlaps with our Python, and its death leaves us alive."""

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Generator, Mapping
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
from batch_assets.engines.watchdog import Watchdog
from batch_assets.engines.weights import Weights, locate_weights

SHUTDOWN_S = 15.0
"""What vLLM's own shutdown may take, in which it frees its shared memory. It is over in 3 seconds as a rule."""


class ApartVllm:
    """`AsyncLLM`. Its processes stand in a group that a watchdog ends when we end, be it by kill -9.

    When they die, all that is in flight raises EngineDead; then close() and open() start it anew.
    """

    is_restartable = True

    def __init__(self, entry: ModelEntry, cache_dir: Path) -> None:
        self._entry = entry
        self._cache_dir = cache_dir
        self._engine: Any = None
        self._watchdog: Watchdog | None = None
        self._number = 0

    async def open(self) -> None:
        """Start the processes and load the model; takes about half a minute for a small one on a CPU."""
        weights = locate_weights(self._entry, self._cache_dir)
        self._watchdog = Watchdog()
        try:
            self._engine = await asyncio.to_thread(_start, self._entry, weights, self._watchdog)
        except ConfigError:
            raise
        except Exception as e:  # whatever stopped it is the caller's to know
            raise EngineDead(f"vLLM didn't start: {e}") from e

    async def complete(self, request: Request) -> Completion:
        """Answer one request."""
        engine = self._engine
        if engine is None:
            raise EngineDead("vLLM is not running")
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._entry.timeout_s):
                output = await self._generate(engine, request)
        except TimeoutError as e:
            raise run_out_of_time(self._entry) from e
        except Exception as e:
            is_closed, is_dead = self._engine is not engine, bool(engine.errored)
            # Errors outlive the engine: one that held on to it would keep its memory, and end it at the wrong time.
            e.__traceback__ = None
            del engine
            if is_closed:
                raise EngineDead("vLLM was closed") from e
            if is_dead:
                raise EngineDead(f"vLLM died: {type(e).__name__}: {e}", took_requests_down=True) from e
            raise refuse(e) from e
        return read_output(output, started)

    async def _generate(self, engine: Any, request: Request) -> Any:
        self._number += 1
        outputs = engine.generate(make_prompt(engine, request), make_sampling(request), str(self._number))
        last: Any = None
        async with contextlib.aclosing(outputs):  # left before its end, by a cancellation, it aborts the request
            async for output in outputs:
                last = output
        return last

    async def close(self) -> None:
        """Shut down, end all processes of the engine and the watchdog; takes some seconds."""
        engine, self._engine = self._engine, None
        watchdog, self._watchdog = self._watchdog, None
        try:
            if engine is not None:
                await asyncio.to_thread(engine.shutdown, SHUTDOWN_S)
                engine.shutdown = _do_nothing  # its __del__ would do it once more, and fail at the interpreter's end
        finally:
            if watchdog is not None:
                await asyncio.to_thread(watchdog.close)
                await asyncio.to_thread(_wait_for_children, watchdog.group)


def _do_nothing() -> None:
    pass


def _wait_for_children(group: int) -> None:
    """Wait for our children in a group that has been killed, so that no zombie of them stays."""
    for child in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            if child.pid is not None and os.getpgid(child.pid) == group:
                child.join(SHUTDOWN_S)


def _start(entry: ModelEntry, weights: Weights, watchdog: Watchdog) -> Any:
    # Spawned, not forked: we have threads, and what is forked has no executable of ours to join the group by.
    set_environment({"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    vllm = import_vllm()
    from vllm.v1.engine.async_llm import AsyncLLM

    args = vllm.AsyncEngineArgs(**{"disable_log_stats": True, **make_args(entry, weights)})
    folder = str(watchdog.folder)
    with watchdog.adopting(), _environment({"TMPDIR": folder, "VLLM_RPC_BASE_PATH": folder}):
        return AsyncLLM.from_engine_args(args)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set variables for the processes that start in this block, so that their files lie where they are removed."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
