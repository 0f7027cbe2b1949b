"""What Dagster calls a task's assets, and the data versions that it has recorded of their partitions."""

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, VARIANT_SPECS
from batch_assets.core.tasks import Task
from batch_assets.pipeline.plan import RecordedVersions
from batch_assets.pipeline.result_assets import RESULT_NAMES

_VERSION_TAG = "dagster/data_version"


def asset_key(task: Task, name: str) -> dg.AssetKey:
    """Return the key of one of a task's assets."""
    return dg.AssetKey([task.name, name])


def load_recorded(instance: DagsterInstance, task: Task) -> RecordedVersions:
    """Return the data versions that Dagster has of a task's partitions, for the planner."""
    names = (VARIANT_SPECS, LLM_OUTPUTS, *((FALLBACK_OUTPUTS,) if task.fallbacks else ()), *RESULT_NAMES)
    return {name: load_versions(instance, task, name) for name in names}


def load_versions(instance: DagsterInstance, task: Task, name: str) -> dict[str, str]:
    """Return the data versions that Dagster has of one asset's partitions."""
    found = instance.event_log_storage.get_latest_tags_by_partition(
        asset_key(task, name), dg.DagsterEventType.ASSET_MATERIALIZATION, [_VERSION_TAG]
    )
    return {partition: tags[_VERSION_TAG] for partition, tags in found.items() if _VERSION_TAG in tags}
