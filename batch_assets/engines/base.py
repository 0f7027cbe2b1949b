"""The contract of an engine, and of its entry in models.yaml."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from batch_assets.core.completions import Completion
from batch_assets.core.models import ModelEntry
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


class EngineEntry(ModelEntry, ABC):
    """An entry of models.yaml for one engine: the fields that only this engine has, and what opens it.

    `register_engine` gives a shipped one its name; another is named by its dotted name.
    """

    def find_problem(self) -> str | None:
        """Return what is wrong between the fields as `field: words`, or None. It is asked when models.yaml is read."""
        return None

    def check(self) -> None:
        """Raise ConfigError for what the engine doesn't know. It is asked of models that a task uses, and is quick."""
        return

    @abstractmethod
    def build(self, cache_dir: Path) -> Engine:
        """Return the engine, not yet open. `cache_dir` is for what it prepares once."""
