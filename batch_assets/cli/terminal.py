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

from batch_assets.cli.visible import make_visible
from batch_assets.core.errors import ConfigError
from batch_assets.run.partition_run import Progress
from batch_assets.run.progress import Pace, format_duration, format_failure, format_pause, format_progress

PLAIN_EVERY_S = 10.0


@contextmanager
def quiet(log_path: Path) -> Generator[Console, None, None]:
    """Send the process's output to a log file; yield a console that still reaches the terminal.

    File descriptors are redirected, not Python's streams: vLLM and torch also write from C++. Raises ConfigError if the
    log's folder can't be made.
    """
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"BATCH_ASSETS_HOME: {log_path.parent}: the folder can't be made: {e.strerror}") from e
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
        self._pace = Pace()
        self._printed_at = time.monotonic() - PLAIN_EVERY_S  # the first line comes at once
        self._printed_done = 0
        self._failure_told = ""
        self._last: Progress | None = None

    def __enter__(self) -> "ProgressView":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
        elif self._last is not None and self._last.done not in (0, self._printed_done):
            self.say(format_progress(self._last, None))  # how far a run came that was stopped

    def say(self, words: str) -> None:
        """Print a line above the bar. In a file a line stays one, however long."""
        self._console.print(make_visible(words), highlight=False, markup=False, soft_wrap=True)

    def _format_failure(self, words: str) -> None:
        """Print once why it pauses: the bar has no room for that."""
        if words and words != self._failure_told and time.monotonic() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at, self._failure_told = time.monotonic(), words
            self.say(words)

    def observe(self, progress: Progress) -> None:
        """Show how far the run is."""
        self._last = progress
        self._pace.record(progress)
        left_s = self._pace.left_s(progress)
        if not self._console.is_terminal:
            is_last = progress.done == progress.total != self._printed_done
            if time.monotonic() - self._printed_at > PLAIN_EVERY_S or is_last:
                self._printed_at, self._printed_done = time.monotonic(), progress.done
                self.say(format_progress(progress, left_s))
            return
        words = "starting the engine" if progress.is_starting else "asking"
        if progress.pause_s is not None:
            words = format_pause(progress.pause_s)
            self._format_failure(format_failure(progress))
        self._bar.update(
            self._row,
            description=words,
            completed=progress.done,
            total=progress.total,
            figures=_format_figures(progress, self._pace.per_s, left_s),
        )


def _format_figures(progress: Progress, per_s: float | None, left_s: float | None) -> str:
    """Return what stands beside the bar."""
    counts = f"{progress.done}/{progress.total}"
    if progress.pause_s is not None:
        return ""  # in 80 columns there is room for the pause alone
    if progress.is_starting:
        return counts
    rate = "-/s" if per_s is None else f"{per_s:.1f}/s"
    left = "" if left_s is None else f"  {format_duration(left_s)} left"
    t = progress.tally
    return f"{counts}  {rate}{left}  {t.invalid} invalid  {t.error} errors"
