"""Starts a dead engine again, if that is possible while our own process lives."""

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
deaths in company and quarantined after two alone. If no other record is left, none is settled meanwhile."""


def run_with_restarts(
    make_runner: Callable[[Observer, Tally], Runner],
    all_inputs: Iterable[PartitionInputs],
    *,
    is_restartable: bool,
    tally: Tally,
    observer: Observer,
    log: Callable[[str], object],
    max_restarts: int = MAX_RESTARTS,
) -> Generator[PartitionOutcome]:
    """Yield partitions as they finish, as run_in_thread() does; when the engine has died, go on with another runner.

    Each runner gets the partitions that no runner before it has finished, so each is yielded once. The dead engine's
    claims stay without an end, as at the end of a run: the next runner takes them for deaths. All runners count into
    `tally`, and `observer` sees their progress as that of one run. `all_inputs` is read once, lazily. `log` gets a line
    for each restart.

    Raises EngineDead if the engine is not restartable, if no request in flight can be to blame (the engine can't be
    opened, its server is away), or if it has died once more than `max_restarts` allows.
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
        runner = make_runner(progress.record, tally)
        outcomes = run_in_thread(runner, itertools.chain(list(begun.values()), take()))
        is_advancing = False
        try:
            with contextlib.closing(outcomes):
                for outcome in outcomes:
                    is_advancing = True
                    begun.pop(id(outcome.inputs), None)
                    yield outcome
            return
        except EngineDead as e:
            in_vain = 1 if is_advancing or progress.is_advancing else in_vain + 1
            if not (is_restartable and e.took_requests_down):
                raise
            if in_vain > max_restarts:
                words = f"the engine died {in_vain} times with no record settled in between; the last time: {e}"
                raise EngineDead(words, took_requests_down=True) from e
            log(f"{e}; starting the engine again ({in_vain} of {max_restarts} restarts)")
            progress.start_again()


class _Progress:
    """Adds up how many records one runner after another has done."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._done_before = 0
        self._done = 0

    @property
    def is_advancing(self) -> bool:
        """Whether the present runner has settled a record."""
        return self._done > 0

    def record(self, progress: Progress) -> None:
        """Pass a runner's progress on as that of the whole run. Its tally is the whole run's already."""
        self._done = progress.done
        done = self._done_before + progress.done
        self._observer(replace(progress, total=max(progress.total, done), done=done))

    def start_again(self) -> None:
        """Begin to count another runner's records."""
        self._done_before += self._done
        self._done = 0
