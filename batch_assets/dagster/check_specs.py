"""What Dagster is told of checks before they run."""

import dagster as dg

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.partitions import batch_partitions, output_partitions
from batch_assets.pipeline.checks.of_task import list_checks


def build_check_specs(task: Task, asset: str) -> list[dg.AssetCheckSpec]:
    """Return the specs of an asset's checks; they report by partition."""
    partitions = batch_partitions(task.name) if asset == SOURCE_RECORDS else output_partitions(task.name)
    return [
        dg.AssetCheckSpec(
            check.name,
            asset=asset_key(task, asset),
            description=check.description,
            blocking=check.is_blocking,
            partitions_def=partitions,
        )
        for check in list_checks(task, asset)
    ]
