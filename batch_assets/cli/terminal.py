"""What a person sees while a run goes on: one progress bar; everything that libraries print goes into a log file."""

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from batch_assets.runner.work import Progress

PLAIN_EVERY_S = 10.0
ENOUGH_ANSWERS = 8


@contextmanager
def quiet(log_path: Path) -> Generator[Console, None, None]:
    """Send the process's output to a log file; yield a console that still reaches the terminal.

    File descriptors are redirected, not Python's streams: vLLM and torch also write from C++.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    with log_path.open("ab") as log, os.fdopen(os.dup(err), "w", encoding="utf-8") as terminal:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)


class ProgressView:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[figures]}"),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._row = self._bar.add_task("reading what is there", total=None, figures="")
        self._first: tuple[float, int] | None = None
        self._printed_at = 0.0

    def __enter__(self) -> "ProgressView":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, words: str) -> None:
        """Print a line above the bar."""
        self._console.print(words, highlight=False)

    def observe(self, progress: Progress) -> None:
        """Show how far the run is."""
        at = time.monotonic()
        counts = f"{progress.done}/{progress.total}"
        if progress.is_starting:
            self._first = None
            self._update(progress, "starting the engine", counts)
            return
        t = progress.tally
        answered = t.ok + t.invalid
        if self._first is None:
            self._first = (at, answered)
        pace = _pace(at - self._first[0], answered - self._first[1], progress.total - progress.done)
        self._update(progress, "asking", f"{counts}  {pace}  {t.invalid} invalid  {t.error} errors")

    def _update(self, progress: Progress, words: str, figures: str) -> None:
        if self._console.is_terminal:
            self._bar.update(
                self._row, description=words, completed=progress.done, total=progress.total, figures=figures
            )
        elif time.monotonic() - self._printed_at > PLAIN_EVERY_S or progress.done == progress.total:
            self._printed_at = time.monotonic()
            self.say(f"{words}: {figures}")


def _pace(seconds: float, done: int, left: int) -> str:
    """Return records/s and the time left, once there are enough answers to tell."""
    if done < ENOUGH_ANSWERS or seconds <= 0:
        return "-/s"
    left_s = round(left * seconds / done)
    return f"{done / seconds:.1f}/s" + (f"  {left_s // 60}:{left_s % 60:02d} left" if left else "")
