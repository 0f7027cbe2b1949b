"""One `batch-assets up` for a PostgreSQL database: a lock of the session."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

import sqlalchemy as sa

from batch_assets.core.errors import ConfigError
from batch_assets.store.database import describe_url, parse_url

UP_LOCK = 0x62617570
"""The key of the lock in PostgreSQL, `baup` in ASCII; below 2**32, so pg_locks has it in `objid`."""
_HOLDER = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objid::bigint = :key AND a.datname = current_database()"""


@contextmanager
def hold_up_lock(store_url: str) -> Generator[None, None, None]:
    """Hold a PostgreSQL database for one `up`. Raises ConfigError with the pid and host of who holds it.

    It is a session's lock: who has lost the connection has lost the lock, and goes on without it.
    """
    me = f"batch-assets up, pid {os.getpid()} on {socket.gethostname()}"[:63]  # PostgreSQL keeps so much of a name
    url = parse_url(store_url).update_query_dict({"application_name": me})
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if not connection.scalar(sa.text("SELECT pg_try_advisory_lock(:key)"), {"key": UP_LOCK}):
            holder = connection.scalar(sa.text(_HOLDER), {"key": UP_LOCK}) or "another `up`"
            raise ConfigError(
                f"BATCH_ASSETS_DB_URL: {holder} serves {describe_url(store_url)} already: use it, or end it"
            )
        try:
            yield
        finally:
            connection.invalidate()  # it may have been lost long ago, and ending it frees the lock
