"""Stops a run whose errors have surely passed their limit, so that the rest isn't asked in vain."""

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import Status
from batch_assets.core.errors import TooManyErrors
from batch_assets.core.tasks import Thresholds
from batch_assets.reports.interval import wilson_interval
from batch_assets.run.partition_run import Ask, PartitionInputs

Z = 3.0
"""Standard deviations. A variant whose error share is at its limit is stopped by chance in one look of a thousand."""

SPREAD = 3
"""Parts of `min_records` records each. If some record was answered, each of the latest parts must have too many errors:
a cluster of up to `min_records` bad ones falls into two parts at most."""

SHOWN_CHARACTERS = 200


@dataclass(slots=True)
class _Asked:
    """What became of those records of a variant that this run has asked."""

    inputs: PartitionInputs
    asked: int = 0
    settled: int = 0
    recent: deque[bool] = field(default_factory=deque[bool])
    """Of the latest, whether each ended in an error."""
    kinds: Counter[str] = field(default_factory=Counter[str])
    words: dict[str, str] = field(default_factory=dict[str, str])
    """By kind, what the first such error said."""


class ErrorLimit:
    """Counts, by variant, the records that this run has asked of the model, and those that ended in errors.

    A run stops once `min_records` have settled and the lower bound of the Wilson interval of the error share is above
    `max_error_share`. All records asked count, and those in flight or waiting for their next attempt count as good:
    failures often come back at once and answers late, so the first to settle say little.

    A cluster of up to `min_records` bad records stops no healthy run: once some record was answered, the errors must be
    spread over the latest ones (SPREAD).

    Records that cost no request are not counted: empty ones, those that can't be rendered, those that took another's
    answer. A stop would save nothing, they would be as bad in the next run, and one strange batch would stop all
    others. The check error_share judges them batch by batch. A fallback's records aren't counted either, because they
    were quarantined before.
    """

    def __init__(self) -> None:
        self._variants: dict[tuple[str, str], _Asked] = {}

    def record_sent(self, ask: Ask) -> None:
        """Count a record when its first attempt of this run leaves."""
        if ask.is_first:
            self._of(ask).asked += 1

    def record_settled(self, ask: Ask, verdict: Verdict) -> None:
        """Count a record that has got its row."""
        counts = self._of(ask)
        counts.settled += 1
        counts.recent.append(verdict.status is Status.ERROR)
        if len(counts.recent) > SPREAD * ask.partition.inputs.task.thresholds.min_records:
            counts.recent.popleft()
        if verdict.status is Status.ERROR:
            kind = str(verdict.error_kind)
            counts.kinds[kind] += 1
            counts.words.setdefault(kind, (verdict.error or "")[:SHOWN_CHARACTERS])

    def find_reason(self) -> TooManyErrors | None:
        """Return the error that stops the run if a variant has failed too often, else None."""
        return next((e for counts in self._variants.values() if (e := _judge(counts)) is not None), None)

    def _of(self, ask: Ask) -> _Asked:
        inputs = ask.partition.inputs
        return self._variants.setdefault((inputs.task.name, inputs.variant.key), _Asked(inputs))


def _is_spread(recent: Collection[bool], limits: Thresholds) -> bool:
    """Say whether each of the latest SPREAD times `min_records` records has more errors than the limit allows."""
    size, found = limits.min_records, list(recent)
    parts = [found[n : n + size] for n in range(0, len(found), size)]
    return len(found) == SPREAD * size and all(sum(part) > limits.max_error_share * size for part in parts)


def _judge(counts: _Asked) -> TooManyErrors | None:
    limits, errors = counts.inputs.task.thresholds, counts.kinds.total()
    if counts.inputs.fallback_for is not None:
        return None
    if not limits.stop_early or counts.settled < limits.min_records:
        return None
    low, _ = wilson_interval(errors, counts.asked, Z)
    if low <= limits.max_error_share or (errors < counts.settled and not _is_spread(counts.recent, limits)):
        return None
    kind, n = counts.kinds.most_common(1)[0]
    return TooManyErrors(
        f"{counts.inputs.task.name} {counts.inputs.variant.key}: {errors} of the {counts.settled} records settled in "
        f"this run are errors, more than max_error_share ({limits.max_error_share:.1%}) allows; {n} are {kind}, "
        f"the first: {counts.words[kind]}. The run stopped and the rest stays pending: mend the cause and run again, "
        "with --retry errors for these too; or change max_error_share or stop_early in the task's thresholds"
    )
