"""Makes Dagster's event log on SQLite quick enough for a run that writes thousands of events.

Dagster opens a connection for each statement and closes it again. Closing the last one to a file in WAL mode writes all
of it back and syncs, several times per event. While somebody holds the files open that isn't done; and with
`synchronous=NORMAL`, which is safe in WAL mode, a commit doesn't sync either. Together events go out four times as fast
(see benchmarks/README.md). Only a power cut can lose the last ones, and they are stamped again from the store.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dagster import DagsterInstance, EventLogEntry
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from sqlalchemy import event

BATCH_SIZE = 500
"""Events in one transaction; others that write wait for its end."""


@contextmanager
def keep_event_log_open(instance: DagsterInstance, run_id: str) -> Generator[None, None, None]:
    """Hold the log's files open for the life of a run. Does nothing if the log isn't SQLite."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqliteEventLogStorage):
        yield
        return
    event.listen(sa.Pool, "connect", _sync_less)
    try:
        with ExitStack() as held:
            for shard in (run_id, INDEX_SHARD_NAME):
                path = Path(storage.path_for_shard(shard))
                if path.exists():
                    connection = held.enter_context(closing(sqlite3.connect(path, check_same_thread=False)))
                    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # until then nothing is open
            yield
    finally:
        event.remove(sa.Pool, "connect", _sync_less)


def store_planned(instance: DagsterInstance, run_id: str, entries: Sequence[EventLogEntry]) -> None:
    """Store a run's planned materializations, so many in one transaction.

    Dagster itself has no batches on SQLite: it opens two connections for each event, as a run of an asset job does too.
    """
    storage = instance.event_log_storage
    for start in range(0, len(entries), BATCH_SIZE):
        batch = entries[start : start + BATCH_SIZE]
        if isinstance(storage, SqliteEventLogStorage):
            _store_in_sqlite(storage, run_id, batch)
        else:
            storage.store_event_batch(batch)


def _store_in_sqlite(storage: SqliteEventLogStorage, run_id: str, entries: Sequence[EventLogEntry]) -> None:
    """Do what its `store_event` does with each, in one transaction for each of the two files."""
    inserts = [storage.prepare_insert_event(entry) for entry in entries]
    with storage.run_connection(run_id) as connection:  # each is one transaction
        for insert in inserts:
            connection.execute(insert)
    last: dict[str, tuple[EventLogEntry, int]] = {}
    with storage.index_connection() as connection:
        for entry, insert in zip(entries, inserts, strict=True):
            (event_id,) = connection.execute(insert).inserted_primary_key or (0,)
            last[str(entry.get_dagster_event().asset_key)] = entry, event_id
        for entry, event_id in last.values():  # an asset's row names the last of its planned events alone
            storage._store_asset_event(connection, entry, event_id)  # pyright: ignore[reportPrivateUsage]


def _sync_less(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=NORMAL")
