"""Says what is kept of a run that ended early, and how the rest is made."""

from dagster import DagsterRun

from batch_assets.core.words import format_count
from batch_assets.dagster.runs import PLAN_JOB, read_config
from batch_assets.store.database import Database
from batch_assets.store.kept import count_kept

_GOES_ON = (
    "Nothing of that is asked again: the next run of the same partitions goes on from there. "
    f"Launch it by the job {PLAN_JOB}, by `batch-assets run`, or by Materialize on the asset's page."
)


def describe_kept(database: Database, run: DagsterRun) -> str:
    """Say what is kept of a run that ended early, and how the rest is made."""
    kept, config = count_kept(database, run.run_id), read_config(run)
    if kept is None:
        return f"What was done is kept. {_GOES_ON}"
    records, listed = int(config.get("total", 0)), len(config.get("partitions", ()))
    of_records = f" of {records:,}" if records else ""
    of_partitions = f" of {listed:,}" if listed else ""
    return (
        f"Kept: {kept.records:,}{of_records} records done, {format_count(kept.partitions, 'partition')}"
        f"{of_partitions} finished. {_GOES_ON}"
    )
