"""Makes Dagster's event log on SQLite quick enough for a run that writes thousands of events.

Dagster opens a connection for each statement and closes it again. Closing the last one to a file in WAL mode writes all
of it back and syncs, several times per event. While somebody holds the files open that isn't done; and with
`synchronous=NORMAL`, which is safe in WAL mode, a commit doesn't sync either. Together events go out four times as fast
(see benchmarks/README.md). Only a power cut can lose the last ones, and they are stamped again from the store.
"""

import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dagster import DagsterInstance
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from sqlalchemy import event


@contextmanager
def keep_event_log_open(instance: DagsterInstance, run_id: str) -> Generator[None, None, None]:
    """Hold the log's files open for the life of a run. Does nothing where the log isn't SQLite."""
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


def _sync_less(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=NORMAL")
