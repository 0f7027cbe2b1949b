"""Checks of source_records."""

from collections.abc import Sequence

import dagster as dg

from batch_assets.asset_keys import SOURCE_RECORDS
from batch_assets.assets.events import Finding
from batch_assets.assets.source_records import SourceCheck
from batch_assets.checks.contracts import CONTRACT, check_contract
from batch_assets.checks.specs import build_spec
from batch_assets.core.tasks import Task
from batch_assets.reports.markdown import as_code
from batch_assets.schemas import source_records_schema
from batch_assets.sources.base import SourceBatch
from batch_assets.works import used_fields

LINES_READABLE = "lines_readable"
SHOWN = 10


def build_checks(task: Task) -> tuple[Sequence[dg.AssetCheckSpec], Sequence[SourceCheck]]:
    """Return the checks of a task's source_records: specs and what they do."""
    schema = source_records_schema(tuple(used_fields(task)))
    specs = [
        build_spec(task, SOURCE_RECORDS, CONTRACT, "The frame keeps its contract; ids are unique.", is_blocking=True),
        build_spec(task, SOURCE_RECORDS, LINES_READABLE, "No line was set aside as malformed."),
    ]
    return specs, [lambda read: check_contract(read.frame, schema), check_lines]


def check_lines(read: SourceBatch) -> Finding:
    """Warn of lines that were set aside: they are in no count of records. Cleaned values are told, and are records."""
    return Finding(
        name=LINES_READABLE,
        passed=not read.malformed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "malformed_lines": len(read.malformed),
            "first": _list_lines(read.malformed),
            "cleaned_values": len(read.cleaned),
            "first_cleaned": _list_lines(read.cleaned),
        },
    )


def _list_lines(lines: Sequence[tuple[int, str]]) -> dg.MetadataValue:
    return dg.MetadataValue.md("\n".join(f"- line {n}: {as_code(why)}" for n, why in lines[:SHOWN]) or "none")
