"""The engines by name. A shipped one is a module of this folder that registers its entry; no other file names it."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from batch_assets import engines
from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines.base import EngineEntry

E = TypeVar("E", bound=EngineEntry)
_registered: dict[str, type[EngineEntry]] = {}


def register_engine(name: str) -> Callable[[type[E]], type[E]]:
    """Give an engine's entry the name by which `engine:` of models.yaml says it."""

    def keep(entry: type[E]) -> type[E]:
        _registered[name] = entry
        return entry

    return keep


@cache
def list_engines() -> Mapping[str, type[EngineEntry]]:
    """Return the entries of the shipped engines by name, sorted. No vLLM is imported for it."""
    for module in pkgutil.iter_modules(engines.__path__):
        importlib.import_module(f"{engines.__name__}.{module.name}")
    return dict(sorted(_registered.items()))


def find_engine(name: str) -> type[EngineEntry]:
    """Return the entry of an engine, shipped or by its dotted name. ConfigError says what is wrong with the name."""
    shipped = list_engines()
    if name in shipped:
        return shipped[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        words = f"{name!r} is none of {', '.join(shipped)}; one of your own is said as my_package.my_engine.MyEntry"
        raise ConfigError(f"engine: {words}")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"engine: {name!r} can't be imported: {e}") from e
    if not isinstance(found, type) or not issubclass(found, EngineEntry):
        raise ConfigError(f"engine: {name} is no EngineEntry of batch_assets.engines.base")
    return found


def make_entry(fields: Mapping[str, Any]) -> ModelEntry:
    """Return the entry that the fields say, of the class that their engine has.

    Raises pydantic's ValidationError for fields, and ConfigError for an engine that there isn't. Without an engine, or
    with something else than text for it, what every entry must have is checked, so that all problems are told at once.
    """
    name = fields.get("engine")
    if not isinstance(name, str):
        return ModelEntry.model_validate(fields)
    entry = find_engine(name)
    return entry.model_validate({k: v for k, v in fields.items() if not _says_nothing(k, v, entry)})


def list_owners(field: str) -> list[str]:
    """Return the names of the shipped engines that have a field of their own."""
    return [name for name, entry in list_engines().items() if field in entry.model_fields]


def _says_nothing(field: str, value: object, entry: type[EngineEntry]) -> bool:
    """Say whether it is another engine's field at its default, as `mode: auto` is: entries may share such lines."""
    if field in entry.model_fields:
        return False
    others = (list_engines()[name].model_fields[field] for name in list_owners(field))
    return any(value in (other.default, "") for other in others)
