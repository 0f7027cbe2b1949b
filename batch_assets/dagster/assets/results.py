"""What follows llm_outputs, in one step: validated_results, quarantine, qa_samples, run_reports [batch × variant].

One step, because a run over many partitions hands no Output on, and Dagster would skip the steps after it. A new asset
after validated_results is a row here, its name in core/asset_names.py, and a function in pipeline/make_results.py.
"""

from collections.abc import Iterator, Sequence, Set
from typing import Any

import dagster as dg

from batch_assets.core.asset_names import (
    FALLBACK_OUTPUTS,
    LLM_OUTPUTS,
    QA_SAMPLES,
    QUARANTINE,
    RUN_REPORTS,
    VALIDATED_RESULTS,
)
from batch_assets.core.partition_keys import parse_partition_key
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.check_specs import build_check_specs
from batch_assets.dagster.events import emit
from batch_assets.dagster.lost_store import outlast_lost_store
from batch_assets.dagster.partitions import output_partitions
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.pipeline.make_results import make_results
from batch_assets.pipeline.platform import Platform


def build_results(task: Task) -> dg.AssetsDefinition:
    """Build the step of one task."""

    @dg.multi_asset(
        name=f"{task.name}__results",
        specs=[_build_spec(task, name, upstream, words, kinds) for name, upstream, words, kinds in _ASSETS],
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
        with outlast_lost_store(context, platform):
            yield from emit(context, task, made)

    return results


_ASSETS = (
    (
        VALIDATED_RESULTS,
        LLM_OUTPUTS,
        "One row per record whose answer is accepted: the answer's fields as typed columns, in Parquet.",
        {"pydantic", "pandera", "parquet"},
    ),
    (
        QUARANTINE,
        LLM_OUTPUTS,
        "One row per record without an accepted answer, with its reason: work for another model or a person.",
        {"sql"},
    ),
    (
        QA_SAMPLES,
        VALIDATED_RESULTS,
        "One row per sampled result: those of smallest seeded hash, stable and mergeable over batches.",
        {"sql"},
    ),
    (
        RUN_REPORTS,
        QA_SAMPLES,
        "One row per batch and variant: counts, tokens, seconds, rates, cost and latency.",
        {"sql"},
    ),
)


def _build_spec(task: Task, name: str, upstream: str, words: str, kinds: Set[str]) -> dg.AssetSpec:
    return dg.AssetSpec(
        asset_key(task, name),
        deps=[asset_key(task, name) for name in _list_upstream(task, upstream)],
        skippable=True,
        group_name=task.name,
        owners=list(task.owners),
        kinds=set(kinds),
        description=words,
    )


def _list_upstream(task: Task, upstream: str) -> Sequence[str]:
    """Return the assets that one of ours is made from: what is made of the outputs is made of the fallback's too."""
    return [LLM_OUTPUTS, FALLBACK_OUTPUTS] if task.fallbacks and upstream == LLM_OUTPUTS else [upstream]
