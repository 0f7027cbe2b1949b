"""Dagster's partitions of a task: their definitions, and keeping them in step with source, prompts and models."""

from collections.abc import Iterable

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.tasks import Task
from batch_assets.sources.base import Source

BATCH, VARIANT = "batch", "variant"


def batch_partitions(task: str) -> dg.DynamicPartitionsDefinition:
    """Return the batches of a task; dynamic names are global to an instance, so the task's name is in it."""
    return dg.DynamicPartitionsDefinition(name=f"{task}__{BATCH}")


def variant_partitions(task: str) -> dg.DynamicPartitionsDefinition:
    """Return the variants of a task."""
    return dg.DynamicPartitionsDefinition(name=f"{task}__{VARIANT}")


def output_partitions(task: str) -> dg.MultiPartitionsDefinition:
    """Return batch × variant."""
    return dg.MultiPartitionsDefinition({BATCH: batch_partitions(task), VARIANT: variant_partitions(task)})


def to_single_dimension(dimension: str) -> dg.MultiToSingleDimensionPartitionMapping:
    """Return the mapping from batch × variant to one of the two."""
    return dg.MultiToSingleDimensionPartitionMapping(partition_dimension_name=dimension)


def sync_partitions(task: Task, source: Source, instance: DagsterInstance, *, is_retiring: bool = True) -> None:
    """Register what source, prompts and models offer; retire variants that are no more (`is_retiring`). Idempotent.

    A process that loaded its definitions long ago must not retire: what it doesn't know may be new. A batch whose file
    has gone stays: its records were frozen, and its rows are results. Pools are made known as well: to one that it has
    not heard of Dagster lets any number of runs go, which then wait for a slot at a core each.
    """
    known_pools = instance.event_log_storage.get_concurrency_keys()
    models = [*task.models.values(), *([task.fallback] if task.fallback else [])]
    for pool in {model.pool for model in models} - set(known_pools):
        instance.event_log_storage.initialize_concurrency_limit_to_default(pool)
    _add(instance, f"{task.name}__{BATCH}", (ref.batch for ref in source.list_batches()))
    variants = f"{task.name}__{VARIANT}"
    known = _add(instance, variants, task.variants)
    for gone in known - set(task.variants) if is_retiring else ():
        instance.delete_dynamic_partition(variants, gone)


def _add(instance: DagsterInstance, name: str, wanted: Iterable[str]) -> set[str]:
    known = set(instance.get_dynamic_partitions(name))
    new = [key for key in wanted if key not in known]
    if new:
        instance.add_dynamic_partitions(name, new)
    return known
