"""An OpenAI-compatible server whose answers fail as real ones do, by a script or by chance.

In a test: `async with serve_faults({"text of 1": ["500", "ok"]}) as (server, base_url)`. A script names the steps of a
record's text; each request takes the next one, the last repeats. For a benchmark, as a process of its own:
`python fault_server.py PORT LOG LATENCY_S '{"500": 0.05, "hang": 0.01}'`, where a share is that of requests, drawn by a
hash of the record's text and of how often it was asked, so that a second request for it may have better luck. The kinds
of STICKY are drawn by the text alone in half of the cases: these records never get a good answer.
LOG gets a line for each request: its text's hash and its step. `GET /figures` tells what happened so far.

An answer is right if its `score` is the one that `find_score` gives the text: all that isn't `ok` here has another one.
"""

import asyncio
import email.utils
import hashlib
import json
import sys
import time
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

INVALID = ("wrong_schema", "prose", "wrong_json", "half_json", "nothing", "whitespace", "doubled", "nan")
STICKY = ("invalid", "cut_off")
SEED = 4


def find_score(text: str) -> int:
    """Return the score that only a right answer to a text has. White space and composed letters make no difference."""
    plain = "".join(unicodedata.normalize("NFC", text).split())
    return zlib.crc32(plain.encode(errors="replace")) % 1_000_000


def make_answer(text: str, *, is_right: bool = True) -> str:
    """Return an answer that the tests' task accepts, right or not."""
    return json.dumps({"label": "a", "score": find_score(text) + (not is_right)})


def find_record(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the record's text: what follows the first `: ` of the first user's turn, or the whole turn."""
    turn = next(m["content"] for m in messages if m["role"] == "user")
    return turn.split(": ", 1)[-1]


def draw(*parts: object) -> float:
    """Return a number from 0 to 1 that the parts alone decide."""
    digest = hashlib.sha256(repr((SEED, *parts)).encode(errors="replace")).digest()
    return int.from_bytes(digest[:4]) / 2**32


class FaultServer:
    """Answers requests by a script, or by shares of kinds; and counts them."""

    def __init__(
        self,
        script: Mapping[str, Sequence[str] | str] | None = None,
        *,
        default: str = "ok",
        shares: Mapping[str, float] | None = None,
        latency_s: float = 0.0,
        reverse: int = 0,
        log: Path | None = None,
    ) -> None:
        """With `reverse`, so many requests are waited for and then answered in the reverse of their order."""
        self._script = {k: deque([v] if isinstance(v, str) else v) for k, v in (script or {}).items()}
        self._default = default
        self._shares = dict(shares or {})
        self._latency_s = latency_s
        self._reverse = reverse
        self._held: list[asyncio.Event] = []
        self._log = log.open("a", encoding="utf-8", buffering=1) if log else None
        self._asked: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.cancelled = 0
        self.answered: list[str] = []
        """The texts in the order of their answers."""
        self.app = web.Application(client_max_size=64 * 2**20)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/figures", self._figures)
        self.app.router.add_post("/v1/chat/completions", self._complete)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return self._asked.total()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "faults", "object": "model"}]})

    async def _figures(self, _request: web.Request) -> web.Response:
        figures = {
            "requests": self.requests,
            "kinds": self.kinds,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "cancelled": self.cancelled,
        }
        return web.json_response(figures)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            text = find_record((await request.json())["messages"])
            step = self._next_step(text)
            self._asked[text] += 1
            self.kinds[step] += 1
            if self._log:
                self._log.write(f"{zlib.crc32(text.encode(errors='replace')):08x} {step}\n")
            await asyncio.sleep(self._latency_s)
            if self._reverse:
                await self._wait_for_turn()
            self.answered.append(text)
            return await self._do(request, step, text)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    def _next_step(self, text: str) -> str:
        steps = self._script.get(text)
        if steps is not None:
            return steps.popleft() if len(steps) > 1 else steps[0]
        return self._draw_step(text, self._asked[text]) if self._shares else self._default

    def _draw_step(self, text: str, number: int) -> str:
        for kind in (k for k in STICKY if k in self._shares):
            if draw("sticky", kind, text) < self._shares[kind] / 2:
                return _choose(kind, text, number)
        drawn = draw("chance", text, number)
        for kind, share in self._shares.items():
            drawn -= share / 2 if kind in STICKY else share
            if drawn < 0:
                return _choose(kind, text, number)
        return "ok"

    async def _wait_for_turn(self) -> None:
        mine = asyncio.Event()
        self._held.append(mine)
        if len(self._held) < self._reverse:
            await mine.wait()
        else:
            self._held.remove(mine)
        if self._held:
            asyncio.get_running_loop().call_later(0.01, self._held.pop().set)

    async def _do(self, request: web.Request, step: str, text: str) -> web.StreamResponse:
        """Do a step: a status (`500`, `429 1`, `429 date`, `503 html`) or one of the kinds below."""
        name, _, detail = step.partition(" ")
        if name.isdigit():
            return _make_error(int(name), detail)
        match name:
            case "hang":
                await asyncio.Event().wait()
            case "reset":
                assert request.transport
                request.transport.abort()
                return web.Response()
            case "slow":
                return await _drip(request, json.dumps(make_body(make_answer(text))), pause_s=0.02)
            case "endless":
                return await _drip(request, "", pause_s=0.0)
            case "html":
                return web.Response(text="<html><h1>Welcome</h1></html>", content_type="text/html")
            case "wrong_type":
                return web.Response(text=json.dumps(make_body(make_answer(text))), content_type="text/html")
            case "broken_body":
                return web.Response(text='{"choices": [', content_type="application/json")
        return web.json_response(_make_answer(name, text))


def _choose(kind: str, text: str, number: int) -> str:
    return INVALID[int(draw("which", text, number) * len(INVALID))] if kind == "invalid" else kind


def make_body(content: str, finish_reason: str = "stop", **message: str) -> dict[str, Any]:
    """Return the body of a chat completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish_reason,
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}


