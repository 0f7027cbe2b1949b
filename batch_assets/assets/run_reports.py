"""run_reports [batch × variant]: the figures of a partition, as a row; and those of the batches before it."""

from collections.abc import Sequence

import sqlalchemy as sa

from batch_assets.reports.labels import Labels
from batch_assets.reports.run_report import RunReport
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.store.database import now
from batch_assets.store.tables import batches, run_reports


def write_run_report(platform: Platform, work: PartitionWork, report: RunReport, data_version: str) -> None:
    """Replace a partition's report in the store."""
    key = {"task": work.task.name, "batch": work.batch, "variant": work.variant.key}
    where = [run_reports.c[name] == value for name, value in key.items()]
    figures = report.model_dump(mode="json")
    with platform.database.write() as connection:
        connection.execute(sa.delete(run_reports).where(*where))
        connection.execute(
            sa.insert(run_reports).values(**key, data_version=data_version, figures=figures, made_at=now())
        )


def load_earlier_labels(platform: Platform, work: PartitionWork, limit: int) -> Sequence[tuple[int, Labels]]:
    """Return the accepted answers and labels of the variant's last batches before this one, the latest first.

    Before means first seen before, not made before: a batch that is made anew is compared with the same ones as ever.
    A batch without a report is passed over: it isn't made yet, or a gate holds its results back.
    """
    r, b, mine = run_reports.c, batches.c, batches.alias()
    query = (
        sa.select(r.figures)
        .join_from(run_reports, batches, sa.and_(b.task == r.task, b.batch == r.batch))
        .join(mine, sa.and_(mine.c.task == r.task, mine.c.batch == work.batch))
        .where(r.task == work.task.name, r.variant == work.variant.key, b.seq < mine.c.seq)
        .order_by(b.seq.desc())
        .limit(limit)
    )
    with platform.database.read() as connection:
        found = connection.scalars(query).all()
    return [(figures["ok"], figures["labels"]) for figures in found if "labels" in figures]
