"""Labels: which fields have them, how they are counted, and how far two distributions lie apart."""

import random
from enum import Enum, IntEnum
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from batch_assets.reports.labels import Labels, add_labels, count_labels, find_label_fields, find_shifts


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Inner(BaseModel):
    label: Literal["a", "b"]


class Answer(BaseModel):
    label: Literal["a", "b"]
    only: Literal["x"]
    number: Literal[1, 2]
    colour: Annotated[Colour, Field(description="the colour")] = Colour.RED
    level: Level
    urgent: bool
    maybe: Literal["a", "b"] | None
    maybe_urgent: bool | None = None
    either: Colour | Literal["none"]
    tags: list[Colour]
    tag_set: set[Literal["a", "b"]] | None = None
    renamed: Annotated[bool, Field(alias="is_renamed")]
    score: int
    text: str
    bounded: Annotated[int, Field(ge=1, le=3)]
    open: Literal["a"] | str
    mixed: bool | int
    words: list[str]
    tags_or_one: list[Colour] | Colour
    inner: Inner
    inners: list[Inner]
    pair: tuple[bool, bool]


def test_fields_with_a_closed_set_of_values_have_labels() -> None:
    fields = find_label_fields(Answer)
    scalars = ["label", "only", "number", "colour", "level", "urgent", "maybe", "maybe_urgent", "either", "is_renamed"]
    assert sorted(name for name, is_list in fields.items() if not is_list) == sorted(scalars)
    assert sorted(name for name, is_list in fields.items() if is_list) == ["tag_set", "tags"]


def test_a_model_without_such_fields_has_no_labels() -> None:
    class Text(BaseModel):
        text: str

    class Nothing(BaseModel):
        pass

    assert find_label_fields(Text) == find_label_fields(Nothing) == {}


def test_values_are_counted_by_their_names() -> None:
    fields = {"label": False, "urgent": False, "number": False, "tags": True}
    columns = {
        "label": ["a", "b", "a", None],
        "urgent": [True, False, True, None],
        "number": [1, 1, 0, None],
        "tags": ['["a","b"]', '["a"]', "[]", None],
        "text": ["is", "not", "looked", "at"],
    }
    assert count_labels(fields, columns) == {
        "label": {"a": 2, "b": 1, "null": 1},
        "urgent": {"false": 1, "true": 2, "null": 1},
        "number": {"0": 1, "1": 2, "null": 1},
        "tags": {"a": 2, "b": 1, "[]": 1, "null": 1},
    }


def test_counts_of_batches_add_up() -> None:
    one: Labels = {"label": {"a": 1, "b": 2}}
    assert add_labels([one, {"label": {"b": 1, "c": 1}, "urgent": {"true": 1}}]) == {
        "label": {"a": 1, "b": 3, "c": 1},
        "urgent": {"true": 1},
    }
    assert add_labels([]) == {}
    assert one == {"label": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("now", "before", "distance", "label"),
    [
        ({"a": 5, "b": 5}, {"a": 500, "b": 500}, 0.0, "a"),
        ({"a": 10}, {"b": 10}, 1.0, "a"),
        ({"a": 8, "b": 2}, {"a": 5, "b": 5}, 0.3, "a"),
        ({"a": 4, "b": 4, "c": 2}, {"a": 5, "b": 5}, 0.2, "c"),
        ({"fraud": 40, "card": 60}, {"fraud": 12, "card": 60, "fee": 28}, 0.28, "fee"),
    ],
)
def test_the_distance_is_the_share_that_would_have_to_move(
    now: dict[str, int], before: dict[str, int], distance: float, label: str
) -> None:
    (shift,) = find_shifts({"label": now}, {"label": before})
    assert shift.distance == pytest.approx(distance)
    assert shift.label == label
    assert shift.share_now == pytest.approx(now.get(label, 0) / sum(now.values()))
    assert shift.share_before == pytest.approx(before.get(label, 0) / sum(before.values()))


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 50), min_size=1)


@settings(deadline=None)
@given(counts, counts, counts)
def test_the_distance_is_a_metric(p: dict[str, int], q: dict[str, int], r: dict[str, int]) -> None:
    def distance(one: dict[str, int], other: dict[str, int]) -> float:
        return find_shifts({"f": one}, {"f": other})[0].distance

    assert distance(p, p) == 0
    assert 0 <= distance(p, q) <= 1 + 1e-12
    assert distance(p, q) == pytest.approx(distance(q, p))
    assert distance(p, r) <= distance(p, q) + distance(q, r) + 1e-12


def test_the_field_that_moved_most_comes_first_and_new_or_empty_ones_are_left_out() -> None:
    now: Labels = {"still": {"a": 5}, "moved": {"a": 5}, "new": {"a": 5}, "empty": {}}
    before: Labels = {"still": {"a": 5}, "moved": {"b": 5}, "empty": {"a": 5}, "gone": {"a": 1}}
    assert [s.field for s in find_shifts(now, before)] == ["moved", "still"]


def sample(rng: random.Random, size: int) -> dict[str, int]:
    drawn = rng.choices(["a", "b", "c", "d"], [0.4, 0.3, 0.2, 0.1], k=size)
    return {label: drawn.count(label) for label in set(drawn)}


@pytest.mark.parametrize(("n", "m"), [(20, 20), (50, 500), (400, 4000)])
def test_two_samples_of_one_distribution_lie_as_far_apart_as_chance_says(n: int, m: int) -> None:
    rng = random.Random(n)
    shifts = [find_shifts({"f": sample(rng, n)}, {"f": sample(rng, m)})[0] for _ in range(300)]
    by_chance = sum(s.by_chance for s in shifts) / len(shifts)
    assert sum(s.distance for s in shifts) / len(shifts) == pytest.approx(by_chance, rel=0.1)
