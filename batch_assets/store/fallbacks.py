"""The fallback model's answers for quarantined records: which rows they are, and when a partition's are all there."""

import datetime as dt
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.canonical import DIGEST_HEX_DIGITS, exact_json
from batch_assets.core.errors import NotReadyError
from batch_assets.core.identity import data_version
from batch_assets.store.database import now
from batch_assets.store.results import PastAttempt, VariantKey, iterate_accepted, of_variant, own_rows
from batch_assets.store.tables import attempts, fallbacks, item_owner, results

UNASKABLE = (ErrorKind.EMPTY_INPUT, ErrorKind.RENDER)
"""Why a record is quarantined that no model can be asked about."""

SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackState:
    """A finished fallback of an output partition: all its quarantined records have a row of the fallback model."""

    batch: str
    variant: str
    model_id: str
    fingerprint: str
    content: str
    counts: Mapping[str, int]
    run_id: str
    finished_at: dt.datetime

    @property
    def data_version(self) -> str:
        """`<fingerprint>.<content>`."""
        return data_version(self.fingerprint, self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackKey:
    """Whose quarantined records of which batch, and of whom they are asked, under which identity and rules."""

    own: VariantKey
    other: VariantKey
    request_spec: str
    accept_spec: str
    batch: str


def load_fallbacks(connection: sa.Connection, task: str) -> dict[tuple[str, str], FallbackState]:
    """Return all finished fallbacks of a task by (batch, variant)."""
    rows = connection.execute(sa.select(fallbacks).where(fallbacks.c.task == task)).mappings()
    return {(r["batch"], r["variant"]): _state(r) for r in rows}


def load_fallback(connection: sa.Connection, task: str, batch: str, variant: str) -> FallbackState | None:
    """Return one finished fallback, or None."""
    where = (fallbacks.c.task == task, fallbacks.c.batch == batch, fallbacks.c.variant == variant)
    row = connection.execute(sa.select(fallbacks).where(*where)).mappings().first()
    return None if row is None else _state(row)


def load_quarantined(connection: sa.Connection, key: VariantKey, batch: str) -> set[str]:
    """Return the ids of a batch's records that are quarantined and could be asked of another model."""
    c, o = results.c, item_owner.c
    where = (*own_rows(key), c.batch == batch, c.status != Status.OK, c.error_kind.not_in(UNASKABLE))
    owned = sa.select(o.item_id).where(o.task == key.task, o.batch == batch)
    return set(connection.scalars(sa.select(c.item_id).where(*where, c.item_id.in_(owned))))


def select_answers(key: FallbackKey) -> sa.Select[Any]:
    """Return the query of the fallback's rows for a partition's quarantined records, in item_id's order.

    Only rows of the same record, of the fallback's present identity and judged by the present rules count. One row per
    record at most.
    """
    quarantined, answers = results.alias("quarantined"), results
    q = quarantined.c
    own = (q.task == key.own.task, q.prompt_ver == key.own.prompt_ver, q.model_id == key.own.model_id)
    same = sa.and_(
        answers.c.item_id == q.item_id, answers.c.input_hash == q.input_hash, q.status != Status.OK, *own,
        q.is_fallback.is_(False), q.batch == key.batch,
    )  # fmt: skip
    specs = (answers.c.request_spec == key.request_spec, answers.c.accept_spec == key.accept_spec)
    return (
        sa.select(answers)
        .join_from(answers, quarantined, same)
        .where(*of_variant(answers, key.other), *specs)
        .order_by(answers.c.item_id)
    )


def iterate_answers(
    connection: sa.Connection, key: FallbackKey
) -> Iterator[tuple[Mapping[str, Any], PastAttempt | None]]:
    """Yield the fallback's `ok` rows for a partition, each with the attempt that answered, in item_id's order."""
    return iterate_accepted(connection, select_answers(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackFigures:
    """What a partition's fallback cost: all attempts at its rows' present requests. Unknown usage is counted apart."""

    attempts: int
    unknown_usage: int
    prompt_tokens: int
    completion_tokens: int
    engine_s: float


def load_fallback_figures(connection: sa.Connection, key: FallbackKey) -> FallbackFigures:
    """Return what the fallback's answers to a partition's quarantined records have cost, failed attempts too."""
    rows, a = select_answers(key).order_by(None).subquery(), attempts.c
    same = sa.and_(*of_variant(attempts, key.other), a.item_id == rows.c.item_id, a.base_key == rows.c.request_key)
    found = connection.execute(
        sa.select(
            sa.func.count().label("attempts"),
            sa.func.count().filter(a.ended_at.is_not(None), a.prompt_tokens.is_(None)).label("unknown"),
            sa.func.sum(a.prompt_tokens).label("prompt"),
            sa.func.sum(a.completion_tokens).label("completion"),
            sa.func.sum(a.engine_s).label("engine_s"),
        ).select_from(rows.join(attempts, same))
    ).one()
    return FallbackFigures(
        attempts=found.attempts,
        unknown_usage=found.unknown,
        prompt_tokens=found.prompt or 0,
        completion_tokens=found.completion or 0,
        engine_s=found.engine_s or 0.0,
    )


def finish_fallback(
    connection: sa.Connection, key: FallbackKey, variant: str, *, fingerprint: str, run_id: str
) -> FallbackState:
    """Record that every quarantined record of a partition has its fallback's row, in the caller's transaction.

    NotReadyError names those that have none: the batch was frozen anew, or a row has vanished, since it was begun.
    """
    counts = {s.value: 0 for s in Status}
    content = hashlib.sha256()
    left = load_quarantined(connection, key.own, key.batch)
    for row in connection.execute(select_answers(key)).mappings():
        left.discard(row["item_id"])
        counts[row["status"]] += 1
        content.update(exact_json([row["item_id"], row["status"], row["payload"]]).encode("utf-8", "surrogatepass"))
    if left:
        words = "1 quarantined record has" if len(left) == 1 else f"{len(left)} quarantined records have"
        first = ", ".join(sorted(left)[:SHOWN])
        raise NotReadyError(
            f"{key.batch}|{variant}: {words} no row of {key.other.model_id}: {first}: the batch or a row changed "
            "meanwhile; the next run asks what is missing"
        )
    where = (fallbacks.c.task == key.own.task, fallbacks.c.batch == key.batch, fallbacks.c.variant == variant)
    connection.execute(sa.delete(fallbacks).where(*where))
    connection.execute(
        sa.insert(fallbacks).values(
            task=key.own.task,
            batch=key.batch,
            variant=variant,
            model_id=key.other.model_id,
            fingerprint=fingerprint,
            content=content.hexdigest()[:DIGEST_HEX_DIGITS],
            counts=counts,
            run_id=run_id,
            finished_at=now(),
        )
    )
    return _state(connection.execute(sa.select(fallbacks).where(*where)).mappings().one())


def _state(row: sa.RowMapping) -> FallbackState:
    names = ("batch", "variant", "model_id", "fingerprint", "content", "counts", "run_id", "finished_at")
    return FallbackState(**{n: row[n] for n in names})
