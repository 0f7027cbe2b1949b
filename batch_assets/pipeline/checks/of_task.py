"""All checks of a task: those of every task, and its own. One list serves Dagster's specs, the gates and the steps."""

from collections.abc import Sequence
from typing import Any

from batch_assets.core.checks import Check, refuse_unusable_checks
from batch_assets.core.tasks import Task
from batch_assets.pipeline.checks import llm_outputs, source_records, validated_results


def list_checks(task: Task, asset: str = "") -> Sequence[Check[Any]]:
    """Return the checks of a task, or of one of its assets. Raises ConfigError for an own one that can't be used."""
    shipped = [
        *source_records.list_checks(task),
        *llm_outputs.list_checks(task),
        *validated_results.list_checks(task),
    ]
    refuse_unusable_checks(task.name, task.checks, shipped)
    return [c for c in (*shipped, *task.checks) if not asset or c.asset == asset]
