"""Checks of llm_outputs: every record accounted for, keys unique, shares of errors and invalid answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from batch_assets.core.asset_names import LLM_OUTPUTS
from batch_assets.core.checks import Check, Finding
from batch_assets.core.outcomes import Json
from batch_assets.core.tasks import Task, Thresholds
from batch_assets.pipeline.platform import Platform
from batch_assets.reports.run_report import RunReport
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.sources.base import ITEM_ID
from batch_assets.store.results import iterate_own_ids, load_doubled_ids, load_foreign

ACCOUNTED, KEYS_UNIQUE = "every_record_accounted", "keys_unique"
ERROR_SHARE, INVALID_SHARE = "error_share", "invalid_share"
SHOWN = 10
ROWS_JOINED = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOutput:
    """The subject: a finished output partition, with its report."""

    platform: Platform
    inputs: PartitionInputs
    report: RunReport


def list_checks(task: Task) -> Sequence[Check[CheckedOutput]]:
    """Return the checks of a task's llm_outputs. The blocking ones are the gates: they hold results back."""
    limits = task.thresholds
    floor = f", from {limits.min_records} records on" + (
        "; else results are held back." if limits.hold_results else "."
    )
    return [
        Check(
            asset=LLM_OUTPUTS,
            name=ACCOUNTED,
            description="Each source id has a row and each row a source id (anti-join both ways).",
            is_blocking=True,
            run=account_for_records,
        ),
        Check(
            asset=LLM_OUTPUTS,
            name=KEYS_UNIQUE,
            description="No record has two rows.",
            is_blocking=True,
            run=find_doubled_keys,
        ),
        Check(
            asset=LLM_OUTPUTS,
            name=ERROR_SHARE,
            description=f"At most {limits.max_error_share:.1%} of the records are errors{floor}",
            is_blocking=limits.hold_results,
            run=lambda c: _hold_to_limit(c.report.error_share, c.report.total, limits.max_error_share, limits),
        ),
        Check(
            asset=LLM_OUTPUTS,
            name=INVALID_SHARE,
            description=f"At most {limits.max_invalid_share:.1%} of the answers are invalid{floor}",
            is_blocking=limits.hold_results,
            run=lambda c: _hold_to_limit(c.report.invalid_share, c.report.total, limits.max_invalid_share, limits),
        ),
    ]


def account_for_records(checked: CheckedOutput) -> Finding:
    """Join source ids and rows both ways, from the frozen frame itself; never by subtraction of counts."""
    inputs = checked.inputs
    expected: list[pl.DataFrame] = []
    with checked.platform.database.read() as connection:
        for records in inputs.read():
            ids = [r.item_id for r in records]
            foreign = load_foreign(connection, inputs.task.name, inputs.batch, ids)
            expected.append(make_column(i for i in ids if i not in foreign))
        rows = iterate_own_ids(connection, inputs.key, inputs.batch)
        found = pl.concat([make_column([]), *(make_column(part) for part in rows)])
    source = pl.concat([make_column([]), *expected])
    without_row, without_source = subtract(source, found), subtract(found, source)
    return Finding(
        passed=not without_row and not without_source,
        figures={
            "records": source.height,
            "records_without_row": len(without_row),
            "rows_without_record": len(without_source),
            "first": Json({"without_row": without_row[:SHOWN], "without_record": without_source[:SHOWN]}),
        },
    )


def make_column(ids: Iterable[str]) -> pl.DataFrame:
    """Return ids as a column: a million take 20 MB there, 100 MB as a set."""
    return pl.DataFrame({ITEM_ID: list(ids)}, schema={ITEM_ID: pl.String})


def subtract(ids: pl.DataFrame, others: pl.DataFrame) -> list[str]:
    """Return the ids that aren't among the others, sorted. Joined in parts: a join takes ten times what it joins."""
    parts = 1 + ids.height // ROWS_JOINED
    place = pl.col(ITEM_ID).hash(seed=0) % parts
    left = [ids.filter(place == n).join(others.filter(place == n), on=ITEM_ID, how="anti") for n in range(parts)]
    return pl.concat(left)[ITEM_ID].unique().sort().to_list()


def find_doubled_keys(checked: CheckedOutput) -> Finding:
    """Look for records with two rows. The primary key forbids them; this sees a store whose key was dropped."""
    with checked.platform.database.read() as connection:
        found = load_doubled_ids(connection, checked.inputs.key, checked.inputs.batch)
    return Finding(passed=not found, figures={"doubled_keys": len(found), "first": Json(found[:SHOWN])})


def _hold_to_limit(share: float, records: int, limit: float, limits: Thresholds) -> Finding:
    is_too_small = records < limits.min_records
    return Finding(
        passed=is_too_small or share <= limit,
        figures={
            "share": round(share, 6),
            "limit": limit,
            "records": records,
            **({"note": f"fewer than {limits.min_records} records raise no alarm"} if is_too_small else {}),
        },
    )
