"""What a prompt version and a model come to, and the hashes that name it. Makes variant_specs."""

from collections.abc import Iterable, Iterator

from batch_assets.core.asset_names import VARIANT_SPECS
from batch_assets.core.outcomes import Json, MadePartition, Markdown
from batch_assets.core.tasks import Task
from batch_assets.pipeline.platform import Platform
from batch_assets.reports.markdown import as_block, as_code


def describe_variants(task: Task, platform: Platform, variants: Iterable[str]) -> Iterator[MadePartition]:
    """Yield the description of each variant. Raises ConfigError for one that the task doesn't have."""
    for key in variants:
        spec = platform.spec(task, key)
        variant = task.variants[key]
        prompt, model = variant.prompt, variant.model
        yield MadePartition(
            asset=VARIANT_SPECS,
            partition=key,
            data_version=spec.data_version,
            figures={
                "prompt": Markdown(f"{as_code(prompt.head.description)}\n\n{as_block(prompt.body)}"),
                "system": prompt.head.system or "",
                "examples": len(prompt.head.examples),
                "fields": ", ".join(prompt.fields),
                "model": Json(model.model_dump(mode="json")),
                "output_schema": Json(task.output_schema),
                "request_spec": spec.request_spec,
                "accept_spec": spec.accept_spec,
            },
        )
