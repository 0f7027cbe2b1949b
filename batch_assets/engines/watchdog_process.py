"""The watchdog's own process: it ends its process group when its standard input closes. watchdog.py runs it, by path.

Standard library only: it runs without the packages of the environment, so that it starts in an instant.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOOK_EVERY_S = 0.05


def guard(folder: Path, grace_s: float) -> None:
    """Wait until whoever holds the other end of the pipe is gone; then end the group, and remove the folder.

    The group gets SIGTERM, `grace_s` seconds at most, and SIGKILL. SIGKILL is for ourselves too, as the leader: as long
    as we live a process may still join, and afterwards nobody can.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGTERM)
    give_up_at = time.monotonic() + grace_s
    while time.monotonic() < give_up_at and has_company():
        time.sleep(LOOK_EVERY_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def has_company() -> bool:
    """Return whether another process lives in our group. If there is no /proc, nobody knows: then it may."""
    if not Path("/proc/self/stat").exists():
        return True
    own, group = str(os.getpid()), str(os.getpgrp())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or entry.name == own:
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended in this moment
            continue
        if fields[2:3] == [group] and fields[0] not in ("Z", "X"):  # proc_pid_stat(5): state, ppid, pgrp
            return True
    return False


if __name__ == "__main__":
    guard(Path(sys.argv[1]), float(sys.argv[2]))
