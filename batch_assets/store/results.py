"""Result rows and attempts: reading what is known of records, and the one transaction that writes a group."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from batch_assets.core.attempts import ErrorKind, RetryMode, Status
from batch_assets.core.classification import RowState
from batch_assets.core.completions import Completion, Usage, keep, make_storable
from batch_assets.core.names import variant_key
from batch_assets.store.tables import attempts, item_owner, results

MAX_IN_LIST = 500
"""Values in one IN list: below every database's limit, above what a prepared chunk holds."""

ROWS_AT_ONCE = 10_000

MAX_TOKENS = 2**31 - 1
"""What the columns hold. A server that says more is not believed; its answer and its neighbours commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantKey:
    """Which rows: those of one variant of one task."""

    task: str
    prompt_ver: str
    model_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One attempt from the store. `completion` is None if there was no answer."""

    attempt_id: str
    item_id: str
    request_key: str
    base_key: str
    ladder_step: int
    attempt: int
    is_alone: bool
    is_ended: bool
    outcome: str | None
    error_kind: ErrorKind | None
    error: str | None
    completion: Completion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Written before a request leaves; without an end it is a death. `base_key` is that of the ladder's first step."""

    attempt_id: str
    key: VariantKey
    item_id: str
    batch: str
    request_key: str
    base_key: str
    ladder_step: int
    attempt: int
    is_alone: bool
    parameters: Mapping[str, object]
    run_id: str
    started_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of an attempt. `outcome` is ok, invalid, error, or released (given back unanswered)."""

    attempt_id: str
    outcome: str
    ended_at: dt.datetime
    completion: Completion | None = None
    engine_s: float | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row of `llm_batch_results`; `request_key` is that of the ladder's first step, whatever step answered."""

    key: VariantKey
    item_id: str
    batch: str
    status: Status
    payload: Mapping[str, Any] | None
    error_kind: ErrorKind | None
    error: str | None
    attempts: int
    input_hash: str
    request_spec: str
    accept_spec: str
    request_key: str | None
    attempt_id: str | None
    reused_from: str | None
    run_id: str
    ladder_step: int = 0
    is_fallback: bool = False
    owner: str = ""
    """Not stored: the key of the variant whose partition is worked on, of a fallback another one; empty: the row's."""
    updated_at: dt.datetime


@dataclass(slots=True)
class Group:
    """What is committed together."""

    endings: list[Ending] = field(default_factory=list[Ending])
    results: list[Result] = field(default_factory=list[Result])
    claims: list[Claim] = field(default_factory=list[Claim])

    def __bool__(self) -> bool:
        return bool(self.endings or self.results or self.claims)


def in_chunks(values: Iterable[str], size: int = MAX_IN_LIST) -> Iterator[list[str]]:
    """Yield `values` in lists that fit into one IN list."""
    chunk: list[str] = []
    for value in values:
        chunk.append(value)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def load_states(connection: sa.Connection, key: VariantKey, item_ids: Sequence[str]) -> dict[str, RowState]:
    """Return the result rows of `item_ids` for a variant, by item_id; pending ones are absent."""
    c = results.c
    columns = (c.item_id, c.status, c.input_hash, c.request_spec, c.accept_spec, c.request_key, c.attempt_id)
    found: dict[str, RowState] = {}
    for chunk in in_chunks(item_ids):
        rows = connection.execute(
            sa.select(*columns, c.attempts, c.error_kind, c.error, c.ladder_step, c.is_fallback, c.reused_from).where(
                *of_variant(results, key), c.item_id.in_(chunk)
            )
        )
        for row in rows.mappings():
            found[row["item_id"]] = RowState(
                status=Status(row["status"]),
                error_kind=_kind(row["error_kind"]),
                **{k: v for k, v in row.items() if k not in {"item_id", "status", "error_kind"}},
            )
    return found


def count_retried(connection: sa.Connection, task: str, retry: RetryMode) -> dict[tuple[str, str], int]:
    """Return how many own rows a retry mode selects, by (batch, variant); partitions without any are absent."""
    c = results.c
    if retry is RetryMode.NONE:
        return {}
    rows = connection.execute(
        sa.select(c.batch, c.prompt_ver, c.model_id, c.status, c.error_kind, sa.func.count())
        .where(c.task == task, c.batch.is_not(None), c.is_fallback.is_(False))
        .group_by(c.batch, c.prompt_ver, c.model_id, c.status, c.error_kind)
    ).tuples()
    found: dict[tuple[str, str], int] = {}
    for batch, prompt_ver, model_id, status, error_kind, count in rows:
        if retry.selects(Status(status), _kind(error_kind)):
            key = (batch, variant_key(prompt_ver, model_id))
            found[key] = found.get(key, 0) + count
    return found


