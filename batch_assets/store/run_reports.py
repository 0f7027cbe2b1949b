"""Run reports: the figures of a partition as a row, and those of the batches before it."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from batch_assets.store.database import now
from batch_assets.store.tables import batches, run_reports

Labels = dict[str, dict[str, int]]
"""Counts by field and label, as reports.labels has them."""


def save_run_report(
    connection: sa.Connection, task: str, batch: str, variant: str, figures: Mapping[str, Any], data_version: str
) -> None:
    """Replace a partition's report."""
    c = run_reports.c
    connection.execute(sa.delete(run_reports).where(c.task == task, c.batch == batch, c.variant == variant))
    connection.execute(
        sa.insert(run_reports).values(
            task=task,
            batch=batch,
            variant=variant,
            data_version=data_version,
            figures=dict(figures),
            made_at=now(),
        )
    )


def load_earlier_labels(
    connection: sa.Connection, task: str, batch: str, variant: str, limit: int
) -> Sequence[tuple[int, Labels]]:
    """Return the accepted answers and labels of a variant's last batches before this one, the latest first.

    Before means first seen before, not made before: a batch that is made anew is compared with the same ones as ever.
    A batch without a report is passed over: it isn't made yet, or a gate holds its results back.
    """
    r, b, mine = run_reports.c, batches.c, batches.alias()
    query = (
        sa.select(r.figures)
        .join_from(run_reports, batches, sa.and_(b.task == r.task, b.batch == r.batch))
        .join(mine, sa.and_(mine.c.task == r.task, mine.c.batch == batch))
        .where(r.task == task, r.variant == variant, b.seq < mine.c.seq)
        .order_by(b.seq.desc())
        .limit(limit)
    )
    found = connection.scalars(query).all()
    return [(figures["ok"], figures["labels"]) for figures in found if "labels" in figures]
