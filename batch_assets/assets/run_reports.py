"""run_reports [batch × variant]: the figures of a partition, as a row."""

import sqlalchemy as sa

from batch_assets.reports.run_report import RunReport
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.store.database import now
from batch_assets.store.tables import run_reports


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