def _make_answer(kind: str, text: str) -> dict[str, Any]:
    wrong = make_answer(text, is_right=False)
    match kind:
        case "ok":
            return make_body(make_answer(text))
        case "cut_off":  # every other one happens to be whole JSON
            return make_body(wrong if draw("cut", text) < 0.5 else wrong[:-3], "length")
        case "wrong_schema":
            return make_body(wrong.replace('"a"', '"z"'))
        case "prose":
            return make_body(f"Sure! Here is your answer: {wrong} Anything else?")
        case "wrong_json":
            return make_body(f"[{wrong}]")
        case "half_json":
            return make_body(wrong[:-3])
        case "nothing":
            return make_body("")
        case "whitespace":
            return make_body('{"label":' + " \n" * 500, "length")
        case "doubled":
            return make_body(wrong.replace("{", '{"score": 1, '))
        case "nan":
            return make_body('{"label": "a", "score": NaN}')
        case "reasoning":
            return make_body("", reasoning_content="First, …")
        case _:
            raise ValueError(f"no such step: {kind}")


def _make_error(status: int, detail: str) -> web.Response:
    if detail == "html":
        return web.Response(status=status, text="<html><h1>Bad Gateway</h1></html>", content_type="text/html")
    after = email.utils.formatdate(time.time() + 1.5, usegmt=True) if detail == "date" else detail
    headers = {"Retry-After": after} if after else {}
    return web.json_response({"error": {"message": f"status {status}"}}, status=status, headers=headers)


async def _drip(request: web.Request, body: str, *, pause_s: float) -> web.StreamResponse:
    """Send a body in small pieces; an empty one is sent without an end."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for n in range(0, len(body), 40):
        await response.write(body[n : n + 40].encode())
        await asyncio.sleep(pause_s)
    while not body:
        await response.write(b" " * 2**16)
        await asyncio.sleep(pause_s)
    return response


@asynccontextmanager
async def serve_faults(
    script: Mapping[str, Sequence[str] | str] | None = None, **fields: Any
) -> AsyncIterator[tuple[FaultServer, str]]:
    """Run a server for as long as the block lasts; yield it and its base URL."""
    server = FaultServer(script, **fields)
    runner = web.AppRunner(server.app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def _serve(port: int, log: Path, latency_s: float, shares: dict[str, float]) -> None:
    server = FaultServer(shares=shares, latency_s=latency_s, log=log)
    runner = web.AppRunner(server.app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])))
