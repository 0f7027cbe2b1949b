"""`accept`: the one judge of an answer. Pure: the same completion and task give the same verdict, anywhere."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import Completion
from batch_assets.core.tasks import Task

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""What a validator or a rule of a task raises when it meets an answer that its author didn't think of. An OSError is
none of these: it says nothing about the answer, so it goes up."""

_TOO_BIG = "a number of more than 64 bits, which no column keeps"


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
    """
    refused = _check_finish(completion) or _check_json(completion.text)
    if refused:
        return refused
    try:
        answer = task.output.model_validate_json(completion.text, strict=True)
        # By alias, as the output schema and the columns of validated_results name the fields.
        payload = answer.model_dump(mode="json", by_alias=True)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)
        words = "; ".join(f"{'.'.join(map(str, d['loc'])) or 'answer'}: {d['msg']}" for d in first[:3])
        return _refuse(ErrorKind.SCHEMA, words)
    except _BROKEN as e:
        return _refuse(ErrorKind.SCHEMA, f"{task.output.__name__} broke: {type(e).__name__}: {e}")
    if any(not _is_sized(v) for v in _walk(payload)):
        return _refuse(ErrorKind.SCHEMA, _TOO_BIG)
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


def _check_json(text: str) -> Verdict | None:
    if not text.strip():
        return _refuse(ErrorKind.EMPTY_ANSWER, "the answer is empty")
    try:
        value: object = json.loads(text, object_pairs_hook=_refuse_doubled_keys, parse_constant=_refuse_constant)
    except _DoubledKeyError as e:
        return _refuse(ErrorKind.DOUBLED_KEY, f"the key {e} comes twice")
    except RecursionError:
        # Pydantic's own limit refuses this too, as SCHEMA; ours depends on how deep the caller stands.
        return _refuse(ErrorKind.SCHEMA, "answer: nested too deeply")
    except ValueError as e:
        return _refuse(ErrorKind.NOT_JSON, f"not JSON: {e}")
    if not isinstance(value, dict):
        return _refuse(ErrorKind.NOT_OBJECT, f"expected an object, found {type(value).__name__}")
    for found in _walk(cast("object", value)):
        if isinstance(found, str) and _UNSTORABLE.search(found):
            return _refuse(ErrorKind.CONTROL_CHARACTERS, "a NUL or an unpaired surrogate, which no database keeps")
        if isinstance(found, float) and not math.isfinite(found):
            return _refuse(ErrorKind.SCHEMA, _TOO_BIG)
    return None


def _refuse_doubled_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DoubledKeyError(repr(key))
            seen.add(key)
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


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


def _is_sized(value: object) -> bool:
    match value:
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case _:
            return True
