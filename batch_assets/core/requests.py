"""Requests: a record rendered for a variant, with all that can change its answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an engine is asked. `schema` is the JSON schema that guides decoding; `request_key` names the question.

    `step` is that of the ladder (core.ladder): 0 for the question as the variant asks it.
    """

    request_key: str
    messages: tuple[Message, ...]
    schema: Mapping[str, object]
    sampling: Sampling
    step: int = 0
