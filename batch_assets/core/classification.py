"""What a record needs, by its row in the store. The planner counts by it, and a run acts on it."""

from dataclasses import dataclass
from enum import StrEnum

from batch_assets.core.attempts import ErrorKind, RetryMode, Status
from batch_assets.core.identity import VariantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """What a result row says of its own making."""

    status: Status
    input_hash: str
    request_spec: str
    accept_spec: str
    request_key: str | None
    attempt_id: str | None
    attempts: int
    error_kind: ErrorKind | None
    error: str | None
    ladder_step: int
    is_fallback: bool
    reused_from: str | None


class RecordNeed(StrEnum):
    """What a record needs. All but NOTHING and JUDGEMENT ask it; how many of those cost a request, reuse decides."""

    NOTHING = "nothing"
    MISSING = "missing"
    """It has no row for the variant."""
    STALE = "stale"
    """Its text, or the variant's prompt, schema, sampling or model, is not what the row was made of."""
    RETRY = "retry"
    """Its row is valid, and the operator wants it asked again."""
    JUDGEMENT = "judgement"
    """Its stored answer is to be judged by the present rules; that costs no request."""


def classify(
    input_hash: str, row: RowState | None, spec: VariantSpec, retry: RetryMode, *, is_fallback: bool = False
) -> RecordNeed:
    """Return what a record needs, by the hash of its input, its row, the variant's identity and the retry mode.

    `is_fallback` says that it is asked as another variant's quarantined record. If a record needs both to be asked
    again and to be judged again, the answer is RETRY; `is_outdated` then tells of the other.
    """
    if row is None:
        return RecordNeed.MISSING
    if row.input_hash != input_hash or row.request_spec != spec.request_spec:
        return RecordNeed.STALE
    if retry.selects(row.status, row.error_kind):
        return RecordNeed.RETRY
    return RecordNeed.JUDGEMENT if is_outdated(row, spec, is_fallback=is_fallback) else RecordNeed.NOTHING


def is_outdated(row: RowState, spec: VariantSpec, *, is_fallback: bool) -> bool:
    """Say whether a row is to be judged again: the rules changed, or another variant's fallback becomes an own row."""
    return row.accept_spec != spec.accept_spec or (row.is_fallback and not is_fallback)
