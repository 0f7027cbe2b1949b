"""The run report of a partition: figures, each with its formula."""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from batch_assets.reports.labels import Labels

Count = Annotated[int, Field(ge=0)]
TOKEN_FIGURES = frozenset({"prompt_tokens", "completion_tokens", "cached_tokens", "tokens_per_s"})


class RunReport(BaseModel):
    """One per output partition.

    total       records of the batch that it owns: ok + invalid + error
    repeated    attempts beyond the first of a record: retries, steps of the ladder, what a killed run had in flight
    reused      rows answered by an earlier attempt: equal requests, reverted prompts
    superseded  records that a later batch has taken over; not part of total
    seconds     the engine's busy time, shared among the requests in it (run/engine_time.py); reused rows cost none
    fallback_ok records that are not ok here and were answered by the task's fallback model; not part of ok
    labels      accepted answers by categorical field and label; known once validated_results is made
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    total: Count
    ok: Count
    invalid: Count
    error: Count
    repeated: Count
    reused: Count
    superseded: Count
    error_kinds: dict[str, int]
    attempts: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    unknown_usage: Count
    seconds: Annotated[float, Field(ge=0)]
    records_per_s: float | None
    tokens_per_s: float | None
    cost: Annotated[float, Field(ge=0)]
    latency_p50_s: float | None
    latency_p95_s: float | None
    fallback_ok: Count = 0
    labels: Labels = {}

    @property
    def error_share(self) -> float:
        """Errors by total; 0 for an empty partition."""
        return self.error / self.total if self.total else 0.0

    @property
    def invalid_share(self) -> float:
        """Invalid ones by total; 0 for an empty partition."""
        return self.invalid / self.total if self.total else 0.0

    def numbers(self) -> dict[str, int | float]:
        """Return the figures that a plot can show. What is unknown is left out, since it is not 0."""
        shares = {"error_share": round(self.error_share, 6), "invalid_share": round(self.invalid_share, 6)}
        found = {**self.model_dump(), **shares}
        if self.attempts and self.unknown_usage == self.attempts:
            found = {name: value for name, value in found.items() if name not in TOKEN_FIGURES}
        return {name: value for name, value in found.items() if isinstance(value, int | float)}


def make_report(
    *,
    ok: int,
    invalid: int,
    error: int,
    reused: int,
    superseded: int,
    error_kinds: dict[str, int],
    attempts: int,
    asked_records: int,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    unknown_usage: int,
    engine_s: float,
    latencies_s: Sequence[float],
    price_per_gpu_hour: float,
) -> RunReport:
    """Compute the figures. Rates are None if nothing was asked; cost is seconds / 3600 * price."""
    tokens = prompt_tokens + completion_tokens
    return RunReport(
        total=ok + invalid + error,
        ok=ok,
        invalid=invalid,
        error=error,
        repeated=attempts - asked_records,
        reused=reused,
        superseded=superseded,
        error_kinds=error_kinds,
        attempts=attempts,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        unknown_usage=unknown_usage,
        seconds=round(engine_s, 3),
        records_per_s=_rate(asked_records, engine_s),
        tokens_per_s=_rate(tokens, engine_s),
        cost=round(engine_s / 3600 * price_per_gpu_hour, 6),
        latency_p50_s=percentile(latencies_s, 0.50),
        latency_p95_s=percentile(latencies_s, 0.95),
    )


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the nearest-rank percentile: the smallest value that at least `share` of all don't exceed; None for none.

    Source: Hyndman and Fan, Sample Quantiles, 1996, definition 1.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    rank = max(1, math.ceil(round(len(ordered) * share, 9)))  # rounded, as 0.07 * 100 is a little above 7
    return round(ordered[rank - 1], 4)


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds > 0 and count else None
