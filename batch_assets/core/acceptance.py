"""`accept`: the one judge of an answer. Pure: the same completion and task give the same verdict, anywhere."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import MAX_COMPLETION_CHARACTERS, Completion, keep
from batch_assets.core.tasks import Task

ACCEPTANCE_VERSION = 3
"""Changes when an answer may get another verdict than before: every stored answer is then judged again."""

ENDLESS_WHITESPACE_CHARACTERS = 100
"""A finished answer of more whitespace than this, and nothing else, is a model that has run away, not an empty one."""

_WHITESPACE = " \t\r\n"
_THINKING = "<think>", "</think>"
_FENCE = re.compile(r"(`{3,})[ \t]*\w*[ \t]*\r?\n(.*)\n[ \t]*\1", re.DOTALL)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_DIGITS_READ = 25
_BROKEN = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError),
    StopIteration,  # of `next()` over what isn't there
)
"""What a validator or a rule of a task raises when it meets an answer that its author didn't think of. An OSError is
none of these: it says nothing about the answer, so it goes up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`ok` with a payload, or `invalid` with a closed reason and words for a person."""

    status: Status
    payload: dict[str, Any] | None = None
    error_kind: ErrorKind | None = None
    error: str | None = None


class _DoubledKeyError(ValueError):
    pass


def accept(completion: Completion, task: Task) -> Verdict:
    """Judge one completion: finish reason first, then JSON, the task's pydantic model (strict), then its rules.

    Cut-off output is refused whatever it looks like: JSON that parses by chance after a cut is not an answer. An answer
    over which a validator or a rule breaks is refused too, by itself; it is judged again once they are mended.

    What is judged is the completion as the store keeps it, so that the verdict is the same when it comes from there.
    A thinking section at the beginning and a fence around all the rest are taken off; nothing else is.
    """
    kept = keep(completion)
    text = _unwrap(kept.text)
    refused = _check_finish(kept) or _check_size(kept.text) or _check_content(kept, text) or _check_json(text)
    if refused:
        return refused
    try:
        answer = task.output.model_validate_json(text, strict=True)
        # By alias, as the output schema and the columns of validated_results name the fields.
        payload = answer.model_dump(mode="json", by_alias=True)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)
        words = "; ".join(f"{'.'.join(map(str, d['loc'])) or 'answer'}: {d['msg']}" for d in first[:3])
        return _refuse(ErrorKind.SCHEMA, words)
    except _BROKEN as e:
        return _refuse(ErrorKind.SCHEMA, f"{task.output.__name__} broke: {type(e).__name__}: {e}")
    refused = _check_values(payload)  # the model may have made values of its own
    if refused:
        return refused
    for rule in task.rules:
        try:
            problem = rule(answer)
        except _BROKEN as e:
            problem = f"broke: {type(e).__name__}: {e}"
        if problem is not None:
            return _refuse(ErrorKind.RULE, f"{rule.__name__}: {problem}")
    return Verdict(status=Status.OK, payload=payload)


def _refuse(kind: ErrorKind, words: str) -> Verdict:
    return Verdict(status=Status.INVALID, error_kind=kind, error=words[:500])


def _check_finish(completion: Completion) -> Verdict | None:
    match completion.finish_reason:
        case "stop":
            return None
        case "length":
            return _refuse(ErrorKind.TRUNCATED, "the answer was cut off at max_tokens")
        case "content_filter":
            return _refuse(ErrorKind.REFUSED, "the server's content filter stopped the answer")
        case other:
            return _refuse(ErrorKind.UNFINISHED, f"finish_reason is {other!r}, not 'stop'")


def _check_size(text: str) -> Verdict | None:
    """Refuse what fills the store's cap, whatever it is: what came after the cap is not kept."""
    if len(text) < MAX_COMPLETION_CHARACTERS:
        return None
    return _refuse(ErrorKind.TOO_BIG, f"the answer has {MAX_COMPLETION_CHARACTERS:,} characters or more")


def _check_content(completion: Completion, text: str) -> Verdict | None:
    """Refuse an answer without content, or in place of which the model declined. `text` is without thinking."""
    refusal = (completion.refusal or "").strip()
    if refusal:
        return _refuse(ErrorKind.REFUSED, f"the model declined: {refusal}")
    opening, closing = _THINKING
    has_thought = completion.text.lstrip().startswith(opening)
    if has_thought and closing not in completion.text:
        return _refuse(ErrorKind.ONLY_REASONING, f"the answer is a {opening} without its end")
    if text.strip():
        return None
    if has_thought or (completion.reasoning or "").strip():
        return _refuse(ErrorKind.ONLY_REASONING, "the model thought and gave no answer")
    if len(completion.text) > ENDLESS_WHITESPACE_CHARACTERS:
        return _refuse(ErrorKind.ENDLESS_WHITESPACE, f"the answer is {len(completion.text):,} blanks and nothing else")
    return _refuse(ErrorKind.EMPTY_ANSWER, "the answer is empty")


def _unwrap(text: str) -> str:
    """Return an answer without a thinking section at its beginning, and then a fence around all of the rest."""
    opening, closing = _THINKING
    rest = text.strip(_WHITESPACE)
    if rest.startswith(opening) and closing in rest:
        rest = rest.partition(closing)[2].strip(_WHITESPACE)
    fenced = _FENCE.fullmatch(rest)
    return fenced[2] if fenced else rest


def _check_json(text: str) -> Verdict | None:
    try:
        value: object = json.loads(text, object_pairs_hook=_refuse_doubled_keys, parse_int=_read_integer)
    except _DoubledKeyError as e:
        return _refuse(ErrorKind.DOUBLED_KEY, f"the key {e} comes twice")
    except RecursionError:
        # Pydantic's own limit refuses this too, as SCHEMA; ours depends on how deep the caller stands.
        return _refuse(ErrorKind.SCHEMA, "answer: nested too deeply")
    except ValueError as e:
        return _refuse(ErrorKind.NOT_JSON, f"not JSON: {e}")
    if not isinstance(value, dict):
        return _refuse(ErrorKind.NOT_OBJECT, f"expected an object, found {type(value).__name__}")
    return _check_values(cast("object", value))


def _check_values(value: object) -> Verdict | None:
    """Refuse keys and values, at any depth, that no database or no column keeps."""
    for found in _walk(value):
        match found:
            case str() if _UNSTORABLE.search(found):
                return _refuse(ErrorKind.CONTROL_CHARACTERS, "a NUL or an unpaired surrogate, which no database keeps")
            case float() if not math.isfinite(found):
                return _refuse(ErrorKind.NOT_FINITE, f"{found} is no number that JSON or a database has")
            case int() if not -(2**63) <= found < 2**63:
                return _refuse(ErrorKind.TOO_BIG, "an integer of more than 64 bits, which no column keeps")
            case _:
                pass
    return None


def _read_integer(digits: str) -> int:
    """Return an integer, or for more digits than any column keeps one that is too big: Python refuses 4,301 of them."""
    return int(digits) if len(digits) < _DIGITS_READ else 2**64


def _refuse_doubled_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DoubledKeyError(repr(key))
            seen.add(key)
    return found


def _walk(value: object) -> Iterator[object]:
    """Yield every key and plain value in `value`, at any depth."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += cast("dict[str, object]", found).keys()
            waiting += cast("dict[str, object]", found).values()
        elif isinstance(found, list):
            waiting += cast("list[object]", found)
        else:
            yield found
