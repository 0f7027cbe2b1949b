"""What stands of a record's own earlier attempts: how far up the ladder it came, how often it died."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.ladder import Refused, climb
from batch_assets.core.requests import Request
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.results import PastAttempt

PERMANENT = frozenset({ErrorKind.CONTEXT_LENGTH, ErrorKind.BAD_REQUEST, ErrorKind.KILLS_ENGINE})
"""Failures that the same request meets again: an earlier one stands, as an earlier answer does."""


def judge(past: PastAttempt, inputs: PartitionInputs) -> Verdict:
    """Return the verdict on a stored attempt: its completion judged by the present rules, or its permanent failure."""
    if past.completion is not None:
        return accept(past.completion, inputs.task)
    return Verdict(status=Status.ERROR, error_kind=past.error_kind, error=past.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """How far up the ladder a record's own earlier attempts have come.

    `request` is what is to be asked next; with a `verdict` nothing is: it is that of attempt `last`.
    """

    request: Request
    refused: tuple[Refused, ...] = ()
    last: PastAttempt | None = None
    verdict: Verdict | None = None


def find_resume_point(inputs: PartitionInputs, base: Request, own: Sequence[PastAttempt]) -> ResumePoint:
    """Go up the ladder by the record's own earlier answers, judged by the present rules."""
    request: Request | None = base
    refused: tuple[Refused, ...] = ()
    last: PastAttempt | None = None
    verdict: Verdict | None = None
    while request is not None:
        attempt = _find_ended(own, request)
        if attempt is None:
            return ResumePoint(request=request, refused=refused, last=last)
        if attempt.completion is None and refused:
            break  # a step that failed for good: the refusal before it stands
        last, verdict = attempt, judge(attempt, inputs)
        if attempt.completion is None or verdict.status is Status.OK:
            return ResumePoint(request=request, refused=refused, last=last, verdict=verdict)
        refused = (*refused, Refused(request=request, completion=attempt.completion, verdict=verdict))
        request = climb(inputs.task.ladder, base, refused, inputs.spec)
    return ResumePoint(request=base, refused=refused, last=last, verdict=verdict)


def _find_ended(own: Sequence[PastAttempt], request: Request) -> PastAttempt | None:
    """Return a record's last attempt at a request that ended in an answer or a permanent failure."""
    mine = (a for a in own if a.request_key == request.request_key and a.is_ended)
    ended = [a for a in mine if a.completion is not None or a.error_kind in PERMANENT]
    return ended[-1] if ended else None


def find_deaths(own: Sequence[PastAttempt]) -> list[PastAttempt]:
    """Return a record's claims without an end, oldest first. Those before an answer don't count: it came through."""
    answered = max((n for n, a in enumerate(own) if a.completion is not None), default=-1)
    return [a for a in own[answered + 1 :] if not a.is_ended]
