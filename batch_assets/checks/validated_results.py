"""Checks of validated_results."""

from collections.abc import Sequence

import dagster as dg
import polars as pl

from batch_assets.assets.events import Finding
from batch_assets.assets.results import ResultCheck
from batch_assets.checks.contracts import CONTRACT, check_contract
from batch_assets.checks.specs import build_spec
from batch_assets.core.tasks import Task
from batch_assets.planner import VALIDATED_RESULTS
from batch_assets.runner.work import PartitionWork
from batch_assets.schemas import validated_results_schema

AGREES = "agrees_with_completions"
SHOWN = 10


def build_checks(task: Task) -> tuple[Sequence[dg.AssetCheckSpec], Sequence[ResultCheck]]:
    """Return the checks of a task's validated_results: specs and what they do."""
    schema = validated_results_schema(task.output)
    words = "Each row's answer is what its stored completion gives when it is judged again."
    specs = [
        build_spec(
            task, VALIDATED_RESULTS, CONTRACT, "The frame keeps its contract; ids are unique.", is_blocking=True
        ),
        build_spec(task, VALIDATED_RESULTS, AGREES, words, is_blocking=True),
    ]

    def check_frame(_work: PartitionWork, frame: pl.DataFrame, _disagreeing: list[str]) -> Finding:
        return check_contract(frame, schema)

    return specs, [check_frame, check_agreement]


def check_agreement(_work: PartitionWork, _frame: pl.DataFrame, disagreeing: list[str]) -> Finding:
    """Refuse rows whose payload isn't what `accept` makes of the stored completion: somebody changed one of them."""
    return Finding(
        name=AGREES,
        passed=not disagreeing,
        is_blocking=True,
        metadata={"disagreeing": len(disagreeing), "first": dg.MetadataValue.json(disagreeing[:SHOWN])},
    )