def load_history(connection: sa.Connection, key: VariantKey, item_ids: Sequence[str]) -> dict[str, list[PastAttempt]]:
    """Return all attempts that records had for a variant, oldest first, by item_id."""
    found: dict[str, list[PastAttempt]] = {}
    for chunk in in_chunks(item_ids):
        rows = connection.execute(
            sa.select(attempts)
            .where(*of_variant(attempts, key), attempts.c.item_id.in_(chunk))
            .order_by(attempts.c.attempt_id)
        )
        for row in rows.mappings():
            found.setdefault(row["item_id"], []).append(_past_attempt(row))
    return found


def find_answers(
    connection: sa.Connection, request_keys: Sequence[str], run_id: str | None = None
) -> dict[str, PastAttempt]:
    """Return the newest `ok` attempt of each request key, of any record, batch or task; keys without one are absent.

    With a `run_id`, only attempts of that run count.
    """
    found: dict[str, PastAttempt] = {}
    of_run = () if run_id is None else (attempts.c.run_id == run_id,)
    for chunk in in_chunks(request_keys):
        rows = connection.execute(
            sa.select(attempts)
            .where(attempts.c.request_key.in_(chunk), attempts.c.outcome == Status.OK, *of_run)
            .order_by(attempts.c.attempt_id)
        )
        for row in rows.mappings():
            found[row["request_key"]] = _past_attempt(row)
    return found


def load_attempts(connection: sa.Connection, attempt_ids: Iterable[str]) -> dict[str, PastAttempt]:
    """Return attempts by their ids."""
    found: dict[str, PastAttempt] = {}
    for chunk in in_chunks(attempt_ids):
        rows = connection.execute(sa.select(attempts).where(attempts.c.attempt_id.in_(chunk)))
        for row in rows.mappings():
            found[row["attempt_id"]] = _past_attempt(row)
    return found


def iterate_own_ids(connection: sa.Connection, key: VariantKey, batch: str) -> Iterator[list[str]]:
    """Yield the item_ids of a partition's own rows, in lists."""
    query = sa.select(results.c.item_id).where(*own_rows(key), results.c.batch == batch)
    rows = connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE})
    for part in rows.partitions():
        yield [row[0] for row in part]


def load_doubled_ids(connection: sa.Connection, key: VariantKey, batch: str) -> list[str]:
    """Return the item_ids of which a partition has several own rows, sorted."""
    own = sa.select(results.c.item_id).where(*own_rows(key), results.c.batch == batch).subquery()
    doubled = sa.select(own.c.item_id).group_by(own.c.item_id).having(sa.func.count() > 1)
    return list(connection.scalars(doubled.order_by(own.c.item_id)))


def iterate_accepted(
    connection: sa.Connection, query: sa.Select[Any]
) -> Iterator[tuple[Mapping[str, Any], PastAttempt | None]]:
    """Yield the `ok` rows of a query over `results`, each with the attempt that answered, in item_id's order.

    The order is that of code points, as Python sorts text; a few hundred rows are held at a time.
    """
    is_sqlite = connection.dialect.name == "sqlite"  # which orders text by code points anyway
    order = results.c.item_id if is_sqlite else sa.collate(results.c.item_id, "C")
    ok = query.where(results.c.status == Status.OK).order_by(None).order_by(order)
    rows = connection.execute(ok, execution_options={"yield_per": MAX_IN_LIST}).mappings()
    for part in rows.partitions():
        past = load_attempts(connection, {row["attempt_id"] for row in part if row["attempt_id"]})
        for row in part:
            yield dict(row), past.get(row["attempt_id"])


def iterate_own(
    connection: sa.Connection, key: VariantKey, batch: str
) -> Iterator[tuple[Mapping[str, Any], PastAttempt | None]]:
    """Yield a partition's own `ok` rows, each with the attempt that answered, as `iterate_accepted` does."""
    return iterate_accepted(connection, sa.select(results).where(*own_rows(key), results.c.batch == batch))


def load_foreign(connection: sa.Connection, task: str, batch: str, item_ids: Sequence[str]) -> set[str]:
    """Return those of `item_ids` that a later batch owns."""
    found: set[str] = set()
    for chunk in in_chunks(item_ids):
        where = (item_owner.c.task == task, item_owner.c.item_id.in_(chunk), item_owner.c.batch != batch)
        found.update(connection.scalars(sa.select(item_owner.c.item_id).where(*where)))
    return found


def write_group(connection: sa.Connection, group: Group) -> None:
    """Write claims, ends and results in the caller's transaction.

    An existing row is replaced only if a hash differs, it isn't `ok`, or the new one is `ok` as well: an `ok` never
    becomes non-`ok` under the same hashes.
    """
    if group.endings:
        bound = sa.update(attempts).where(attempts.c.attempt_id == sa.bindparam("b_attempt_id"))
        connection.execute(bound, [_ending_values(e) for e in group.endings])
    if group.results:
        connection.execute(_upsert_results(connection.dialect.name), [_result_values(r) for r in group.results])
    if group.claims:
        connection.execute(sa.insert(attempts), [_claim_values(c) for c in group.claims])


