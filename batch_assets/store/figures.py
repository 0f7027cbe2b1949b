"""What the reports are made of: a partition's rows and attempts, aggregated where the database can."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.store.results import VariantKey, own_rows
from batch_assets.store.tables import attempts, batches, results


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFigures:
    """Sums over a partition as it is now: the attempts at its rows' present requests, failed ones and steps too.

    Attempts at an earlier prompt or text of the same records stay in llm_attempts and are not counted here. Attempts of
    unknown usage are counted apart: unknown is not 0.
    """

    ok: int
    invalid: int
    error: int
    reused: int
    superseded: int
    error_kinds: Mapping[str, int]
    attempts: int
    asked_records: int
    unknown_usage: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    engine_s: float
    latencies_s: Sequence[float]


def load_figures(connection: sa.Connection, key: VariantKey, batch: str) -> RawFigures:
    """Return the raw figures of one output partition."""
    r, a = results.c, attempts.c
    mine = (*own_rows(key), r.batch == batch)
    by_status = dict(
        connection.execute(sa.select(r.status, sa.func.count()).where(*mine).group_by(r.status)).tuples().all()
    )
    kinds = connection.execute(
        sa.select(r.error_kind, sa.func.count()).where(*mine, r.error_kind.is_not(None)).group_by(r.error_kind)
    ).tuples()
    reused = connection.scalar(sa.select(sa.func.count()).where(*mine, r.reused_from.is_not(None)))
    at_present = sa.and_(
        a.task == r.task,
        a.item_id == r.item_id,
        a.prompt_ver == r.prompt_ver,
        a.model_id == r.model_id,
        a.base_key == r.request_key,
    )
    tried = results.join(attempts, at_present)
    sums = connection.execute(
        sa.select(
            sa.func.count().label("attempts"),
            sa.func.count(sa.distinct(a.item_id)).label("asked"),
            sa.func.count().filter(a.ended_at.is_not(None), a.prompt_tokens.is_(None)).label("unknown"),
            sa.func.sum(a.prompt_tokens).label("prompt"),
            sa.func.sum(a.completion_tokens).label("completion"),
            sa.func.sum(a.cached_tokens).label("cached"),
            sa.func.sum(a.engine_s).label("engine_s"),
        )
        .select_from(tried)
        .where(*mine)
    ).one()
    latencies = connection.scalars(
        sa.select(a.latency_s).select_from(tried).where(*mine, a.latency_s.is_not(None))
    ).all()
    where = (batches.c.task == key.task, batches.c.batch == batch)
    superseded = connection.scalar(sa.select(batches.c.superseded).where(*where))
    return RawFigures(
        ok=by_status.get("ok", 0),
        invalid=by_status.get("invalid", 0),
        error=by_status.get("error", 0),
        reused=reused or 0,
        superseded=superseded or 0,
        error_kinds={str(kind): n for kind, n in kinds},
        attempts=sums.attempts,
        asked_records=sums.asked,
        unknown_usage=sums.unknown,
        prompt_tokens=sums.prompt or 0,
        completion_tokens=sums.completion or 0,
        cached_tokens=sums.cached or 0,
        engine_s=sums.engine_s or 0.0,
        latencies_s=[float(v) for v in latencies if v is not None],
    )


def load_quarantine(
    connection: sa.Connection, key: VariantKey, batch: str, answered: Set[str], limit: int
) -> tuple[dict[str, int], list[tuple[str, str, str, str]]]:
    """Return what of a partition is quarantined, without the ids that the fallback has answered.

    How many there are by error_kind, and the first of them: item_id, status, error_kind, error.
    """
    c = results.c
    query = sa.select(c.item_id, c.status, c.error_kind, c.error).where(
        *own_rows(key), c.batch == batch, c.status != "ok"
    )  # fmt: skip
    kinds: Counter[str] = Counter()
    first: list[tuple[str, str, str, str]] = []
    rows = connection.execute(query.order_by(c.item_id), execution_options={"yield_per": 5000}).tuples()
    for item_id, status, kind, error in rows:
        if item_id in answered:
            continue
        kinds[str(kind)] += 1
        if len(first) < limit:
            first.append((item_id, status, str(kind), error or ""))
    return dict(kinds), first


def load_failures(
    connection: sa.Connection, key: VariantKey, batch: str, limit: int
) -> list[tuple[str, str, str, str]]:
    """Return the first results of a partition that are not `ok`: item_id, status, error_kind, error."""
    c = results.c
    mine = (*own_rows(key), c.batch == batch)
    query = sa.select(c.item_id, c.status, c.error_kind, c.error).where(*mine, c.status != "ok")
    rows = connection.execute(query.order_by(c.item_id).limit(limit)).tuples()
    return [(str(i), str(s), str(k), str(e or "")) for i, s, k, e in rows]
