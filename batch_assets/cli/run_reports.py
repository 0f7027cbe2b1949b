"""The figures that `run` tells of: each partition's report, as it is in the store or as it would be."""

from collections.abc import Mapping, Sequence
from typing import Any

from batch_assets.core.partition_keys import parse_partition_key
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_partitions import compute_report
from batch_assets.pipeline.partition_inputs import build_inputs
from batch_assets.pipeline.platform import Platform
from batch_assets.store.failures import load_failing
from batch_assets.store.overview import load_reports


def find_reports(platform: Platform, task: Task, run_ids: Sequence[str]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the reports of all partitions, by (batch, variant).

    One whose results these runs held back has none of its present state in the store: that is made here.
    """
    with platform.database.read() as connection:
        reports = dict(load_reports(connection, task.name))
        failing = load_failing(connection, task.name)
    held = [p for (step, p), f in failing.items() if step is Step.RESULTS and f.run_id in run_ids]
    for partition in map(parse_partition_key, held):
        if inputs := build_inputs(task, platform, partition):
            report = compute_report(platform, inputs, inputs.variant.model)
            reports[partition.batch, partition.variant] = report.model_dump(mode="json")
    return reports
