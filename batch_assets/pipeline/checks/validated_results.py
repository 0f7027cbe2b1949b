"""Checks of validated_results."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.checks import Check, Finding
from batch_assets.core.outcomes import Json, Severity
from batch_assets.core.tasks import Task
from batch_assets.pipeline.checks.frame_contract import CONTRACT
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.validated_frame import ValidatedFrame
from batch_assets.reports.labels import add_labels, find_shifts
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.run_reports import load_earlier_labels

AGREES, LABELS = "agrees_with_completions", "label_distribution"
SHOWN = 10
BATCHES_BEFORE = 10
"""How many batches a batch's labels are compared with, taken together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedResults:
    """The subject: the validated results of a partition, not yet written."""

    platform: Platform
    inputs: PartitionInputs
    validated: ValidatedFrame

    def scan(self) -> pl.LazyFrame:
        """Return the rows, one per accepted answer; the columns are those of `validated_results_schema`."""
        return self.validated.staged.scan()


def list_checks(task: Task) -> Sequence[Check[CheckedResults]]:
    """Return the checks of a task's validated_results."""
    before = f"the variant's last {BATCHES_BEFORE} batches, within {task.thresholds.max_label_shift:.0%} (warns only)"
    return [
        Check(
            asset=VALIDATED_RESULTS,
            name=CONTRACT,
            description="The frame keeps its contract; ids are unique.",
            is_blocking=True,
            run=lambda checked: checked.validated.contract.find(),
        ),
        Check(
            asset=VALIDATED_RESULTS,
            name=AGREES,
            description="Each row's answer is what its stored completion gives when it is judged again.",
            is_blocking=True,
            run=find_disagreeing,
        ),
        Check(
            asset=VALIDATED_RESULTS,
            name=LABELS,
            description=f"The labels are distributed as in {before}.",
            severity=Severity.WARN,
            run=compare_labels,
        ),
    ]


def find_disagreeing(checked: CheckedResults) -> Finding:
    """Refuse rows whose payload isn't what `accept` makes of the stored completion: somebody changed one of them."""
    found = checked.validated.disagreeing
    return Finding(passed=not found, figures={"disagreeing": len(found), "first": Json(list(found[:SHOWN]))})


def compare_labels(checked: CheckedResults) -> Finding:
    """Warn if a field's labels lie too far from those of the batches before, beyond what chance does.

    It compares the shares of this batch's own rows with those of the variant's last ten batches before it, pooled; the
    distance and its part by chance are those of reports.labels. The limit is max_label_shift, and both sides need
    min_records.
    """
    inputs, validated = checked.inputs, checked.validated
    limits = inputs.task.thresholds
    with checked.platform.database.read() as connection:
        earlier = load_earlier_labels(connection, inputs.task.name, inputs.batch, inputs.variant.key, BATCHES_BEFORE)
    records, before = validated.own_rows, sum(accepted for accepted, _ in earlier)
    shifts = find_shifts(validated.labels, add_labels(labels for _, labels in earlier))
    note = ""
    if not shifts:
        note = "nothing to compare with: no labels in this batch, or in those before it"
    elif min(records, before) < limits.min_records:
        note = f"fewer than {limits.min_records} accepted answers, here or before, raise no alarm"
    moved = [s for s in shifts if s.distance - s.by_chance > limits.max_label_shift]
    words = [
        f"{s.field}: {s.label} is {s.share_now:.1%} of the answers, and was {s.share_before:.1%} before"
        for s in moved or shifts[:1]
    ]
    return Finding(
        passed=bool(note) or not moved,
        figures={
            **{f"distance_{s.field}": round(s.distance, 4) for s in shifts},
            **{f"by_chance_{s.field}": round(s.by_chance, 4) for s in shifts},
            **({"most_shifted": "; ".join(words)} if words else {}),
            "limit": limits.max_label_shift,
            "records": records,
            "records_before": before,
            "batches_before": len(earlier),
            **({"note": note} if note else {}),
        },
    )
