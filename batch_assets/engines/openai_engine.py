"""Any OpenAI-compatible server over aiohttp: vLLM's own, llama.cpp's, a hosted API. It retries nothing by itself."""

import email.utils
import json
import os
import time
from typing import Any, cast

import aiohttp

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request

_STOPS_THE_RUN = {401: "the key was refused", 402: "the account has no credit", 403: "the key may not do this"}
_NO_SUCH_ADDRESS = {404, 405}  # 405: a redirect has made a GET of our POST
# By code (OpenAI), by param (vLLM, which counts characters before it counts tokens), by type (llama.cpp).
_TOO_LONG = {"context_length_exceeded", "input_tokens", "input_text", "exceed_context_size_error"}
_LONGEST_WAIT_S = 3600.0
"""The cap on Retry-After: a server that is away for longer leaves error rows, not a run that sleeps for days."""


class OpenAIEngine:
    """Asks `POST <base_url>/chat/completions`, with the JSON schema as `response_format`."""

    is_restartable = False

    def __init__(self, entry: ModelEntry) -> None:
        self._entry = entry
        self._base_url = (entry.base_url or "").rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._has_answered = False
        self._key = ""

    async def open(self) -> None:
        """Connect and ask for the list of models, so that a wrong address or key costs no record."""
        headers: dict[str, str] = {}
        if self._entry.api_key_env:
            self._key = os.environ.get(self._entry.api_key_env, "").strip()
            if not self._key or not self._key.isprintable():
                problem = "holds a control character" if self._key else "is not set"
                raise ConfigError(
                    f"{self._entry.model_id}: the environment variable {self._entry.api_key_env} {problem}"
                )
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self._entry.timeout_s),
            connector=aiohttp.TCPConnector(limit=0),
        )
        try:
            async with self._session.get(f"{self._base_url}/models") as response:
                if response.status in _STOPS_THE_RUN:
                    raise EngineDead(f"{self._base_url}: HTTP {response.status}: {_STOPS_THE_RUN[response.status]}")
        except (aiohttp.ClientError, TimeoutError) as e:
            raise EngineDead(f"{self._base_url}: the server can't be reached: {type(e).__name__}") from e

    async def complete(self, request: Request) -> Completion:
        """Ask one request once."""
        if self._session is None:
            raise EngineDead("complete() before open()")
        started = time.monotonic()
        try:
            async with self._session.post(f"{self._base_url}/chat/completions", json=self._body(request)) as response:
                if response.status != 200:
                    raise await _translate_status(response, self._key, has_answered=self._has_answered)
                body: object = await response.json(content_type=None)
        except TimeoutError as e:
            raise RequestFailed(ErrorKind.TIMEOUT, f"no answer in {self._entry.timeout_s:g} s", is_passing=True) from e
        except aiohttp.ClientError as e:
            raise RequestFailed(ErrorKind.CONNECTION, f"connection: {type(e).__name__}", is_passing=True) from e
        except (ValueError, RecursionError) as e:
            raise RequestFailed(ErrorKind.BAD_RESPONSE, "the server's answer is not JSON", is_passing=True) from e
        completion = _read_completion(body, time.monotonic() - started)
        self._has_answered = True
        return completion

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._entry.weights,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": dict(request.schema)},
            },
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        return body


async def _translate_status(
    response: aiohttp.ClientResponse, secret: str, *, has_answered: bool
) -> RequestFailed | EngineDead:
    """Say what a status means. No such address is the server's fault until it has answered once, then the request's."""
    status = response.status
    if status in _STOPS_THE_RUN:
        return EngineDead(f"HTTP {status}: {_STOPS_THE_RUN[status]}")
    if status in _NO_SUCH_ADDRESS and not has_answered:
        return EngineDead(f"HTTP {status}: no such model or address: check weights and base_url in models.yaml")
    message, names = _read_error(await response.read())
    message = message.replace(secret, "***") if secret else message
    words = f"HTTP {status}: {message}"[:300]
    if status == 429:
        after = _read_retry_after(response.headers.get("Retry-After"))
        return RequestFailed(ErrorKind.RATE_LIMITED, words, is_passing=True, retry_after_s=after)
    if status == 408:
        return RequestFailed(ErrorKind.TIMEOUT, words, is_passing=True)
    if status >= 500:
        after = _read_retry_after(response.headers.get("Retry-After"))
        return RequestFailed(ErrorKind.SERVER_ERROR, words, is_passing=True, retry_after_s=after)
    if status < 400:
        return RequestFailed(ErrorKind.BAD_RESPONSE, words, is_passing=True)
    if "content_filter" in names:
        return RequestFailed(ErrorKind.REFUSED, words, is_passing=False)
    if names & _TOO_LONG:
        return RequestFailed(ErrorKind.CONTEXT_LENGTH, words, is_passing=False)
    return RequestFailed(ErrorKind.BAD_REQUEST, words, is_passing=False)


def _read_error(data: bytes) -> tuple[str, set[str]]:
    """Return the server's words and the names that it gives the error, as far as the body is what it should be."""
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError):
        return "an answer that is not JSON", set()
    found: object = cast("dict[str, Any]", body).get("error", body) if isinstance(body, dict) else {}
    error = cast("dict[str, Any]", found) if isinstance(found, dict) else {"message": str(found)}
    names = {name for name in map(error.get, ("code", "param", "type")) if isinstance(name, str)}
    return str(error.get("message", "no message")), names


def _read_retry_after(value: str | None) -> float | None:
    """Read Retry-After, seconds or a date (RFC 9110, section 10.2.3), up to the cap; None where it is neither."""
    if not value:
        return None
    try:
        if value.strip().isdecimal():
            return min(float(value), _LONGEST_WAIT_S)
        wait_s = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(0.0, wait_s), _LONGEST_WAIT_S)
    except (ValueError, OverflowError):
        return None


def _read_completion(body: object, latency_s: float) -> Completion:
    try:
        answer = cast("dict[str, Any]", body)
        choice = answer["choices"][0]
        text: object = choice["message"].get("content")
        finish: object = choice.get("finish_reason")
        usage: object = answer.get("usage")
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise RequestFailed(ErrorKind.BAD_RESPONSE, "the server's answer has no choices", is_passing=True) from e
    return Completion(
        text=text if isinstance(text, str) else "",
        finish_reason=str(finish) if finish is not None else None,
        usage=_read_usage(usage),
        latency_s=latency_s,
    )


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
