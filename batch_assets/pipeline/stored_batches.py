"""Microbatches of the store as a source of batches: what binds a task's stream to the store."""

import datetime as dt
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batch_assets.settings import load_settings
from batch_assets.sources.base import Source, StreamSource
from batch_assets.sources.stream import Microbatched
from batch_assets.store.database import open_database
from batch_assets.store.microbatches import MicrobatchLog


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """The microbatches of a task in the store that the settings name. It opens the store for each call."""

    task: str

    def batches(self) -> Sequence[tuple[str, int, dt.datetime]]:
        """Return all of them in the order of their forming: key, records, when."""
        with self._open() as log:
            return log.batches()

    def items(self, batch: str) -> Sequence[str]:
        """Return the ids in one."""
        with self._open() as log:
            return log.items(batch)

    @contextmanager
    def _open(self) -> Generator[MicrobatchLog]:
        database = open_database(load_settings().store_url)
        try:
            yield MicrobatchLog(database, self.task)
        finally:
            database.close()


def bind_source(task: str, source: Source | StreamSource) -> Source:
    """Return what a task reads batches from: a stream's microbatches in the store; any other source as it is."""
    return Microbatched(source, StoredBatches(task)) if isinstance(source, StreamSource) else source
