"""Runs a runner from synchronous code, as Dagster's assets are."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import TypeVar

from batch_assets.run.loop import Runner
from batch_assets.run.partition_run import PartitionInputs, PartitionOutcome

POLL_S = 0.2
_T = TypeVar("_T")


class _Loop:
    """A loop in its thread. An event says when it is over. Thread.join() doesn't: if a signal interrupts a join, Python
    3.11 takes the thread for ended."""

    def __init__(self) -> None:
        self.cancel: Future[Callable[[], object]] = Future()
        self.is_over = threading.Event()
        self.is_abandoned = False

    def end(self) -> None:
        """Cancel the run and wait until it has flushed; a second interruption ends that wait, and it is abandoned."""
        try:
            if not self.is_over.is_set():
                with contextlib.suppress(RuntimeError):  # the loop has closed in the meantime
                    self.cancel.result()()
            while not self.is_over.wait(POLL_S):
                pass
        except BaseException:
            self.is_abandoned = True
            raise


_under_way: set[_Loop] = set()


def run_in_thread(runner: Runner, all_inputs: Iterable[PartitionInputs]) -> Generator[PartitionOutcome]:
    """Yield partitions as they finish. The loop has a thread of its own and goes on while the caller reports them.

    When the caller is interrupted (a signal, an error, a closed generator) the run is cancelled, flushes, and is waited
    for; then the interruption goes on. A second interruption ends that wait. An async asset would not do: Dagster
    closes it with GeneratorExit when a run is terminated, and nothing can be awaited then.
    """
    outcomes: queue.SimpleQueue[PartitionOutcome | BaseException | None] = queue.SimpleQueue()
    running = _Loop()

    async def run_all() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel() -> None:
            if task is not None and not runner.is_stopping:  # it ends by itself, and flushes already
                task.cancel()

        running.cancel.set_result(lambda: loop.call_soon_threadsafe(cancel))
        async with contextlib.aclosing(runner.run(all_inputs)) as finished:
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
            _under_way.discard(running)
            running.is_over.set()

    _under_way.add(running)
    threading.Thread(target=work, name="runner", daemon=True).start()
    try:
        while (outcome := _take(outcomes)) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        running.end()


def end_runs() -> bool:
    """End the runs whose generators nobody has closed, as an interruption would; say whether all have ended.

    A run has not ended if a second interruption has ended the wait for it. Its threads then delay the process's end.
    """
    for running in list(_under_way):
        if running.is_abandoned:
            return False
        running.end()
    return True


def _take(outcomes: queue.SimpleQueue[_T]) -> _T:
    """Wait for the next outcome, in short steps: a signal that another thread got doesn't end a long wait."""
    while True:
        with contextlib.suppress(queue.Empty):
            return outcomes.get(timeout=POLL_S)
