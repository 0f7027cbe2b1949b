"""The contract of an engine."""

from typing import Protocol

from batch_assets.core.completions import Completion
from batch_assets.core.requests import Request


class Engine(Protocol):
    """Turns requests into completions. Many `complete()` calls run at once, between one open() and one close().

    One bad record is a value: `complete` raises RequestFailed for it. A dead engine is an exception: EngineDead.
    A cancelled `complete()` cancels the request in the engine as well.
    """

    @property
    def is_restartable(self) -> bool:
        """Whether open() after close() mends a death that took requests down, and at once: true of `apart` alone."""
        ...

    async def open(self) -> None:
        """Start; return when requests are welcome. Raises EngineDead or ConfigError."""
        ...

    async def complete(self, request: Request) -> Completion:
        """Answer one request. Raises RequestFailed, EngineDead."""
        ...

    async def close(self) -> None:
        """Free everything. Safe to call twice, and after a failed open()."""
        ...
