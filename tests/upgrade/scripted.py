"""The engine of the upgrade fixture: what each of its records is answered, and a log of what was asked.

Made for two versions of the code, so it leans on what both have: completions, errors, and the factory's names.
"""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Collection
from typing import Any

import pytest

from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import EngineDead, RequestFailed
from batch_assets.engines import factory

Asked = tuple[str, str, str, int]
"""Of one request: model, prompt version, the record's mark (`t1-01`), the ladder's step."""

_MARK = re.compile(r"^(v\d): .*\[([tnf]\d-\d\d)\]", re.DOTALL)
_KILL_AFTER_S = 1.5


class ScriptedEngine:
    """Answers by the words in a record's text, the same in each run; tells `note` of each request.

    BAD is refused of all models but `big`, WORSE of all, CLIMB and LARGE at the ladder's first step; TOOLONG fails.
    Traps are for the making: a request in `hang` stays in flight, and when all of them do the process is killed, as
    kill -9 does; the engine dies at `die`.
    """

    is_restartable = False

    def __init__(
        self, model_id: str, note: Callable[[Asked], object], hang: Collection[str] = (), die: str = ""
    ) -> None:
        self._model_id = model_id
        self._note = note
        self._hang = hang
        self._die = die
        self._hanging = 0

    async def open(self) -> None:
        """There is nothing to start."""

    async def complete(self, request: Any) -> Completion:
        """Answer one request."""
        prompt_ver, mark, text = _read(request)
        self._note((self._model_id, prompt_ver, mark, request.step))
        await asyncio.sleep(0.01)
        if mark == self._die:
            raise EngineDead("the engine has stopped answering")
        if f"{mark}:{request.step}" in self._hang:
            self._hanging += 1
            if self._hanging == len(self._hang):
                await asyncio.sleep(_KILL_AFTER_S)  # what was answered is committed meanwhile
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.Event().wait()
        if "TOOLONG" in text:
            raise RequestFailed("context_length", "the prompt has more tokens than the model takes", is_passing=False)
        answer = _ANSWERS[mark[0]](int(mark[-2:]), self._model_id, text, request.step)
        usage = Usage(prompt_tokens=len(text), completion_tokens=len(answer), cached_tokens=0)
        return Completion(text=answer, finish_reason="stop", usage=usage, latency_s=0.01)

    async def close(self) -> None:
        """There is nothing to free."""


def use_scripted_engines(
    patch: pytest.MonkeyPatch, note: Callable[[Asked], object], hang: Collection[str] = (), die: str = ""
) -> None:
    """Put scripted engines in the place of all that the factory builds."""

    def build(entry: Any, *_: object) -> ScriptedEngine:
        return ScriptedEngine(entry.model_id, note, hang, die)

    if hasattr(factory, "build_fake"):  # version 0.1
        for name in ("InlineVllm", "ApartVllm", "OpenAIEngine", "build_fake"):
            patch.setattr(factory, name, build)
        return
    from batch_assets.engines.registry import list_engines

    for entry in list_engines().values():
        patch.setattr(entry, "build", build)


def _read(request: Any) -> tuple[str, str, str]:
    """Return a request's prompt version, and mark and text of its record: that of the last turn which has one."""
    for message in reversed(request.messages):
        if message.role == "user" and (found := _MARK.match(message.content)):
            return found[1], found[2], message.content
    raise AssertionError(f"a request without a record of the fixture: {request.messages}")


def _is_refused(model_id: str, text: str, step: int) -> bool:
    return ("BAD" in text and model_id != "big") or "WORSE" in text or ("CLIMB" in text and step == 0)


def _answer_ticket(n: int, model_id: str, text: str, step: int) -> str:
    label = "dragon" if _is_refused(model_id, text, step) else ("card", "transfer", "other")[n % 3]
    return f'{{"label":"{label}","urgent":{"true" if n % 2 else "false"}}}'


def _answer_note(n: int, model_id: str, text: str, step: int) -> str:
    kind = "letter" if _is_refused(model_id, text, step) else ("invoice", "order")[n % 2]
    value = 2_000_000 if "LARGE" in text and step == 0 else 100 * n
    amounts = f'[{{"value":{value},"currency":"EUR"}}]'
    contact = '{"name":"Анна Ö.","mail":null}' if n % 2 else "null"
    return f'{{"kind":"{kind}","amounts":{amounts},"due":"2026-11-{n + 10}","contact":{contact}}}'


def _answer_field(n: int, model_id: str, text: str, step: int) -> str:
    colour = "loud" if _is_refused(model_id, text, step) else ("red", "blue")[n % 2]
    return f'{{"name":"part {n}","size":{{"width":{n}.5,"height":null}},"colours":["{colour}"]}}'


_ANSWERS = {"t": _answer_ticket, "n": _answer_note, "f": _answer_field}
