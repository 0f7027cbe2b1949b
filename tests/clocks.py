"""A clock for what takes one as an argument."""


class Clock:
    """A clock that only the test moves: `clock.at += 3`."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        """Return the moment, in seconds."""
        return self.at
