"""What Dagster calls a task's assets, and the data versions that it has of their partitions."""

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.identity import VariantSpec
from batch_assets.core.tasks import Task

SOURCE_RECORDS = "source_records"
VARIANT_SPECS = "variant_specs"
LLM_OUTPUTS = "llm_outputs"
FALLBACK_OUTPUTS = "fallback_outputs"
VALIDATED_RESULTS = "validated_results"
QUARANTINE = "quarantine"
QA_SAMPLES = "qa_samples"
RUN_REPORTS = "run_reports"
RESULT_ASSETS = (VALIDATED_RESULTS, QUARANTINE, QA_SAMPLES, RUN_REPORTS)
"""The assets after llm_outputs, in the order of the data; they follow the whole data version of their output."""


def asset_key(task: Task, name: str) -> dg.AssetKey:
    """Return the key of one of a task's assets."""
    return dg.AssetKey([task.name, name])


def spec_version(spec: VariantSpec) -> str:
    """Return the data version of a `variant_specs` partition."""
    return f"{spec.request_spec}.{spec.accept_spec}"


def load_versions(instance: DagsterInstance, task: Task, name: str) -> dict[str, str]:
    """Return the data versions that Dagster has for an asset's partitions: its shadow of the store."""
    tag = "dagster/data_version"
    found = instance.event_log_storage.get_latest_tags_by_partition(
        asset_key(task, name), dg.DagsterEventType.ASSET_MATERIALIZATION, [tag]
    )
    return {partition: tags[tag] for partition, tags in found.items() if tag in tags}
