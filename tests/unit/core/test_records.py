"""What makes a record the same as before, and what makes it empty."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.records import Record, input_hash, is_blank

fields = st.dictionaries(st.sampled_from(["text", "lang", "note"]), st.none() | st.text(max_size=6))


def make_record(item_id: str = "1", **values: str | None) -> Record:
    return Record(item_id=item_id, fields=values)


def test_only_the_fields_that_a_prompt_uses_are_hashed() -> None:
    base = make_record(text="x", note="one")
    assert input_hash(make_record(text="x", note="two"), ["text"]) == input_hash(base, ["text"])
    assert input_hash(make_record(text="x", note="two"), ["text", "note"]) != input_hash(base, ["text", "note"])
    assert input_hash(make_record(text="y", note="one"), ["text"]) != input_hash(base, ["text"])


def test_the_id_of_a_record_is_not_hashed() -> None:
    assert input_hash(make_record("1", text="x"), ["text"]) == input_hash(make_record("2", text="x"), ["text"])


def test_null_and_empty_and_swapped_fields_are_different_inputs() -> None:
    found = [
        input_hash(make_record(text=text, lang=lang), ["text", "lang"])
        for text, lang in [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), (None, "ab"), ("", ""), (None, None)]
    ]
    assert len(set(found)) == len(found)


@settings(deadline=None)
@given(fields)
def test_the_order_and_the_unicode_form_of_fields_do_not_matter(values: dict[str, str | None]) -> None:
    names = ["text", "lang", "note"]
    other = {k: v and unicodedata.normalize("NFD", v) for k, v in reversed(values.items())}
    assert input_hash(make_record(**values), names) == input_hash(make_record(**other), names[::-1])


@pytest.mark.parametrize("text", [None, "", " ", "\t\r\n", "\u00a0\u2003"])
def test_null_and_whitespace_are_blank(text: str | None) -> None:
    assert is_blank(make_record(text=text), ["text"])


def test_a_record_is_blank_only_if_all_its_fields_are() -> None:
    assert not is_blank(make_record(text=" ", note="x"), ["text", "note"])
    assert is_blank(make_record(text=" ", note="x"), ["text"])
    assert is_blank(make_record(note="x"), ["text"])
    assert not is_blank(make_record(text="0"), ["text"])
