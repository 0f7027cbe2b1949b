"""`python -m batch_assets.cli.end_with_parent PID COMMAND…`: become a command that ends when the process PID does.

Linux alone can do that; elsewhere the command outlives a parent that is killed with -9.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Ask for SIGTERM at the parent's death, and become the command: the wish survives that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(3)  # it died before we could ask
    os.execv(command[0], command)  # noqa: S606 - the caller's own command


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
