"""What a record's own earlier attempts tell: how far up the ladder it came, how often the engine died with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.classification import RowState
from batch_assets.core.ladder import Refused, climb
from batch_assets.core.requests import Request
from batch_assets.run.partition_run import PartitionInputs
from batch_assets.store.results import PastAttempt

PERMANENT = frozenset({ErrorKind.CONTEXT_LENGTH, ErrorKind.BAD_REQUEST, ErrorKind.KILLS_ENGINE})
"""Failures that the same request would meet again: it is not sent a second time."""


def judge(past: PastAttempt, inputs: PartitionInputs) -> Verdict:
    """Return the verdict on a stored attempt: its completion judged by the present rules, or its permanent failure."""
    if past.completion is not None:
        return accept(past.completion, inputs.task)
    return Verdict(status=Status.ERROR, error_kind=past.error_kind, error=past.error)


def judge_again(
    inputs: PartitionInputs, state: RowState, attempt: PastAttempt | None, steps: Sequence[PastAttempt]
) -> tuple[Verdict, RowState] | None:
    """Judge a row's stored answer by the present rules; return the verdict and the row's state with it.

    `attempt` is the row's, `steps` are all of the record's. If the row's answer is refused, the first accepted answer
    of another step of the ladder takes its place. An error without an answer is kept. None if the answer is gone: the
    row must not pass as judged.
    """
    if attempt is None or attempt.completion is None:
        if state.status is not Status.ERROR:
            return None
        return Verdict(status=state.status, error_kind=state.error_kind, error=state.error), state
    verdict = accept(attempt.completion, inputs.task)
    for other in steps if verdict.status is not Status.OK else ():
        if other.base_key != state.request_key or other.completion is None:
            continue
        found = accept(other.completion, inputs.task)
        if found.status is Status.OK:
            return found, replace(
                state, attempt_id=other.attempt_id, ladder_step=other.ladder_step, reused_from=None
            )  # fmt: skip
    return verdict, state


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """How far up the ladder a record's own earlier attempts have come.

    `request` is to be asked next, unless there is a `verdict`: then nothing is, and it is that of attempt `last`.
    """

    request: Request
    refused: tuple[Refused, ...] = ()
    last: PastAttempt | None = None
    verdict: Verdict | None = None


def find_resume_point(inputs: PartitionInputs, base: Request, own: Sequence[PastAttempt]) -> ResumePoint:
    """Climb the ladder over the record's own earlier answers, as the present rules judge them."""
    request: Request | None = base
    refused: tuple[Refused, ...] = ()
    last: PastAttempt | None = None
    verdict: Verdict | None = None
    while request is not None:
        attempt = _find_ended(own, request)
        if attempt is None:
            return ResumePoint(request=request, refused=refused, last=last)
        if attempt.completion is None and refused:
            break  # a step that failed for good: the refusal before it is the verdict
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
    """Return a record's claims without an end, oldest first. Those before its last answer don't count."""
    answered = max((n for n, a in enumerate(own) if a.completion is not None), default=-1)
    return [a for a in own[answered + 1 :] if not a.is_ended]
