"""Runs a runner from synchronous code, as Dagster's assets are."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import TypeVar

from batch_assets.runner.run import Runner
from batch_assets.runner.work import PartitionOutcome, PartitionWork

POLL_S = 0.2
_under_way: set[threading.Event] = set()
"""One for each loop that has not come to its end."""
_T = TypeVar("_T")


def drive(runner: Runner, works: Iterable[PartitionWork]) -> Generator[PartitionOutcome]:
    """Yield partitions as they finish. The loop has a thread of its own and goes on while the caller reports them.

    When the caller is interrupted (a signal, an error, a closed generator) the run is cancelled, flushes, and is waited
    for; then the interruption goes on. A second interruption ends that wait. Not an async asset: Dagster gives that
    only GeneratorExit when a run is terminated, and nothing can be awaited then.
    """
    outcomes: queue.SimpleQueue[PartitionOutcome | BaseException | None] = queue.SimpleQueue()
    cancel: Future[Callable[[], object]] = Future()

    async def run_all() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            cancel.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        async with contextlib.aclosing(runner.run(works)) as finished:
            async for outcome in finished:
                outcomes.put(outcome)

    def work() -> None:
        try:
            asyncio.run(run_all())
        except BaseException as e:  # noqa: BLE001 - handed over to the caller's thread, which raises it
            outcomes.put(e)
        else:
            outcomes.put(None)
        finally:
            _under_way.discard(is_over)
            is_over.set()

    is_over = threading.Event()  # not Thread.join(): where a signal ends it, Python 3.11 takes the thread for ended
    _under_way.add(is_over)
    threading.Thread(target=work, name="runner", daemon=True).start()
    try:
        while (outcome := _take(outcomes)) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        if not is_over.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has closed in the meantime
                cancel.result()()
        while not is_over.wait(POLL_S):
            pass


def has_abandoned_run() -> bool:
    """Say whether a run is still flushing that nobody waits for: its threads would hold up the end of the process."""
    return bool(_under_way)


def _take(outcomes: queue.SimpleQueue[_T]) -> _T:
    """Wait for the next outcome in short steps, since a signal that another thread got doesn't end a long wait."""
    while True:
        with contextlib.suppress(queue.Empty):
            return outcomes.get(timeout=POLL_S)
