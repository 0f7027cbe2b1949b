"""From the body of a chat completion to a Completion: whatever a server leaves out or puts elsewhere. Sends nothing."""

from typing import Any, cast

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import RequestFailed


def read_completion(body: object, latency_s: float) -> Completion:
    """Return the completion that a body holds. Raises RequestFailed if it holds none.

    Content may be a text, a list of parts, of which the texts are joined, or null, which is the empty text.
    """
    try:
        answer = cast("dict[str, Any]", body)
        choice = answer["choices"][0]
        message = choice["message"]
        content: object = message.get("content")
        finish: object = choice.get("finish_reason")
        usage: object = answer.get("usage")
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise RequestFailed(ErrorKind.BAD_RESPONSE, "the server's answer has no choices", is_passing=True) from e
    reasoning = _find_text(message.get("reasoning_content")) or _find_text(message.get("reasoning"))
    return Completion(
        text=_join(content, "text") or "",
        finish_reason=str(finish) if finish is not None else None,
        usage=_read_usage(usage),
        latency_s=latency_s,
        reasoning=reasoning,
        refusal=_find_text(message.get("refusal")) or _join(content, "refusal", is_listed=True),
    )


def _find_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _join(content: object, name: str, *, is_listed: bool = False) -> str | None:
    """Return content, or what its parts say under a name; None if that is nothing."""
    if isinstance(content, list):
        parts = [cast("dict[str, Any]", p).get(name) for p in cast("list[object]", content) if isinstance(p, dict)]
        return "".join(p for p in parts if isinstance(p, str)) or None
    return None if is_listed else _find_text(content)


def _read_usage(usage: object) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    found = cast("dict[str, Any]", usage)
    details: object = found.get("prompt_tokens_details")
    cached: object = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(found.get("prompt_tokens")),
        completion_tokens=_count(found.get("completion_tokens")),
        cached_tokens=_count(cached),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
