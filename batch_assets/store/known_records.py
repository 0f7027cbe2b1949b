"""What the store knows of some records before they are asked, read in one transaction."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from batch_assets.core.classification import RowState
from batch_assets.store.database import Database
from batch_assets.store.results import (
    PastAttempt,
    VariantKey,
    find_answers,
    load_attempts,
    load_foreign,
    load_history,
    load_states,
)


class KnownRecords:
    """Reads rows and attempts from one state of the store."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def load_superseded(self, task: str, batch: str, item_ids: Sequence[str]) -> set[str]:
        """Return those of `item_ids` that a later batch owns."""
        return load_foreign(self._connection, task, batch, item_ids)

    def load_states(self, key: VariantKey, item_ids: Sequence[str]) -> dict[str, RowState]:
        """Return a variant's rows, by item_id; pending ones are absent."""
        return load_states(self._connection, key, item_ids)

    def load_attempts(self, attempt_ids: Iterable[str]) -> dict[str, PastAttempt]:
        """Return attempts by their ids."""
        return load_attempts(self._connection, attempt_ids)

    def load_history(self, key: VariantKey, item_ids: Sequence[str]) -> dict[str, list[PastAttempt]]:
        """Return all attempts that records had for a variant, oldest first, by item_id."""
        return load_history(self._connection, key, item_ids)

    def find_answers(self, request_keys: Sequence[str], run_id: str | None) -> dict[str, PastAttempt]:
        """Return the newest `ok` attempt of each request key. With a `run_id`, only that run's attempts count."""
        return find_answers(self._connection, request_keys, run_id)


@contextmanager
def read_known_records(database: Database) -> Generator[KnownRecords]:
    """Yield a reader that sees one state of the store, whatever others write meanwhile."""
    with database.read() as connection:
        yield KnownRecords(connection)
