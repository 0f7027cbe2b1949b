"""source_records [batch]."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.check_specs import build_check_specs
from batch_assets.dagster.events import emit
from batch_assets.dagster.made_by import describe_makers
from batch_assets.dagster.partitions import batch_partitions
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.freeze import freeze_batches
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source


def build_source_records(task: Task, source: Source) -> dg.AssetsDefinition:
    """Build the asset of one task."""

    @dg.asset(
        key=asset_key(task, SOURCE_RECORDS),
        partitions_def=batch_partitions(task.name),
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=build_check_specs(task, SOURCE_RECORDS),
        output_required=False,
        group_name=task.name,
        owners=list(task.owners),
        kinds={"polars", "parquet"},
        description=(
            "One row per record of the batch, frozen as it was read; all fields are text.\n\n"
            f"{describe_makers(task, SOURCE_RECORDS)}"
        ),
        required_resource_keys={PLATFORM},
    )
    def source_records(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        batches = list(context.partition_keys)
        with plain_failures(context, platform):
            yield from emit(context, task, freeze_batches(task, source, platform, batches, context.run.run_id))

    return source_records
