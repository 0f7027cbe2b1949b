"""Any OpenAI-compatible server over aiohttp: vLLM's own, llama.cpp's, a hosted API. It retries nothing by itself."""

import asyncio
import email.utils
import json
import os
import re
import time
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion
from batch_assets.core.errors import ConfigError, EngineDead, RequestFailed
from batch_assets.core.requests import Request
from batch_assets.engines.file_descriptors import claim_descriptors
from batch_assets.engines.openai_answer import read_completion
from batch_assets.engines.openai_entry import OpenAIEntry

_STOPS_THE_RUN = {401, 402, 403}
_START_IT = "start it, or correct base_url in models.yaml"
_NO_SUCH_ADDRESS = {404, 405}
_REDIRECTS = {301, 302, 303, 307, 308}
# By code (OpenAI), by param (vLLM, which counts characters before it counts tokens), by type (llama.cpp).
_TOO_LONG = {"context_length_exceeded", "input_tokens", "input_text", "exceed_context_size_error"}
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_LONGEST_WAIT_S = 3600.0
"""The cap on Retry-After: a server that is away for longer leaves error rows, not a run that sleeps for days."""

LARGEST_BODY = 16 * 2**20
"""Bytes of an answer that are read; one that is larger is no answer."""

_CHUNK = 2**16


class OpenAIEngine:
    """Asks `POST <base_url>/chat/completions`, with the JSON schema as `response_format`.

    A request is sent once: aiohttp sends only GETs again when a kept connection breaks, and no redirect is followed, as
    the key would go with it. A request that takes too long or is cancelled is given up at the server as well, as its
    connection is closed. `timeout_s` begins when there is a connection for it; with few file
    descriptors fewer go at once.

    What is raised has no cause and no context: aiohttp's errors hold the request's headers, and these the key.
    """

    is_restartable = False

    def __init__(self, entry: OpenAIEntry) -> None:
        self._entry = entry
        self._base_url = (entry.base_url or "").rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._connections = asyncio.Semaphore(entry.max_in_flight)
        self._has_answered = False
        self._longest_prompt: int | None = None
        """Tokens that the model takes, if the server says so and counts a prompt's; as vLLM's does."""
        self._key = ""

    async def open(self) -> None:
        """Connect and ask for the list of models, so that a wrong address or key costs no record.

        Raises ConfigError if the key can't be sent, or the process may open too few files.
        """
        headers: dict[str, str] = {}
        if self._entry.api_key_env:
            self._key = os.environ.get(self._entry.api_key_env, "").strip()
            if not self._key or not self._key.isprintable():
                problem = "holds a control character" if self._key else "is not set"
                raise ConfigError(
                    f"{self._entry.model_id}: the environment variable {self._entry.api_key_env} {problem}"
                )
            headers["Authorization"] = f"Bearer {self._key}"
        most = claim_descriptors(self._entry.max_in_flight, self._entry.model_id)
        self._connections = asyncio.Semaphore(most)
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self._entry.timeout_s),
            connector=aiohttp.TCPConnector(limit=most),
        )
        problem = ""
        patience = aiohttp.ClientTimeout(
            total=min(self._entry.timeout_s, self._entry.outage_s or self._entry.timeout_s)
        )
        try:
            async with self._session.get(
                f"{self._base_url}/models", allow_redirects=False, timeout=patience
            ) as response:
                if response.status in _STOPS_THE_RUN:
                    problem = _format_stop(response.status, self._entry.api_key_env)
                elif response.status in _REDIRECTS:
                    problem = _hide(_format_redirect(response), self._key)
                elif response.status == 200:
                    self._longest_prompt = _find_limit(await _read_body(response), self._entry.weights)
        except TimeoutError:
            problem = f"no answer in {patience.total:g} s: {_START_IT}"
        except aiohttp.ClientError as e:
            problem = f"the server can't be reached: {format_connection_error(e)}: {_START_IT}"
        except RequestFailed as e:
            problem = f"the list of models: {e}"
        if problem:
            raise EngineDead(f"{self._base_url}: {problem}")

    async def complete(self, request: Request) -> Completion:
        """Ask one request once. One whose prompt the model can't take is not sent."""
        if self._session is None:
            raise EngineDead("complete() before open()")
        async with self._connections:
            await self._refuse_if_too_long(self._session, request)
            started = time.monotonic()
            found = await self._send(self._session, request)
        if isinstance(found, RequestFailed | EngineDead):
            raise found
        completion = read_completion(found, time.monotonic() - started)
        self._has_answered = True
        return completion

    async def _send(self, session: aiohttp.ClientSession, request: Request) -> object:
        """Return what the body of the answer says, or what is to be raised: outside, so that it has no context."""
        url = f"{self._base_url}/chat/completions"
        try:
            async with session.post(url, json=self._body(request), allow_redirects=False) as response:
                data = await _read_body(response)
                if response.status != 200:
                    return _translate_status(
                        response, data, self._entry.api_key_env, self._key, has_answered=self._has_answered
                    )
        except TimeoutError:
            return RequestFailed(ErrorKind.TIMEOUT, f"no answer in {self._entry.timeout_s:g} s", is_passing=True)
        except aiohttp.ClientConnectorError as e:
            return RequestFailed(ErrorKind.CONNECTION, f"connection: {format_connection_error(e)}", is_passing=True)
        except aiohttp.ClientError as e:
            words = f"the connection was dropped: {format_connection_error(e)}"
            return RequestFailed(ErrorKind.DROPPED, words, is_passing=True)
        except RequestFailed as e:
            return e
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            kind = _hide(response.content_type, self._key)
            words = f"the server's answer is not JSON; it calls itself {kind[:60]}"
            return RequestFailed(ErrorKind.BAD_RESPONSE, words, is_passing=True)

    async def _refuse_if_too_long(self, session: aiohttp.ClientSession, request: Request) -> None:
        """Raise RequestFailed for a prompt that the model can't take, by the server's own count of its tokens.

        A token is a byte at least, so that most prompts needn't be counted. If it can't be counted, it is sent.
        """
        limit = self._longest_prompt
        if limit is None or sum(len(m.content.encode(errors="replace")) for m in request.messages) < limit:
            return
        body = {"model": self._entry.weights, "messages": _format_messages(request)}
        url = f"{self._base_url.removesuffix('/v1')}/tokenize"
        count: object = None
        try:
            async with session.post(url, json=body, allow_redirects=False) as response:
                if response.status in _NO_SUCH_ADDRESS:
                    self._longest_prompt = None
                elif response.status == 200:
                    answer: object = json.loads(await _read_body(response))
                    count = cast("dict[str, Any]", answer).get("count") if isinstance(answer, dict) else None
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError, RequestFailed):
            return
        if isinstance(count, int) and count >= limit:
            words = f"the prompt has {count} tokens, the model takes {limit} with the answer"
            raise RequestFailed(ErrorKind.CONTEXT_LENGTH, words, is_passing=False)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._entry.weights,
            "messages": _format_messages(request),
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


