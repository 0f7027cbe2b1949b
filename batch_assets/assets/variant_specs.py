"""variant_specs [variant]: what a prompt version and a model come to, and the hashes that name it."""

from collections.abc import Iterable, Iterator
from typing import Any

import dagster as dg

from batch_assets.asset_keys import VARIANT_SPECS, asset_key, spec_version
from batch_assets.assets.events import Stamp, emit
from batch_assets.core.tasks import Task
from batch_assets.partitions import variant_partitions
from batch_assets.reports.markdown import as_block, as_code
from batch_assets.resources import PLATFORM, Platform


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
        description="One row per variant (prompt version × model): the prompt, the model's entry and their hashes.",
        required_resource_keys={PLATFORM},
    )
    def variant_specs(context: dg.AssetExecutionContext) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        variants = list(context.partition_keys)
        yield from emit(context, task, specify(task, platform, variants))

    return variant_specs


def specify(task: Task, platform: Platform, variants: Iterable[str]) -> Iterator[Stamp]:
    """Describe variants."""
    for key in variants:
        spec = platform.spec(task, key)
        variant = task.variants[key]
        prompt, model = variant.prompt, variant.model
        yield Stamp(
            asset=VARIANT_SPECS,
            partition=key,
            data_version=spec_version(spec),
            metadata={
                "prompt": dg.MetadataValue.md(f"{as_code(prompt.head.description)}\n\n{as_block(prompt.body)}"),
                "system": dg.MetadataValue.text(prompt.head.system or ""),
                "examples": len(prompt.head.examples),
                "fields": ", ".join(prompt.fields),
                "model": dg.MetadataValue.json(model.model_dump(mode="json")),
                "output_schema": dg.MetadataValue.json(task.output_schema),
                "request_spec": spec.request_spec,
                "accept_spec": spec.accept_spec,
            },
        )
