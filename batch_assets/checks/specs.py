"""What Dagster is told of a check before it runs."""

import dagster as dg

from batch_assets.asset_keys import SOURCE_RECORDS, asset_key
from batch_assets.core.tasks import Task
from batch_assets.partitions import batch_partitions, output_partitions


def build_spec(task: Task, asset: str, name: str, description: str, *, is_blocking: bool = False) -> dg.AssetCheckSpec:
    """Return the spec of a check that reports by partition."""
    partitions = batch_partitions(task.name) if asset == SOURCE_RECORDS else output_partitions(task.name)
    return dg.AssetCheckSpec(
        name,
        asset=asset_key(task, asset),
        description=description,
        blocking=is_blocking,
        partitions_def=partitions,
    )
