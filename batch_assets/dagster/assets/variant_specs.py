"""variant_specs [variant]."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from batch_assets.core.asset_names import VARIANT_SPECS
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.events import emit
from batch_assets.dagster.made_by import describe_makers
from batch_assets.dagster.partitions import variant_partitions
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.describe_variants import describe_variants
from batch_assets.pipeline.platform import Platform


def build_variant_specs(task: Task) -> dg.AssetsDefinition:
    """Build the asset of one task."""

    @dg.asset(
        key=asset_key(task, VARIANT_SPECS),
        partitions_def=variant_partitions(task.name),
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        group_name=task.name,
        owners=list(task.owners),
        kinds={"jinja", "yaml"},
        description=(
            "One row per variant (prompt version × model): the prompt, the model's entry and their hashes.\n\n"
            f"{describe_makers(task, VARIANT_SPECS)}"
        ),
        required_resource_keys={PLATFORM},
    )
    def variant_specs(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with plain_failures(context, platform):
            yield from emit(context, task, describe_variants(task, platform, list(context.partition_keys)))

    return variant_specs
