"""A server in models.yaml: its address and the variable of its key, and what asks it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from batch_assets.engines.base import Engine, EngineEntry
from batch_assets.engines.registry import register_engine


@register_engine("openai")
class OpenAIEntry(EngineEntry):
    """An entry whose model an OpenAI-compatible server has; `weights` is the server's name for it.

    `api_key_env` names the environment variable that holds the key.
    """

    not_identity: ClassVar[Mapping[str, str]] = {
        "base_url": "the same model behind another address; change `revision` when the server's model changes",
        "api_key_env": "who pays",
    }

    base_url: str | None = None
    api_key_env: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")] | None = None

    def find_problem(self) -> str | None:
        """Return what is wrong with the address, or with arguments that no server takes."""
        if not self.base_url:
            return "base_url: an openai engine needs the server's address"
        problem = _find_address_problem(self.base_url)
        if problem:
            return f"base_url: {problem}"
        return "engine_args: a server has its own; they are for engines that we open" if self.engine_args else None

    def build(self, cache_dir: Path) -> Engine:  # noqa: ARG002 - nothing is prepared
        """Return the engine."""
        from batch_assets.engines.openai_engine import OpenAIEngine  # noqa: PLC0415 - it asks by this entry

        return OpenAIEngine(self)


def _find_address_problem(url: str) -> str | None:
    """Return what is wrong with a server's address, or None; never the address: it may hold a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its words quote the address
        return "host and port can't be read"
    if "@" in parts.netloc:
        return "no user or password here: name a variable by api_key_env"
    if parts.query or parts.fragment:
        return "nothing behind '?' or '#': paths are put behind it, and a key is named by api_key_env"
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in url):
        return "an address that begins with http:// or https://, such as http://127.0.0.1:8000/v1, is wanted"
    return None
