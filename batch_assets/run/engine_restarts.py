"""Starts a dead engine again, where that is possible while our own process lives."""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace

from batch_assets.core.errors import EngineDead
from batch_assets.run.loop import Observer, Runner
from batch_assets.run.partition_run import PartitionInputs, PartitionOutcome, Progress, Tally
from batch_assets.run.sync_bridge import run_in_thread

MAX_RESTARTS = 4
"""Restarts with no record settled in between. A record that kills the engine costs four: it is a suspect after two
deaths in company and quarantined after two alone, even where no other record is left to settle meanwhile."""


def run_with_restarts(
    make_runner: Callable[[Observer], Runner],
    all_inputs: Iterable[PartitionInputs],
    *,
    is_restartable: bool,
    observer: Observer,
    log: Callable[[str], object],
    max_restarts: int = MAX_RESTARTS,
) -> Generator[PartitionOutcome]:
    """Yield partitions as they finish, as drive() does; when the engine has died, go on with another runner.

    Each runner gets what no runner before it has finished, so each partition is yielded once. The dead engine's claims
    stay without an end, as at the end of a run: to the next runner they are deaths. `observer` hears of all runners'
    progress as of one. `works` is read once, lazily. Each restart is told to `log`, in a line.

    Raises EngineDead where the engine is not restartable, where it was lost without a request that may be to blame (it
    can't be opened, its server is away), and where it has died once more than `max_restarts` allows.
    """
    source = iter(all_inputs)
    begun: dict[int, PartitionInputs] = {}
    """What has been handed to a runner and isn't finished, by identity."""
    progress = _Progress(observer)

    def take() -> Iterator[PartitionInputs]:
        for inputs in source:
            begun[id(inputs)] = inputs
            yield inputs

    in_vain = 0
    while True:
        outcomes = run_in_thread(make_runner(progress.record), itertools.chain(list(begun.values()), take()))
        is_on = False
        try:
            with contextlib.closing(outcomes):
                for outcome in outcomes:
                    is_on = True
                    begun.pop(id(outcome.inputs), None)
                    yield outcome
            return
        except EngineDead as e:
            in_vain = 1 if is_on or progress.is_on else in_vain + 1
            if not (is_restartable and e.took_requests_down):
                raise
            if in_vain > max_restarts:
                words = f"the engine died {in_vain} times with no record settled in between; the last time: {e}"
                raise EngineDead(words, took_requests_down=True) from e
            log(f"{e}; starting the engine again ({in_vain} of {max_restarts} restarts)")
            progress.start_again()


class _Progress:
    """Adds the progress of one runner after another up."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._done = 0
        self._tally = Tally()
        self._last: Progress | None = None

    @property
    def is_on(self) -> bool:
        """Whether the present runner has settled a record."""
        return self._last is not None and self._last.done > 0

    def record(self, progress: Progress) -> None:
        self._last = progress
        done = self._done + progress.done
        tally = replace(self._tally)
        tally.add(progress.tally)
        self._observer(replace(progress, total=max(progress.total, done), done=done, tally=tally))

    def start_again(self) -> None:
        if self._last is not None:
            self._done += self._last.done
            self._tally.add(self._last.tally)
            self._last = None
