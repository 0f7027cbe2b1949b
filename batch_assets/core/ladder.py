"""The ladder: what is asked next when an answer was refused. Pure: the same answers give the same steps, in any run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import ErrorKind, Ladder
from batch_assets.core.completions import Completion, keep
from batch_assets.core.control_tokens import break_control_tokens
from batch_assets.core.identity import VariantSpec, request_key
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request

MAX_TEMPERATURE = 1.5
MAX_FED_BACK_CHARACTERS = 2000
"""Of a refused answer, as much as a person would need to see what was wrong with it."""

FEEDBACK = "That answer was refused: {error}\nAnswer again: one JSON object that fits the schema, and nothing else."

_HOPELESS = frozenset({ErrorKind.REFUSED})
"""The server's filter or the model itself declined: other parameters are no way around that, another model may be."""

_NOTHING_TO_SHOW = frozenset(
    {ErrorKind.TRUNCATED, ErrorKind.EMPTY_ANSWER, ErrorKind.ENDLESS_WHITESPACE, ErrorKind.ONLY_REASONING}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An answer that was refused, with the request it answered."""

    request: Request
    completion: Completion
    verdict: Verdict


def climb(ladder: Ladder, base: Request, refused: Sequence[Refused], spec: VariantSpec) -> Request | None:
    """Return the request of the next step, or None if the ladder ends. `refused` are the answers so far, in order.

    The request is made of the base request and the last refused answer alone, so that it has the same key in each run.
    """
    step, last = len(refused), refused[-1]
    if step > ladder.steps or last.verdict.error_kind in _HOPELESS:
        return None
    if sum(map(count_tokens, refused)) >= ladder.max_tokens_per_record:
        return None
    sampling = _change(ladder, base.sampling, last, step)
    messages = base.messages
    if ladder.feeds_back and last.verdict.error_kind not in _NOTHING_TO_SHOW:
        messages = (*messages, *_feed_back(last))
    key = request_key(messages, spec, sampling)
    return replace(base, request_key=key, messages=messages, sampling=sampling, step=step)


def count_tokens(refused: Refused) -> int:
    """Return the tokens that an answer has cost; of unknown usage, the most that its output could have."""
    usage = refused.completion.usage
    output = refused.request.sampling.max_tokens if usage.completion_tokens is None else usage.completion_tokens
    return (usage.prompt_tokens or 0) + output


def _change(ladder: Ladder, base: Sampling, last: Refused, step: int) -> Sampling:
    max_tokens = last.request.sampling.max_tokens
    if last.verdict.error_kind is ErrorKind.TRUNCATED:
        max_tokens = max(max_tokens, min(2 * max_tokens, ladder.max_tokens_cap))
    raised = base.temperature + step * ladder.temperature_step
    return base.model_copy(
        update={
            "temperature": max(base.temperature, round(min(MAX_TEMPERATURE, raised), 6)),
            "seed": (base.seed or 0) + step,
            "max_tokens": max_tokens,
        }
    )


def _feed_back(last: Refused) -> tuple[Message, Message]:
    shown = keep(last.completion).text[:MAX_FED_BACK_CHARACTERS]  # as kept, so that a run which goes on asks the same
    words = FEEDBACK.format(error=last.verdict.error)
    return Message("assistant", break_control_tokens(shown)), Message("user", break_control_tokens(words))
