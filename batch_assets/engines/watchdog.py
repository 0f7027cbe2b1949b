"""A process group for an engine's processes, and a watchdog that ends it when we end, however we end.

vLLM starts its processes through `multiprocessing`, which offers no way to say into which group. What it does offer is
`set_executable`, which vLLM itself uses to start them under numactl. So for as long as an engine starts, the executable
is a script that joins the group and then becomes Python. Processes that those start are in the group from birth.

A group of their own also keeps a Ctrl-C from them: it reaches us alone, and we end them when what has arrived is safe.
No process slips through: one that wants to join when the watchdog is gone can't, and ends.
"""

import contextlib
import multiprocessing.spawn
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from multiprocessing import resource_tracker
from pathlib import Path

from batch_assets.core.errors import ConfigError
from batch_assets.engines import watchdog_process

GRACE_S = 8.0
_JOIN = "import os, sys; os.setpgid(0, int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
_executable = threading.Lock()
"""Held while multiprocessing's executable is ours: it is one for the whole process."""


class Watchdog:
    """A running watchdog: a process that leads a group of its own, and a folder that goes when the group does."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ba_vllm_"))
        """For sockets and other files of the group's processes; its path is short, as a socket's has to be."""
        self._script = self.folder / "start.sh"
        # The pipe's other end is ours alone: Python marks it as not to be inherited. Its closing is the signal.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-IS", watchdog_process.__file__, str(self.folder), str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,
        )

    @property
    def group(self) -> int:
        """The id of the process group, which is the watchdog's process id."""
        return self._process.pid

    @contextlib.contextmanager
    def adopting(self) -> Generator[None]:
        """What `multiprocessing` spawns in this block, in any thread, joins the group.

        Raises ConfigError if programs can't be started from the folder for temporary files.
        """
        with _executable:
            resource_tracker.ensure_running()  # this process's own: it must not die with the group
            python = os.fsdecode(multiprocessing.spawn.get_executable())
            command = shlex.join([python, "-IS", "-c", _JOIN, str(self.group), python])
            self._script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
            self._script.chmod(0o700)
            if not os.access(self._script, os.X_OK):
                raise ConfigError(f"{self.folder}: no program can be started from there (noexec): set TMPDIR elsewhere")
            multiprocessing.spawn.set_executable(str(self._script))
            try:
                yield
            finally:
                multiprocessing.spawn.set_executable(python)

    def close(self) -> None:
        """End the group and wait for it: its processes may take the grace to end themselves. Safe to call twice."""
        if self._process.returncode is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # In case somebody has killed the watchdog. Its number is ours until we have waited for it.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
