"""How often each label was answered, and how far two such distributions lie apart."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

Labels = dict[str, dict[str, int]]
"""Counts by field, then by label."""

NULL, NONE_OF_ANY = "null", "[]"
"""The labels of a field that is null, and of a list without elements."""


def find_label_fields(output: type[BaseModel]) -> dict[str, bool]:
    """Return the categorical fields of an output model, under the names that they have in answers; True for lists.

    Categorical is what has a closed set of values: Literal, Enum, bool, these or null, and lists of these. Fields of
    nested models are not looked at, nor are numbers with bounds.
    """
    schema = output.model_json_schema()
    definitions = cast("dict[str, Any]", schema.get("$defs", {}))
    found: dict[str, bool] = {}
    for name, spec in cast("dict[str, Any]", schema.get("properties", {})).items():
        options = _flatten(spec, definitions)
        items = [i for o in options if o.get("type") == "array" for i in _flatten(o.get("items", {}), definitions)]
        if options and all(_is_closed(o) for o in options):
            found[name] = False
        elif len(options) == 1 and items and all(_is_closed(i) for i in items):
            found[name] = True
    return found


def _flatten(spec: dict[str, Any], definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a value may be, null left out, with references followed."""
    if "$ref" in spec:
        return _flatten(definitions[str(spec["$ref"]).rpartition("/")[2]], definitions)
    options = cast("list[dict[str, Any]] | None", spec.get("anyOf"))
    if options is not None:
        return [found for option in options for found in _flatten(option, definitions)]
    return [] if spec.get("type") == "null" else [spec]


def _is_closed(spec: Mapping[str, Any]) -> bool:
    return "enum" in spec or "const" in spec or spec.get("type") == "boolean"


def count_labels(fields: Mapping[str, bool], columns: Mapping[str, Iterable[object]]) -> Labels:
    """Count the labels of `columns`, by field; lists come as JSON text, as the frame keeps them.

    Each element of a list counts once, so a list of three labels counts three times.
    """
    return {name: _count_lists(columns[name]) if is_list else _count(columns[name]) for name, is_list in fields.items()}


def _count(values: Iterable[object]) -> dict[str, int]:
    return dict(sorted((_name(value), n) for value, n in Counter(values).items()))


def _count_lists(values: Iterable[object]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for value, n in Counter(values).items():
        elements = None if value is None else cast("list[object]", json.loads(str(value)))
        for name in [NULL] if elements is None else [_name(e) for e in elements] or [NONE_OF_ANY]:
            found[name] += n
    return dict(sorted(found.items()))


def _name(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def add_labels(counts: Iterable[Labels]) -> Labels:
    """Return the sums of counts."""
    sums: dict[str, Counter[str]] = {}
    for labels in counts:
        for field, found in labels.items():
            sums.setdefault(field, Counter()).update(found)
    return {field: dict(found) for field, found in sums.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far one field's labels have moved, and the label that moved most: its share now and before."""

    field: str
    distance: float
    by_chance: float
    label: str
    share_now: float
    share_before: float


def find_shifts(now: Labels, before: Labels) -> Sequence[Shift]:
    """Compare each field that both sides have counts of, the greatest distance first."""
    shifts = [_compare(name, now[name], before[name]) for name in now if sum(now[name].values()) and before.get(name)]
    return sorted(shifts, key=lambda s: (-s.distance, s.field))


def _compare(field: str, now: Mapping[str, int], before: Mapping[str, int]) -> Shift:
    """Return the total variation distance, ½ Σ|p - q|: the share of answers that would have to change their label.

    `by_chance` is the distance to expect of two samples this small that come from one distribution: each label's
    difference is close to normal with variance s (1 - s) (1/n + 1/m), s being its share in both together, and the mean
    of a normal's absolute value is sqrt(2/pi) of its standard deviation.
    Source: Levin and Peres, Markov Chains and Mixing Times, 2017, proposition 4.2; the rest follows from it.
    """
    n, m = sum(now.values()), sum(before.values())
    moved: dict[str, tuple[float, float]] = {}
    by_chance = 0.0
    for label in sorted({*now, *before}):
        a, b = now.get(label, 0), before.get(label, 0)
        moved[label] = (a / n, b / m)
        both = (a + b) / (n + m)
        by_chance += math.sqrt(2 / math.pi * both * (1 - both) * (1 / n + 1 / m)) / 2
    most = max(moved, key=lambda k: abs(moved[k][0] - moved[k][1]))
    return Shift(
        field=field,
        distance=sum(abs(p - q) for p, q in moved.values()) / 2,
        by_chance=by_chance,
        label=most,
        share_now=moved[most][0],
        share_before=moved[most][1],
    )