def _format_messages(request: Request) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in request.messages]


def _find_limit(data: bytes, name: str) -> int | None:
    """Return the most tokens that a model takes by the server's list of models; None if it doesn't say so."""
    try:
        models = cast("dict[str, Any]", json.loads(data))["data"]
        limit: object = next(m["max_model_len"] for m in models if m["id"] == name)
    except (ValueError, RecursionError, KeyError, TypeError, StopIteration):
        return None
    return limit if isinstance(limit, int) and limit > 0 else None


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read a body, unpacked, up to LARGEST_BODY. Raises RequestFailed if it is larger: its connection is closed."""
    found = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        found += chunk
        if len(found) > LARGEST_BODY:
            response.close()
            words = f"the server's answer has more than {LARGEST_BODY // 2**20} MiB"
            raise RequestFailed(ErrorKind.BAD_RESPONSE, words, is_passing=True)
    return bytes(found)


def _hide(text: str, secret: str) -> str:
    """Return a text without the key, in whatever case: aiohttp writes a content type in lower case."""
    return re.sub(re.escape(secret), "***", text, flags=re.IGNORECASE) if secret else text


def format_connection_error(error: aiohttp.ClientError) -> str:
    """Say why a connection failed, by the system's words if it has some; never by aiohttp's, which may quote us."""
    number = error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else None
    return os.strerror(number) if number is not None and number > 0 else type(error).__name__


def _format_stop(status: int, variable: str | None) -> str:
    """Say what a status that stops the run means, and what mends it; `variable` is the one that holds the key."""
    if status == 402:
        return "HTTP 402: the account has no credit"
    if variable is None:
        return f"HTTP {status}: no key was sent: name the variable that holds one by api_key_env in models.yaml"
    return f"HTTP {status}: the key {'was refused' if status == 401 else 'may not do this'}: look at {variable}"


def _format_redirect(response: aiohttp.ClientResponse) -> str:
    """Say where a server sends us: host and path alone, as the rest may hold anything."""
    try:
        parts = urlsplit(response.headers.get("Location", ""))
        target = f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname else parts.path
    except ValueError:
        target = "another address"
    return f"HTTP {response.status}: a redirect to {target[:200]}; none is followed: set base_url in models.yaml to it"


def _translate_status(
    response: aiohttp.ClientResponse, data: bytes, variable: str | None, secret: str, *, has_answered: bool
) -> RequestFailed | EngineDead:
    """Say what a status means. No such address is the server's fault until it has answered once, then the request's."""
    status = response.status
    if status in _STOPS_THE_RUN:
        return EngineDead(_format_stop(status, variable))
    message, names = _read_error(data)
    if status in _REDIRECTS:
        message = _format_redirect(response).partition(": ")[2]
    message = _hide(message, secret)
    words = f"HTTP {status}: {message}"[:300]
    if status in _NO_SUCH_ADDRESS and not has_answered:
        return EngineDead(f"{words}: no such model or address: check weights and base_url in models.yaml")
    if status in _REDIRECTS and not has_answered:
        return EngineDead(words)
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
    """Read Retry-After, seconds or a date (RFC 9110, section 10.2.3), up to the cap; None if it is neither."""
    if not value:
        return None
    try:
        if _SECONDS.fullmatch(value.strip()):
            return min(float(value), _LONGEST_WAIT_S)
        wait_s = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(0.0, wait_s), _LONGEST_WAIT_S)
    except (ValueError, OverflowError):
        return None
