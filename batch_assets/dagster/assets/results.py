"""What follows llm_outputs, in one step: validated_results, quarantine, qa_samples, run_reports [batch × variant].

One step, because a run over many partitions hands no Output on, and Dagster would skip the steps after it. Which assets
there are is in pipeline/result_assets.py.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, VALIDATED_RESULTS
from batch_assets.core.partition_keys import parse_partition_key
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.check_specs import build_check_specs
from batch_assets.dagster.events import emit
from batch_assets.dagster.made_by import describe_makers
from batch_assets.dagster.partitions import output_partitions
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.make_results import make_results
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.result_assets import RESULT_ASSETS, ResultAsset


def build_results(task: Task) -> dg.AssetsDefinition:
    """Build the step of one task."""

    @dg.multi_asset(
        name=f"{task.name}__results",
        specs=[_build_spec(task, asset) for asset in RESULT_ASSETS],
        partitions_def=output_partitions(task.name),
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1000),
        check_specs=build_check_specs(task, VALIDATED_RESULTS),
        can_subset=True,
        required_resource_keys={PLATFORM},
    )
    def results(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(str(k)) for k in context.partition_keys]
        selected = {k.path[-1] for k in context.selected_asset_keys}
        made = make_results(task, platform, partitions, selected, run_id=context.run.run_id)
        with plain_failures(context, platform):
            yield from emit(context, task, made)

    return results


def _build_spec(task: Task, asset: ResultAsset) -> dg.AssetSpec:
    # What is made of the outputs is made of the fallback's answers too.
    is_second = task.fallbacks and asset.upstream == LLM_OUTPUTS
    upstream = [LLM_OUTPUTS, FALLBACK_OUTPUTS] if is_second else [asset.upstream]
    return dg.AssetSpec(
        asset_key(task, asset.name),
        deps=[asset_key(task, name) for name in upstream],
        skippable=True,
        group_name=task.name,
        owners=list(task.owners),
        kinds=set(asset.kinds),
        description=f"{asset.description}\n\n{describe_makers(task, asset.name)}",
    )
