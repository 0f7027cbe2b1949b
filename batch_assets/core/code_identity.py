"""The code that judges an answer, as text to hash: models, their bases and parts, rules, and what these refer to.

What a function refers to is followed inside its own module: other functions, classes and plain constants. Elsewhere
(a list read from a file, another package) `rules_version` has to say that something changed.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

PLAIN = (str, int, float, bool, bytes, tuple, list, set, frozenset, dict, re.Pattern, type(None))


def read_code(things: list[Callable[..., Any] | type]) -> list[tuple[str, str]]:
    """Return (name, source) of `things` and of what they refer to, sorted; where a module lies doesn't matter.

    Raises OSError or TypeError if one has no source.
    """
    seen: set[int] = set()
    found: set[tuple[str, str]] = set()
    waiting = list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        found.add((thing.__qualname__, inspect.getsource(thing)))
        for reference, value in _find_references(thing):
            if isinstance(value, type | types.FunctionType):
                waiting.append(value)
            else:
                found.add((f"{thing.__qualname__}:{reference}", _format_value(value)))
    return sorted(found)


def _find_references(thing: Callable[..., Any] | type) -> Iterator[tuple[str, object]]:
    """Yield what a class or function refers to: parts of a model, bases, and names of its module."""
    if isinstance(thing, type):
        for part in _find_parts(thing):
            yield part.__name__, part
        functions = [f for f in map(_unwrap, vars(thing).values()) if f is not None]
    else:
        functions = [f for f in [_unwrap(thing)] if f is not None]
    for function in functions:
        if function.__module__ != thing.__module__:
            continue
        for name in sorted(_names_in(function.__code__)):
            value = function.__globals__.get(name)
            is_own = isinstance(value, type | types.FunctionType) and value.__module__ == thing.__module__
            if name in function.__globals__ and (is_own or isinstance(value, PLAIN)):
                yield name, value


def _find_parts(model: type) -> Iterator[type]:
    """Yield the models that a model is made of: its bases, and those in its fields' types."""
    for base in model.__mro__[1:]:
        if issubclass(base, BaseModel) and not base.__module__.startswith("pydantic"):
            yield base
    if issubclass(model, BaseModel):
        for field in model.model_fields.values():
            yield from _models_in(field.annotation)


def _models_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _unwrap(value: object) -> types.FunctionType | None:
    """Return the function inside a method, a classmethod, a property or one of pydantic's validators."""
    for attribute in ("wrapped", "__wrapped__", "__func__", "fget"):
        inner = getattr(value, attribute, None)
        if inner is not None and inner is not value:
            return _unwrap(inner)
    return value if isinstance(value, types.FunctionType) else None


def _names_in(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names_in(c) for c in inner))


def _format_value(value: object) -> str:
    """Return a constant as text that is the same in every process: sets have no order of their own."""
    if isinstance(value, set | frozenset):
        return repr(sorted(map(repr, value)))  # pyright: ignore[reportUnknownArgumentType]
    return repr(value)
