"""Checks of source_records. Their subject is a batch as it was read."""

from collections.abc import Sequence

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.checks import Check, Finding
from batch_assets.core.outcomes import Markdown, Severity
from batch_assets.core.tasks import Task
from batch_assets.pipeline.checks.frame_contract import CONTRACT, hold_to_contract
from batch_assets.pipeline.frame_schemas import source_records_schema
from batch_assets.reports.markdown import as_code
from batch_assets.sources.base import SourceBatch

LINES_READABLE = "lines_readable"
SHOWN = 10


def list_checks(task: Task) -> Sequence[Check[SourceBatch]]:
    """Return the checks of a task's source_records."""
    schema = source_records_schema(tuple(task.used_fields))
    return [
        Check(
            asset=SOURCE_RECORDS,
            name=CONTRACT,
            description="The frame keeps its contract; ids are unique.",
            is_blocking=True,
            run=lambda batch: hold_to_contract(batch.frame, schema),
        ),
        Check(
            asset=SOURCE_RECORDS,
            name=LINES_READABLE,
            description="No line was set aside as malformed.",
            severity=Severity.WARN,
            run=count_lines,
        ),
    ]


def count_lines(batch: SourceBatch) -> Finding:
    """Warn of lines that were set aside: no count of records has them. Cleaned values are listed, and are records."""
    return Finding(
        passed=not batch.malformed,
        figures={
            "malformed_lines": len(batch.malformed),
            "first": _list_lines(batch.malformed),
            "cleaned_values": len(batch.cleaned),
            "first_cleaned": _list_lines(batch.cleaned),
        },
    )


def _list_lines(lines: Sequence[tuple[int, str]]) -> Markdown:
    return Markdown("\n".join(f"- line {n}: {as_code(why)}" for n, why in lines[:SHOWN]) or "none")
