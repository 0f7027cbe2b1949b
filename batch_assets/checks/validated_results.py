"""Checks of validated_results."""

from collections.abc import Sequence

import dagster as dg

from batch_assets.asset_keys import VALIDATED_RESULTS
from batch_assets.assets.events import Finding
from batch_assets.assets.results import ResultCheck
from batch_assets.assets.run_reports import load_earlier_labels
from batch_assets.assets.validated_results import Validated
from batch_assets.checks.contracts import CONTRACT, check_contract
from batch_assets.checks.specs import build_spec
from batch_assets.core.tasks import Task
from batch_assets.reports.labels import add_labels, find_shifts
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.schemas import validated_results_schema

AGREES, LABELS = "agrees_with_completions", "label_distribution"
SHOWN = 10
BATCHES_BEFORE = 10
"""How many batches a batch's labels are compared with, taken together."""


def build_checks(task: Task) -> tuple[Sequence[dg.AssetCheckSpec], Sequence[ResultCheck]]:
    """Return the checks of a task's validated_results: specs and what they do."""
    schema = validated_results_schema(task.output)
    words = "Each row's answer is what its stored completion gives when it is judged again."
    before = f"the variant's last {BATCHES_BEFORE} batches, within {task.thresholds.max_label_shift:.0%} (warns only)"
    specs = [
        build_spec(
            task, VALIDATED_RESULTS, CONTRACT, "The frame keeps its contract; ids are unique.", is_blocking=True
        ),
        build_spec(task, VALIDATED_RESULTS, AGREES, words, is_blocking=True),
        build_spec(task, VALIDATED_RESULTS, LABELS, f"The labels are distributed as in {before}."),
    ]

    def check_frame(_platform: Platform, _work: PartitionWork, made: Validated) -> Finding:
        return check_contract(made.frame, schema)

    return specs, [check_frame, check_agreement, check_labels]


def check_agreement(_platform: Platform, _work: PartitionWork, made: Validated) -> Finding:
    """Refuse rows whose payload isn't what `accept` makes of the stored completion: somebody changed one of them."""
    return Finding(
        name=AGREES,
        passed=not made.disagreeing,
        is_blocking=True,
        metadata={"disagreeing": len(made.disagreeing), "first": dg.MetadataValue.json(list(made.disagreeing[:SHOWN]))},
    )


def check_labels(platform: Platform, work: PartitionWork, made: Validated) -> Finding:
    """Warn where a field's labels lie too far from those of the batches before, beyond what chance does.

    Compared are the shares of this batch with those of the variant's last ten batches before it, pooled; the distance
    and its part by chance are those of reports.labels. The limit is max_label_shift, and both sides need min_records.
    """
    limits = work.task.thresholds
    earlier = load_earlier_labels(platform, work, BATCHES_BEFORE)
    records, before = made.frame.height, sum(accepted for accepted, _ in earlier)
    shifts = find_shifts(made.labels, add_labels(labels for _, labels in earlier))
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
        name=LABELS,
        passed=bool(note) or not moved,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
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
