"""An OpenAI-compatible server for tests: it makes answers up from the schema and keeps a log of every request.

A request whose messages say `refuse me` gets HTTP 400.
Run as a process of its own (`python counting_server.py PORT LOG LATENCY_S`), so that it outlives what it serves.
"""

import asyncio
import hashlib
import json
import random
import sys
from pathlib import Path

from aiohttp import web

from batch_assets.engines.fake import make_value

REFUSE = "refuse me"


class CountingServer:
    """Logs one line per request: the hash of its messages, and whether the answer was taken (`done`) or not."""

    def __init__(self, log: Path, latency_s: float) -> None:
        self._log = log.open("a", encoding="utf-8", buffering=1)
        self._latency_s = latency_s
        self.app = web.Application(client_max_size=64 * 2**20)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_post("/v1/chat/completions", self._complete)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "counting", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        digest = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:16]
        self._log.write(f"{digest}\n")
        await asyncio.sleep(self._latency_s)
        if REFUSE in str(body["messages"]):
            return web.json_response({"error": {"message": "it was refused"}}, status=400)
        schema = body["response_format"]["json_schema"]["schema"]
        text = json.dumps(make_value(schema, schema, random.Random(digest)))
        return web.json_response(
            {
                "id": digest,
                "object": "chat.completion",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        )


async def _serve(port: int, log: Path, latency_s: float) -> None:
    runner = web.AppRunner(CountingServer(log, latency_s).app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
