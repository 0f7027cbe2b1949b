"""Where an export goes: a file that is there as a whole or not at all, or stdout."""

import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import psutil
from polars.exceptions import PolarsError

from batch_assets.core.errors import ConfigError
from batch_assets.store.frames import write_whole

STDOUT = "-"


class Format(StrEnum):
    """What a file may be; the value is its ending."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


def choose_format(name: str | None, output: str | None) -> Format:
    """Return the format by its name, else by the ending of the output, else Parquet."""
    if name is not None:
        return Format(name)
    ending = Path(output or "").suffix.removeprefix(".").lower()
    return Format(ending) if ending in set(Format) else Format.PARQUET


def choose_output(output: str | None, task: str, batches: Sequence[str], variants: Sequence[str], form: Format) -> str:
    """Return where to write. Raises ConfigError for a place that can't be a file of this format."""
    if output == STDOUT:
        if form is Format.PARQUET:
            raise ConfigError("--output -: Parquet needs a file; csv and jsonl can go to stdout")
        return output
    parts = [task, *(p.replace("*", "") for p in (*batches, *variants))]
    path = Path(output or f"{'--'.join(parts)}.{form.value}")
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as e:  # a name that is too long, a folder that may not be looked into
        raise ConfigError(f"--output {path}: {e.strerror}") from e
    if path.is_dir():
        raise ConfigError(f"--output {path}: a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--output {path}: neither a file nor a new name; {STDOUT} writes to stdout")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")
    return str(path)


def write_output(output: str, write: Callable[[BinaryIO], None]) -> int:
    """Let `write` write the file, or stdout; return the file's bytes, of stdout 0.

    ConfigError if the system refuses. A killed write leaves the old file as it was, and a temporary one that the
    next write of the same file removes.
    """
    if output == STDOUT:
        _write_to_stdout(write)
        return 0
    path = Path(output).resolve()  # a link stays a link
    try:
        _remove_leftovers(path)
        write_whole(path, write)
        return path.stat().st_size
    except (OSError, PolarsError) as e:  # polars wraps what the file raises
        raise ConfigError(f"{path} can't be written: {e}") from e


def _remove_leftovers(path: Path) -> None:
    """Remove what killed exports of the same file have left: `write_whole`'s temporary names carry the pid."""
    prefix = f".{path.name}."
    for found in path.parent.iterdir():
        pid, *rest = found.name.removeprefix(prefix).split(".")
        if found.name.startswith(prefix) and pid.isdigit() and rest[1:] == ["tmp"] and _is_left_over(found, int(pid)):
            found.unlink(missing_ok=True)


def _is_left_over(path: Path, pid: int) -> bool:
    with suppress(psutil.NoSuchProcess, FileNotFoundError):
        return psutil.Process(pid).create_time() > path.stat().st_mtime  # the pid is another's now
    return True


def _write_to_stdout(write: Callable[[BinaryIO], None]) -> None:
    try:
        sys.stdout.flush()
        write(sys.stdout.buffer)
        sys.stdout.flush()
    except OSError as e:
        _let_go_of_stdout()
        raise ConfigError(f"stdout can't be written: {e}") from e


def _let_go_of_stdout() -> None:
    """Keep the interpreter from failing once more when it flushes a pipe that nobody reads."""
    waiting = select.poll()
    waiting.register(1, select.POLLERR)
    if waiting.poll(0):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
