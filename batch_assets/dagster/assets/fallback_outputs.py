"""fallback_outputs [batch × variant]; only in tasks that name a fallback."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS
from batch_assets.core.models import ModelEntry
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.assets.llm_outputs import OutputsConfig
from batch_assets.dagster.backfills import make_for_backfill
from batch_assets.dagster.made_by import describe_makers
from batch_assets.dagster.partitions import output_partitions
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.ask_fallback import ask_fallback
from batch_assets.pipeline.platform import Platform


def build_fallback_outputs(task: Task, model: ModelEntry) -> dg.AssetsDefinition:
    """Build the asset of one task, whose fallback is `model`."""

    @dg.asset(
        key=asset_key(task, FALLBACK_OUTPUTS),
        partitions_def=output_partitions(task.name),
        deps=[asset_key(task, LLM_OUTPUTS)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        pool=model.pool,
        op_tags=model.op_tags,
        group_name=task.name,
        owners=list(task.owners),
        kinds={model.engine, "sql"},
        description=(
            f"Asks `{model.model_id}` for the records that are quarantined once their partition of {LLM_OUTPUTS} is "
            "finished, and for no others. What it answers goes into validated_results under its own model_id; shares "
            "and comparisons count a variant's own rows only.\n\n"
            f"{describe_makers(task, FALLBACK_OUTPUTS)}"
        ),
        required_resource_keys={PLATFORM},
    )
    def fallback_outputs(context: dg.AssetExecutionContext, config: OutputsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with plain_failures(context, platform):

            def make(own: Sequence[PartitionKey], theirs: Sequence[PartitionKey]) -> Iterator[MadePartition]:
                return ask_fallback(
                    task, platform, own,
                    run_id=context.run.run_id, retry=config.retry_mode(), log=context.log.info, taken_over=theirs,
                )  # fmt: skip

            yield from make_for_backfill(context, task, make)

    return fallback_outputs
