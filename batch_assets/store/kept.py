"""What a run has left in the store, for the words at its end."""

import logging
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from batch_assets.store.database import Database
from batch_assets.store.tables import fallbacks, partitions, results

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Records that a run gave a row, and output partitions that it finished, the fallback's among them."""

    records: int
    partitions: int


def count_kept(database: Database, run_id: str) -> Kept | None:
    """Count what a run has left, or return None if the store doesn't answer. What a later run made anew is that run's.

    It is called while an error is on its way, which must not be lost over another one.
    """
    try:
        with database.read() as connection:
            return Kept(
                records=_count(connection, results, run_id),
                partitions=_count(connection, partitions, run_id) + _count(connection, fallbacks, run_id),
            )
    except SQLAlchemyError as e:
        _log.info("the store doesn't say what is kept of run %s: %s", run_id, e)
        return None


def _count(connection: sa.Connection, table: sa.Table, run_id: str) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(table.c.run_id == run_id).select_from(table)) or 0
