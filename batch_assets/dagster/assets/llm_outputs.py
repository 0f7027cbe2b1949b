"""llm_outputs [batch × variant]."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from batch_assets.core.asset_names import LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import SourceError
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key, load_versions
from batch_assets.dagster.backfills import make_for_backfill
from batch_assets.dagster.check_specs import build_check_specs
from batch_assets.dagster.made_by import describe_makers
from batch_assets.dagster.partitions import BATCH, VARIANT, output_partitions, to_single_dimension
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.ask_partitions import ask_partitions, parse_retry
from batch_assets.pipeline.describe_variants import describe_variants
from batch_assets.pipeline.freeze import freeze_unfrozen
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source


class OutputsConfig(dg.Config):
    """What to ask again beside the missing and the stale."""

    retry: str = Field("none", description="Ask again although nothing changed: none, errors, failed or all.")

    def retry_mode(self) -> RetryMode:
        """Return the mode. Raises ConfigError for a word that is none."""
        return parse_retry(self.retry)


def build_llm_outputs(task: Task, source: Source) -> dg.AssetsDefinition:
    """Build the asset of one task."""
    engines = sorted({model.engine for model in task.models.values()})[:2]  # Dagster shows three kinds at most

    @dg.asset(
        key=asset_key(task, LLM_OUTPUTS),
        partitions_def=output_partitions(task.name),
        deps=[
            dg.AssetDep(asset_key(task, SOURCE_RECORDS), partition_mapping=to_single_dimension(BATCH)),
            dg.AssetDep(asset_key(task, VARIANT_SPECS), partition_mapping=to_single_dimension(VARIANT)),
        ],
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=build_check_specs(task, LLM_OUTPUTS),
        output_required=False,
        pool=next(iter(task.models.values())).pool,
        op_tags={k: v for model in task.models.values() for k, v in model.op_tags.items()},
        group_name=task.name,
        owners=list(task.owners),
        kinds={*engines, "sql"},
        description=_describe(task),
        required_resource_keys={PLATFORM},
    )
    def llm_outputs(context: dg.AssetExecutionContext, config: OutputsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with plain_failures(context, platform):

            def make(own: Sequence[PartitionKey], theirs: Sequence[PartitionKey]) -> Iterator[MadePartition]:
                run_id, retry = context.run.run_id, config.retry_mode()
                described = load_versions(context.instance, task, VARIANT_SPECS).keys()
                missing = {p.variant: None for p in (*own, *theirs) if p.variant in task.variants.keys() - described}
                yield from describe_variants(task, platform, missing)
                broken = yield from freeze_unfrozen(task, source, platform, [*own, *theirs], run_id)
                asked = [p for p in own if p.batch not in broken]
                yield from ask_partitions(
                    task, platform, asked, run_id=run_id, retry=retry, log=context.log.info, taken_over=theirs
                )
                if why := [broken[batch] for batch in dict.fromkeys(p.batch for p in own) if batch in broken]:
                    raise SourceError("; ".join(why))

            yield from make_for_backfill(context, task, make)

    return llm_outputs


def _describe(task: Task) -> str:
    about = f"\n\nThe task: {task.description}" if task.description else ""
    return (
        "One row per record and variant, in `llm_batch_results`: the model's answer, or the reason why there is none. "
        f"Models: {', '.join(f'`{m}`' for m in task.models)}.{about}\n\n"
        f"{describe_makers(task, LLM_OUTPUTS)}"
    )
