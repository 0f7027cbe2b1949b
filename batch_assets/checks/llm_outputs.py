"""Checks of llm_outputs: every record accounted for, keys unique, shares of errors and invalid answers."""

from collections.abc import Iterable, Sequence

import dagster as dg
import polars as pl
import sqlalchemy as sa

from batch_assets.asset_keys import LLM_OUTPUTS
from batch_assets.assets.events import Finding
from batch_assets.assets.llm_outputs import OutputCheck
from batch_assets.checks.specs import build_spec
from batch_assets.core.tasks import Task, Thresholds
from batch_assets.reports.run_report import RunReport
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.sources.base import ITEM_ID
from batch_assets.store.results import load_foreign, own_rows
from batch_assets.store.tables import results

ACCOUNTED, KEYS_UNIQUE = "every_record_accounted", "keys_unique"
ERROR_SHARE, INVALID_SHARE = "error_share", "invalid_share"
SHOWN = 10
ROWS_AT_ONCE, ROWS_JOINED = 10_000, 50_000


def build_checks(task: Task) -> tuple[Sequence[dg.AssetCheckSpec], Sequence[OutputCheck]]:
    """Return the checks of a task's llm_outputs: specs and what they do."""
    limits = task.thresholds
    words = "Each source id has a row and each row a source id (anti-join both ways)."
    errors = f"At most {limits.max_error_share:.1%} of the records are errors"
    invalid = f"At most {limits.max_invalid_share:.1%} of the answers are invalid"
    floor = f", from {limits.min_records} records on" + (
        "; else results are held back." if limits.hold_results else "."
    )
    specs = [
        build_spec(task, LLM_OUTPUTS, ACCOUNTED, words, is_blocking=True),
        build_spec(task, LLM_OUTPUTS, KEYS_UNIQUE, "No record has two rows.", is_blocking=True),
        build_spec(task, LLM_OUTPUTS, ERROR_SHARE, errors + floor, is_blocking=limits.hold_results),
        build_spec(task, LLM_OUTPUTS, INVALID_SHARE, invalid + floor, is_blocking=limits.hold_results),
    ]
    return specs, [check_accounted, check_keys, check_error_share, check_invalid_share]


def build_gates(task: Task) -> Sequence[OutputCheck]:
    """Return the checks that keep a partition's results from going downstream: the blocking ones of its specs."""
    shares = [check_error_share, check_invalid_share] if task.thresholds.hold_results else []
    return [check_accounted, check_keys, *shares]


def check_accounted(_platform: Platform, work: PartitionWork, _report: RunReport) -> Finding:
    """Join source ids and rows both ways, from the frozen frame itself; never by subtraction of counts."""
    expected: list[pl.DataFrame] = []
    with _platform.database.read() as connection:
        for records in work.read():
            ids = [r.item_id for r in records]
            foreign = load_foreign(connection, work.task.name, work.batch, ids)
            expected.append(make_column(i for i in ids if i not in foreign))
        rows = connection.execute(_select_ids(work), execution_options={"yield_per": ROWS_AT_ONCE})
        found = pl.concat([make_column([]), *(make_column(row[0] for row in part) for part in rows.partitions())])
    source = pl.concat([make_column([]), *expected])
    without_row, without_source = subtract(source, found), subtract(found, source)
    return Finding(
        name=ACCOUNTED,
        passed=not without_row and not without_source,
        is_blocking=True,
        metadata={
            "records": source.height,
            "records_without_row": len(without_row),
            "rows_without_record": len(without_source),
            "first": dg.MetadataValue.json(
                {"without_row": without_row[:SHOWN], "without_record": without_source[:SHOWN]}
            ),
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


def check_keys(platform: Platform, work: PartitionWork, _report: RunReport) -> Finding:
    """Look for records with two rows. The primary key forbids them; this sees a store whose key was dropped."""
    ids = _select_ids(work).subquery()
    doubled = sa.select(ids.c.item_id).group_by(ids.c.item_id).having(sa.func.count() > 1)
    with platform.database.read() as connection:
        found = list(connection.scalars(doubled.order_by(ids.c.item_id)))
    return Finding(
        name=KEYS_UNIQUE,
        passed=not found,
        is_blocking=True,
        metadata={"doubled_keys": len(found), "first": dg.MetadataValue.json(found[:SHOWN])},
    )


def check_error_share(_platform: Platform, work: PartitionWork, report: RunReport) -> Finding:
    """Hold the share of errors to the task's limit."""
    limits = work.task.thresholds
    return _check_share(ERROR_SHARE, report.error_share, report.total, limits.max_error_share, limits)


def check_invalid_share(_platform: Platform, work: PartitionWork, report: RunReport) -> Finding:
    """Hold the share of invalid answers to the task's limit."""
    limits = work.task.thresholds
    return _check_share(INVALID_SHARE, report.invalid_share, report.total, limits.max_invalid_share, limits)


def _check_share(name: str, share: float, records: int, limit: float, limits: Thresholds) -> Finding:
    is_too_small = records < limits.min_records
    return Finding(
        name=name,
        passed=is_too_small or share <= limit,
        is_blocking=limits.hold_results,
        metadata={
            "share": round(share, 6),
            "limit": limit,
            "records": records,
            **({"note": f"fewer than {limits.min_records} records raise no alarm"} if is_too_small else {}),
        },
    )


def _select_ids(work: PartitionWork) -> sa.Select[str]:
    return sa.select(results.c.item_id).where(*own_rows(work.key), results.c.batch == work.batch)
