"""How often to try, how long to wait, and what an attempt can end in. Keeping count is the runner's work."""

import random
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from batch_assets.core.entries import Entry

SUSPECT_DEATHS = 2
"""Deaths (claims without an end) after which a record is sent last and alone."""

QUARANTINE_DEATHS_ALONE = 2
"""Deaths alone after which a record is taken to kill the engine. One could be a kill from outside, by chance."""


class RetryMode(StrEnum):
    """What a run asks again beside the missing and the stale: nothing, error rows, these and invalid ones, or all."""

    NONE = "none"
    ERRORS = "errors"
    FAILED = "failed"
    ALL = "all"

    def selects(self, status: "Status", error_kind: "ErrorKind | None" = None) -> bool:
        """Say whether a row in this state is asked again although nothing about it changed.

        A record that can't be asked at all, being empty, is not: nothing would come of it.
        """
        if error_kind is ErrorKind.EMPTY_INPUT:
            return False
        match self:
            case RetryMode.NONE:
                return False
            case RetryMode.ERRORS:
                return status is Status.ERROR
            case RetryMode.FAILED:
                return status is not Status.OK
            case RetryMode.ALL:
                return True


class Status(StrEnum):
    """The state of a result row. Pending means that there is no row."""

    OK = "ok"
    INVALID = "invalid"
    ERROR = "error"


class ErrorKind(StrEnum):
    """Every reason why a result is not `ok`. Closed: a reason that isn't here doesn't exist."""

    # error: there is no answer
    EMPTY_INPUT = "empty_input"
    RENDER = "render"
    CONTEXT_LENGTH = "context_length"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    CONNECTION = "connection"
    DROPPED = "dropped"
    BAD_REQUEST = "bad_request"
    BAD_RESPONSE = "bad_response"
    KILLS_ENGINE = "kills_engine"
    # invalid: there is an answer, and it is refused
    TRUNCATED = "truncated"
    REFUSED = "refused"
    UNFINISHED = "unfinished"
    EMPTY_ANSWER = "empty_answer"
    ENDLESS_WHITESPACE = "endless_whitespace"
    ONLY_REASONING = "only_reasoning"
    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    DOUBLED_KEY = "doubled_key"
    CONTROL_CHARACTERS = "control_characters"
    NOT_FINITE = "not_finite"
    TOO_BIG = "too_big"
    SCHEMA = "schema"
    RULE = "rule"


class RetryPolicy(Entry):
    """How a passing failure is tried again: exponential backoff with jitter, bounded.

    The wait before attempt n + 1 is drawn evenly from half to all of `base_s * 2 ** (n - 1)`, at most `cap_s`
    ("equal jitter"; Brooker, Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    base_s: Annotated[float, Field(ge=0)] = 0.5
    cap_s: Annotated[float, Field(ge=0)] = 30.0

    def backoff_s(self, attempt: int, rng: random.Random, retry_after_s: float | None = None) -> float:
        """Return the seconds to wait after failed attempt number `attempt`; a server's Retry-After is a lower bound."""
        full = min(self.cap_s, self.base_s * 2 ** (attempt - 1))
        return max(retry_after_s or 0.0, full / 2 + rng.random() * full / 2)


class Ladder(Entry):
    """How an invalid answer is asked again of the same model.

    Step n is asked at `temperature + n * temperature_step`, with the seed raised by n. An answer that was cut off gets
    twice the output tokens at each step, up to `max_tokens_cap` (never fewer than the model's entry says); any other
    is shown to the model with the reason of its refusal, if `feeds_back`.

    Bounds: `steps`, and `max_tokens_per_record`, the prompt and output tokens of all answers to a record's request.
    If a server says nothing of usage, its answer counts as `max_tokens`. A refusal by the model or by a filter isn't
    climbed from. After the last step the record is quarantined, and the task's fallback model, if it has one, is asked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: Annotated[int, Field(ge=0, le=5)] = 2
    temperature_step: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.3
    max_tokens_cap: Annotated[int, Field(ge=1)] = 2048
    feeds_back: bool = True
    max_tokens_per_record: Annotated[int, Field(ge=1)] = 16_000
