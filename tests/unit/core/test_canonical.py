"""Canonical JSON: equal things have one text, different things have different ones."""

import json
import math
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.canonical import canonical_json, digest, digest_text, exact_json, normalise

texts = st.text(max_size=8) | st.sampled_from(
    ["é", "e\u0301", "ﬁ", "Å", "\u212b", "가", "\u1100\u1161", "й", "и\u0306"]
)
composed_texts = texts.map(lambda text: unicodedata.normalize("NFC", text))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(composed_texts, inner, max_size=4),
    max_leaves=12,
)


def decompose(value: Any) -> Any:
    """Return the same value with every string in NFD, as another keyboard or file system writes it."""
    if isinstance(value, str):
        return unicodedata.normalize("NFD", value)
    if isinstance(value, dict):
        return {decompose(k): decompose(v) for k, v in value.items()}
    return [decompose(v) for v in value] if isinstance(value, list) else value


def reverse_keys(value: Any) -> Any:
    """Return the same value with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {k: reverse_keys(v) for k, v in reversed(value.items())}
    return [reverse_keys(v) for v in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=60)
@given(values)
def test_values_that_differ_in_unicode_form_alone_hash_alike(value: Any) -> None:
    assert digest(decompose(value)) == digest(value)


@settings(deadline=None, max_examples=60)
@given(values)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    assert canonical_json(reverse_keys(value)) == canonical_json(value)


@settings(deadline=None, max_examples=60)
@given(values)
def test_canonical_json_says_the_value_and_nothing_else(value: Any) -> None:
    assert json.loads(canonical_json(value)) == normalise(value)


@settings(deadline=None, max_examples=60)
@given(values, values)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    same = json.dumps(normalise(one), sort_keys=True) == json.dumps(normalise(other), sort_keys=True)
    assert (canonical_json(one) == canonical_json(other)) is same


def test_compatibility_characters_stay_different() -> None:
    assert digest("ﬁ") != digest("fi")
    assert digest("²") != digest("2")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], {"a": math.inf}])
def test_what_is_no_json_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_what_json_has_no_word_for_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=[]), max_size=20))
def test_a_digest_is_24_hex_digits_of_any_text(text: str) -> None:
    assert re.fullmatch("[0-9a-f]{24}", digest_text(text))


@settings(deadline=None, max_examples=60)
@given(values)
def test_the_exact_json_of_composed_text_is_the_canonical_one(value: Any) -> None:
    composed = normalise(value)
    assert exact_json(composed) == canonical_json(value)


def test_the_exact_json_keeps_two_spellings_of_a_letter_apart() -> None:
    assert json.loads(exact_json({"a": ["cafe\u0301"]})) == {"a": ["cafe\u0301"]}
    assert exact_json("cafe\u0301") != exact_json("caf\u00e9")
