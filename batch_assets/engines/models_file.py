"""Reads `models.yaml`: each entry is read by the class that its engine has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.core.names import check_key
from batch_assets.core.yaml_text import load_yaml
from batch_assets.engines.base import EngineEntry
from batch_assets.engines.registry import list_owners, make_entry


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
    fields = cast("Mapping[str, Any]", raw)
    if "model_id" in fields:
        raise ConfigError(f"{path}: {model_id}: model_id: the name above the entry is the model's id")
    try:
        entry = make_entry({**fields, "model_id": model_id})
    except ValidationError as e:
        problems = _format_problems(e)
        raise ConfigError(f"{path}: {model_id}: {problems}") from e
    except ConfigError as e:
        raise ConfigError(f"{path}: {model_id}: {e}") from e
    problem = entry.find_problem() if isinstance(entry, EngineEntry) else None
    if problem:
        raise ConfigError(f"{path}: {model_id}: {problem}")
    if entry.opens_weights and entry.weights.startswith("."):
        return entry.model_copy(update={"weights": str((path.parent / entry.weights).resolve())})
    return entry


def _format_problems(error: ValidationError) -> str:
    """Return what pydantic found wrong, field by field, never the values; another engine's field with its owner."""
    found: list[str] = []
    for problem in error.errors(include_input=False):
        field = ".".join(map(str, problem["loc"]))
        owners = list_owners(field) if problem["type"] == "extra_forbidden" else []
        found.append(f"{field}: it is for engine: {' or '.join(owners)}" if owners else f"{field}: {problem['msg']}")
    return "; ".join(found)
