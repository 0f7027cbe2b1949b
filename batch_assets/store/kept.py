"""What a run has left in the store, for the words at its end."""

from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.store.tables import fallbacks, partitions, results


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Records that a run gave a row, and output partitions that it finished, the fallback's among them."""

    records: int
    partitions: int


def count_kept(connection: sa.Connection, run_id: str) -> Kept:
    """Count what a run has left. Rows that a later run made anew are that run's."""

    def count(table: sa.Table) -> int:
        return connection.scalar(sa.select(sa.func.count()).where(table.c.run_id == run_id).select_from(table)) or 0

    return Kept(records=count(results), partitions=count(partitions) + count(fallbacks))
