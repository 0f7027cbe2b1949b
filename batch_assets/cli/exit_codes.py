"""What the command's exit codes mean; `--help` says it too."""

DONE, FAILING_CHECKS, WRONG_USE, STOPPED = 0, 1, 2, 3
