"""What an engine returns, untouched. Judging it is core.acceptance's work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one attempt. None means unknown, never 0. `cached_tokens` is the prompt's part that a cache held."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer as the engine gave it. `latency_s` runs from handing the request over to having the whole answer.

    `reasoning` is what a server returned beside the answer as the model's thinking, `refusal` its words where the model
    declined; None where there was no such field.
    """

    text: str
    finish_reason: str | None
    usage: Usage = Usage()
    latency_s: float | None = None
    reasoning: str | None = None
    refusal: str | None = None