def of_variant(table: sa.Table, key: VariantKey) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that choose a variant's rows."""
    c = table.c
    return (c.task == key.task, c.prompt_ver == key.prompt_ver, c.model_id == key.model_id)


def own_rows(key: VariantKey) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that choose a variant's own results: not those made for another's quarantine."""
    return (*of_variant(results, key), results.c.is_fallback.is_(False))


def _kind(value: str | None) -> ErrorKind | None:
    return None if value is None else ErrorKind(value)


def _past_attempt(row: sa.RowMapping) -> PastAttempt:
    text: str | None = row["completion"]
    usage = Usage(
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        cached_tokens=row["cached_tokens"],
    )
    return PastAttempt(
        attempt_id=row["attempt_id"],
        item_id=row["item_id"],
        request_key=row["request_key"],
        base_key=row["base_key"],
        ladder_step=row["ladder_step"],
        attempt=row["attempt"],
        is_alone=row["is_alone"],
        is_ended=row["ended_at"] is not None,
        outcome=row["outcome"],
        error_kind=_kind(row["error_kind"]),
        error=row["error"],
        completion=None
        if text is None
        else Completion(
            text=text,
            finish_reason=row["finish_reason"],
            usage=usage,
            latency_s=row["latency_s"],
            reasoning=row["reasoning"],
            refusal=row["refusal"],
        ),
    )


def _storable(text: str | None) -> str | None:
    """Write what no database keeps as a visible escape, so that neighbours commit."""
    return None if text is None else make_storable(text)


def _plausible(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MAX_TOKENS else None


def _ending_values(e: Ending) -> dict[str, object]:
    done = keep(e.completion) if e.completion else None
    usage = done.usage if done else Usage()
    return {
        "b_attempt_id": e.attempt_id,
        "outcome": e.outcome,
        "ended_at": e.ended_at,
        "completion": done.text if done else None,
        "reasoning": done.reasoning if done else None,
        "refusal": done.refusal if done else None,
        "finish_reason": done.finish_reason if done else None,
        "prompt_tokens": _plausible(usage.prompt_tokens),
        "completion_tokens": _plausible(usage.completion_tokens),
        "cached_tokens": _plausible(usage.cached_tokens),
        "latency_s": done.latency_s if done else None,
        "engine_s": e.engine_s,
        "error_kind": e.error_kind,
        "error": _storable(e.error),
    }


def _claim_values(c: Claim) -> dict[str, object]:
    return {
        "attempt_id": c.attempt_id,
        "task": c.key.task,
        "prompt_ver": c.key.prompt_ver,
        "model_id": c.key.model_id,
        "item_id": c.item_id,
        "batch": c.batch,
        "request_key": c.request_key,
        "base_key": c.base_key,
        "ladder_step": c.ladder_step,
        "attempt": c.attempt,
        "is_alone": c.is_alone,
        "parameters": dict(c.parameters),
        "run_id": c.run_id,
        "started_at": c.started_at,
    }


def _result_values(r: Result) -> dict[str, object]:
    return {
        "task": r.key.task,
        "prompt_ver": r.key.prompt_ver,
        "model_id": r.key.model_id,
        "item_id": r.item_id,
        "batch": r.batch,
        "status": r.status,
        "payload": r.payload,
        "error_kind": r.error_kind,
        "error": _storable(r.error),
        "attempts": r.attempts,
        "input_hash": r.input_hash,
        "request_spec": r.request_spec,
        "accept_spec": r.accept_spec,
        "request_key": r.request_key,
        "attempt_id": r.attempt_id,
        "ladder_step": r.ladder_step,
        "is_fallback": r.is_fallback,
        "reused_from": r.reused_from,
        "run_id": r.run_id,
        "updated_at": r.updated_at,
    }


def _upsert_results(dialect: str) -> sa.Insert:
    insert = postgresql.insert(results) if dialect == "postgresql" else sqlite.insert(results)
    new, old = insert.excluded, results.c
    replaced = {c.name: new[c.name] for c in results.columns if not c.primary_key}
    own_stays_own: Any = sa.and_(old.is_fallback, new.is_fallback)
    replaced["is_fallback"] = own_stays_own
    hashes = ("input_hash", "request_spec", "accept_spec")
    return insert.on_conflict_do_update(
        index_elements=list(results.primary_key),
        set_=replaced,
        where=sa.or_(old.status != Status.OK, new.status == Status.OK, *(old[h] != new[h] for h in hashes)),
    )
