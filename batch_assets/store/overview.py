"""What the command line tells of the store: a task at a glance, and everything about one record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from batch_assets.store.results import VariantKey, own_rows
from batch_assets.store.tables import attempts, item_owner, results, run_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantStatus:
    """One variant of a task: its rows by status, and the records that have none.

    With `is_fallback` the rows that a model has for others' quarantined records: none of those is pending here.
    """

    prompt_ver: str
    model_id: str
    ok: int
    invalid: int
    error: int
    pending: int
    is_fallback: bool = False
    reasons: Mapping[str, "ReasonCount"] = field(default_factory=dict[str, "ReasonCount"])
    """Why rows are not ok, by `<status>/<error_kind>`, the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How many rows of a variant have a reason, and the first record of them."""

    records: int
    first: str


def load_status(connection: sa.Connection, task: str, variants: Sequence[tuple[str, str]]) -> list[VariantStatus]:
    """Return a line for each of `variants`, (prompt_ver, model_id). Pending is found by anti-join."""
    c = results.c
    query = sa.select(c.prompt_ver, c.model_id, c.status, sa.func.count())
    rows = connection.execute(
        query.where(c.task == task, c.batch.is_not(None), c.is_fallback.is_(False)).group_by(
            c.prompt_ver, c.model_id, c.status
        )
    ).tuples()
    found: dict[tuple[str, str], dict[str, int]] = {}
    for prompt_ver, model_id, status, count in rows:
        found.setdefault((prompt_ver, model_id), {})[status] = count
    reasons = _load_reasons(connection, task, is_fallback=False)
    return [
        VariantStatus(
            prompt_ver=prompt_ver,
            model_id=model_id,
            ok=counts.get("ok", 0),
            invalid=counts.get("invalid", 0),
            error=counts.get("error", 0),
            pending=_count_pending(connection, task, prompt_ver, model_id),
            reasons=reasons.get((prompt_ver, model_id), {}),
        )
        for prompt_ver, model_id in variants
        for counts in [found.get((prompt_ver, model_id), {})]
    ]


def load_fallback_status(connection: sa.Connection, task: str) -> list[VariantStatus]:
    """Return a line for each prompt version and model that answered others' quarantined records."""
    c = results.c
    query = sa.select(c.prompt_ver, c.model_id, c.status, sa.func.count())
    rows = connection.execute(
        query.where(c.task == task, c.batch.is_not(None), c.is_fallback)
        .group_by(c.prompt_ver, c.model_id, c.status)
        .order_by(c.prompt_ver, c.model_id)
    ).tuples()
    found: dict[tuple[str, str], dict[str, int]] = {}
    for prompt_ver, model_id, status, count in rows:
        found.setdefault((prompt_ver, model_id), {"ok": 0, "invalid": 0, "error": 0})[status] = count
    reasons = _load_reasons(connection, task, is_fallback=True)
    return [
        VariantStatus(
            prompt_ver=prompt_ver,
            model_id=model_id,
            pending=0,
            is_fallback=True,
            reasons=reasons.get((prompt_ver, model_id), {}),
            **counts,
        )
        for (prompt_ver, model_id), counts in found.items()
    ]


def _load_reasons(
    connection: sa.Connection, task: str, *, is_fallback: bool
) -> dict[tuple[str, str], dict[str, ReasonCount]]:
    c = results.c
    count = sa.func.count()
    rows = connection.execute(
        sa.select(c.prompt_ver, c.model_id, c.status, c.error_kind, count, sa.func.min(c.item_id))
        .where(c.task == task, c.batch.is_not(None), c.is_fallback.is_(is_fallback), c.status != "ok")
        .group_by(c.prompt_ver, c.model_id, c.status, c.error_kind)
        .order_by(count.desc(), c.status, c.error_kind)
    ).tuples()
    found: dict[tuple[str, str], dict[str, ReasonCount]] = {}
    for prompt_ver, model_id, status, kind, records, first in rows:
        found.setdefault((prompt_ver, model_id), {})[f"{status}/{kind}"] = ReasonCount(records=records, first=first)
    return found


def _count_pending(connection: sa.Connection, task: str, prompt_ver: str, model_id: str) -> int:
    o, r = item_owner.c, results.c
    key = VariantKey(task=task, prompt_ver=prompt_ver, model_id=model_id)
    same = sa.and_(*own_rows(key), r.item_id == o.item_id)
    query = sa.select(sa.func.count()).select_from(item_owner.outerjoin(results, same))
    return connection.scalar(query.where(o.task == task, r.item_id.is_(None))) or 0


def load_record(connection: sa.Connection, task: str, item_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows and attempts of one record, oldest first, and the batches that hold it."""
    rows = connection.execute(
        sa.select(results)
        .where(results.c.task == task, results.c.item_id == item_id)
        .order_by(results.c.prompt_ver, results.c.model_id)
    ).mappings()
    tries = connection.execute(
        sa.select(attempts)
        .where(attempts.c.task == task, attempts.c.item_id == item_id)
        .order_by(attempts.c.attempt_id)
    ).mappings()
    owners = connection.execute(
        sa.select(item_owner.c.batch).where(item_owner.c.task == task, item_owner.c.item_id == item_id)
    ).mappings()
    return {
        "results": [dict(r) for r in rows],
        "attempts": [dict(t) for t in tries],
        "batches": [dict(o) for o in owners],
    }


def load_reports(connection: sa.Connection, task: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the figures of all run reports of a task by (batch, variant)."""
    rows = connection.execute(sa.select(run_reports).where(run_reports.c.task == task)).mappings()
    return {(r["batch"], r["variant"]): r["figures"] for r in rows}
