"""The kinds of source by name. A shipped one is a module of this folder that registers its fields."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from batch_assets import sources
from batch_assets.core.errors import ConfigError, format_problems
from batch_assets.sources.base import Source, SourceFields, StreamSource

F = TypeVar("F", bound=SourceFields)
_registered: dict[str, type[SourceFields]] = {}


def register_source(name: str) -> Callable[[type[F]], type[F]]:
    """Name the kind of source by the field that all of its kind, and no other, have: `files`, `table`."""

    def keep(fields: type[F]) -> type[F]:
        _registered[name] = fields
        return fields

    return keep


@cache
def list_sources() -> Mapping[str, type[SourceFields]]:
    """Return the fields of the shipped sources by name, sorted."""
    for module in pkgutil.iter_modules(sources.__path__):
        importlib.import_module(f"{sources.__name__}.{module.name}")
    return dict(sorted(_registered.items()))


def make_source(said: Mapping[str, Any]) -> Source | StreamSource:
    """Return the source that YAML says, of the kind whose field is there; `type` names one of one's own.

    ConfigError names what is wrong.
    """
    fields = {k: v for k, v in said.items() if k != "type"}
    try:
        return _find_fields(said).model_validate(fields).build()
    except ValidationError as e:
        problems = format_problems(e)
        raise ConfigError(f"source: {problems}") from e


def _find_fields(said: Mapping[str, Any]) -> type[SourceFields]:
    if "type" in said:
        return _import_fields(str(said["type"]))
    shipped = list_sources()
    named = [name for name in shipped if name in said]
    if len(named) != 1:
        there = ", ".join(map(str, said)) or "nothing"
        raise ConfigError(f"source: one of {', '.join(shipped)} is wanted, or the type of your own; there is {there}")
    return shipped[named[0]]


def _import_fields(name: str) -> type[SourceFields]:
    module, _, attribute = name.rpartition(".")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"source: type: {name!r} can't be imported: {e}") from e
    if not isinstance(found, type) or not issubclass(found, SourceFields):
        raise ConfigError(f"source: type: {name} is no SourceFields of batch_assets.sources.base")
    return found
