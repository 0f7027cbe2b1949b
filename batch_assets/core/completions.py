"""What an engine returns, untouched, and how it is kept. Judging it is core.acceptance's work."""

import re
from dataclasses import dataclass, replace

MAX_COMPLETION_CHARACTERS = 1_000_000
"""The cap on stored raw text: far beyond any max_tokens, so that only a broken server meets it."""

MAX_FINISH_REASON_CHARACTERS = 40

_AFTER_BACKSLASH = re.compile("(?<=\\\\)(?=[\0\ud800-\udfff])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one attempt. None means unknown, never 0. `cached_tokens` is the prompt's part that a cache held."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer as the engine gave it. `latency_s` runs from handing the request over to having the whole answer.

    `reasoning` is what a server returned beside the answer as the model's thinking, `refusal` its words if the model
    declined; None if there was no such field.
    """

    text: str
    finish_reason: str | None
    usage: Usage = Usage()
    latency_s: float | None = None
    reasoning: str | None = None
    refusal: str | None = None


def keep(completion: Completion) -> Completion:
    """Return a completion as the store keeps it: texts up to a cap, without what no database takes.

    The judge looks at nothing else, so that an answer judged again from the store gets the verdict that it had.
    """
    return replace(
        completion,
        text=_cut(completion.text, MAX_COMPLETION_CHARACTERS),
        finish_reason=_cut_optional(completion.finish_reason, MAX_FINISH_REASON_CHARACTERS),
        reasoning=_cut_optional(completion.reasoning, MAX_COMPLETION_CHARACTERS),
        refusal=_cut_optional(completion.refusal, MAX_COMPLETION_CHARACTERS),
    )


def make_storable(text: str) -> str:
    r"""Return a text with a visible escape for what no database keeps: `\u0000` for NUL, `\udXXX` for half a pair.

    After a backslash a space comes first: the two would else be read in JSON as a backslash and plain letters, so that
    an answer that holds a NUL could pass.
    """
    if text.isascii() and "\0" not in text:
        return text
    apart = _AFTER_BACKSLASH.sub(" ", text)
    return apart.replace("\0", "\\u0000").encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str, limit: int) -> str:
    # The rest is cut off before it is escaped as well: it may be gigabytes.
    return make_storable(text[:limit])[:limit]


def _cut_optional(text: str | None, limit: int) -> str | None:
    return None if text is None else _cut(text, limit)
