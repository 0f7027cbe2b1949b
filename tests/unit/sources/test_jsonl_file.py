"""JSON Lines: text, numbers and nulls come back as they were written; a line that is no object is set aside."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.jsonl_file import read_jsonl, read_jsonl_header

Read = Callable[..., SourceBatch]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that reads a JSON Lines file of the given bytes or text."""

    def read_it(data: bytes | str, *fields: str) -> SourceBatch:
        path = tmp_path / "x.jsonl"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return read_jsonl(path, fields)

    return read_it


def read_value(read: Read, value: str) -> str | None:
    """Return what becomes of one JSON value."""
    batch = read(f'{{"v":{value}}}')
    assert batch.malformed == []
    return batch.frame["v"][0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"007"', "007"),
        ("null", None),
        ('""', ""),
        ("true", "true"),
        ("0", "0"),
        ("-0", "-0"),
        ("1.10", "1.10"),
        ("1e400", "1e400"),
        ("1E5", "1E5"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("9" * 5000, "9" * 5000),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ('"a\u2028b\u2029c\x85d"', "a\u2028b\u2029c\x85d"),
        (r'"a\nb\t\"\\\u00e9"', 'a\nb\t"\\é'),
        (r'"\ud83d\ude00"', "😀"),
        ('"e\u0301"', "e\u0301"),
        ("[]", "[]"),
        ("{}", "{}"),
        ('[1.10, "a", null, true]', '[1.10,"a",null,true]'),
        (
            '{"b": 1e400, "a": {"d": 12345678901234567890, "c": "\\n"}}',
            '{"a":{"c":"\\n","d":12345678901234567890},"b":1e400}',
        ),
        ('["e\u0301", "\u2028"]', '["e\u0301","\u2028"]'),
    ],
)
def test_a_value_becomes_text_without_losing_anything(read: Read, value: str, text: str | None) -> None:
    assert read_value(read, value) == text


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n", " \n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_line_ends_and_bom_do_not_matter(read: Read, line_end: str, bom: str) -> None:
    batch = read(bom + line_end.join(['{"a":"1"}', '{"a":"2"}', ""]))
    assert batch.frame["a"].to_list() == ["1", "2"]
    assert batch.malformed == []


def test_records_know_their_lines(read: Read) -> None:
    batch = read('\n{"a":"1"}\nnonsense\n\n{"a":"\u2028"}\n{"a":"3"}')
    assert batch.frame[SOURCE_LINE].to_list() == [2, 5, 6]
    assert [n for n, _ in batch.malformed] == [3]


def test_the_columns_are_all_keys_in_the_order_of_their_coming(read: Read) -> None:
    batch = read('{"b":"1"}\n{"a":"2","b":"3"}\n{"c":null}')
    assert batch.frame.drop(SOURCE_LINE).to_dict(as_series=False) == {
        "b": ["1", "3", None],
        "a": [None, "2", None],
        "c": [None, None, None],
    }
    assert batch.frame.schema == {"b": pl.String, "a": pl.String, "c": pl.String, SOURCE_LINE: pl.Int64}


MALFORMED: dict[str, tuple[str, str]] = {
    "nonsense": ("nonsense", "not JSON: "),
    "cut off": ('{"a":"1"', "not JSON: "),
    "two objects": ('{"a":1}{"a":2}', "not JSON: "),
    "an array": ('["a"]', "expected an object, found list"),
    "a string": ('"a"', "expected an object, found str"),
    "a number": ("1.5", "expected an object, found a number"),
    "null": ("null", "expected an object, found NoneType"),
    "NaN": ('{"a":NaN}', "not JSON: NaN is not JSON"),
    "-Infinity": ('{"a":[-Infinity]}', "not JSON: -Infinity is not JSON"),
    "a raw tab in a string": ('{"a":"\t"}', "not JSON: "),
    "half a surrogate pair": (r'{"a":"\ud83d"}', "an unpaired surrogate"),
    "the other half, inside": (r'{"a":[{"b":"\ude00"}]}', "an unpaired surrogate"),
    "a surrogate in a key": (r'{"\ud83d":1}', "an unpaired surrogate"),
    "a surrogate in a key, inside": (r'{"a":{"\ud83d":1}}', "an unpaired surrogate"),
    "a doubled key": ('{"a":1,"b":2,"a":3}', "not JSON: the key 'a' comes twice"),
    "a doubled key, spelt otherwise": (r'{"a":1,"\u0061":1}', "not JSON: the key 'a' comes twice"),
    "a doubled key, inside": ('{"a":{"x":1,"x":1}}', "not JSON: the key 'x' comes twice"),
    "nested deeply": (f'{{"a":{"[" * 600}{"]" * 600}}}', "not JSON: maximum recursion depth"),
    "nested very deeply": (f'{{"a":{"[" * 100_000}{"]" * 100_000}}}', "not JSON: maximum recursion depth"),
}


@pytest.mark.parametrize(("line", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_line_that_is_no_object_is_set_aside_with_its_number_and_reason(read: Read, line: str, reason: str) -> None:
    batch = read(f'{{"a":"1"}}\n{line}\n{{"a":"3"}}\n', "a")
    assert batch.frame["a"].to_list() == ["1", "3"]
    [(number, words)] = batch.malformed
    assert number == 2
    assert words.startswith(reason)


def test_a_line_without_a_field_that_is_needed_is_set_aside_with_its_number(read: Read) -> None:
    batch = read('{"a":"1","b":null,"c":""}\nnonsense\n{"a":"2"}\n{"a":"3","b":"x","c":"y"}', "a", "b", "c")
    assert batch.frame["a"].to_list() == ["1", "3"]
    assert batch.malformed[1:] == [(3, "no field 'b', 'c'")]


def test_a_field_that_no_line_has_is_an_error_with_the_first_line(read: Read) -> None:
    with pytest.raises(SourceError, match=r"x\.jsonl: line 2: no field 'b'; no other line has it either"):
        read('\n{"a":"1"}\n{"a":"2"}\n', "a", "b")


def test_null_is_a_value_of_a_field_that_is_needed(read: Read) -> None:
    assert read('{"a":null}', "a").frame["a"].to_list() == [None]


@pytest.mark.parametrize("data", ["", "\n\n", "\ufeff", "nonsense\n"])
def test_a_file_without_an_object_is_a_batch_without_records(read: Read, data: str) -> None:
    batch = read(data, "id", "text")
    assert batch.frame.is_empty()
    assert batch.frame.columns == ["id", "text", SOURCE_LINE]
    assert len(batch.malformed) == data.count("nonsense")


@pytest.mark.parametrize(("data", "line"), [(b'{"a":"caf\xe9"}', 1), (b'{"a":1}\r\n{"a":"\xed\xa0\x80"}', 2)])
def test_bytes_that_are_not_utf8_are_refused_with_their_line(read: Read, data: bytes, line: int) -> None:
    with pytest.raises(SourceError, match=rf"x\.jsonl: line {line}: not UTF-8"):
        read(data)


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"", None),
        (b"nonsense\n[]\n", None),
        (b'\n1\n{"b":1,"a":2}\n{"c":3}', ("b", "a", "c")),
        (b'{"id":1}\n{"id":2,"text":"x"}', ("id", "text")),
        (b'\xef\xbb\xbf{"id":"\xe2\x80\xa8"}', ("id",)),
        (b'{"id":"caf\xe9"}', ("id",)),
    ],
)
def test_the_header_is_what_the_first_objects_have(
    tmp_path: Path, data: bytes, columns: tuple[str, ...] | None
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    assert read_jsonl_header(path) == columns


# Laws


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts.filter(lambda k: k != SOURCE_LINE), values, min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jsonl")


@settings(deadline=None, max_examples=80)
@given(st.lists(objects, min_size=1, max_size=4), st.booleans())
def test_what_was_written_comes_back_exactly(folder: Path, written: list[dict[str, Any]], is_ascii: bool) -> None:
    path = folder / "x.jsonl"
    path.write_text("\n".join(json.dumps(o, ensure_ascii=is_ascii) for o in written), encoding="utf-8")
    batch = read_jsonl(path, [])
    assert batch.malformed == []
    assert batch.frame[SOURCE_LINE].to_list() == list(range(1, len(written) + 1))
    for row, original in zip(batch.frame.to_dicts(), written, strict=True):
        for name, value in original.items():
            text = row[name]
            assert text == value if value is None or isinstance(value, str) else json.loads(text) == value
        assert {name for name in row if row[name] is not None} <= {*original, SOURCE_LINE}


pieces = st.sampled_from(
    [
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"\n",
        b"\\",
        b"\\ud800",
        b"1",
        b"-",
        b"e9",
        b"null",
        b'{"a":1}',
        b"\xff",
        b"\0",
    ]
)


@settings(deadline=None, max_examples=120)
@given(st.binary(max_size=30) | st.lists(pieces, max_size=16).map(b"".join))
def test_any_bytes_are_a_batch_or_a_source_error(folder: Path, data: bytes) -> None:
    path = folder / "any.jsonl"
    path.write_bytes(data)
    try:
        read_jsonl_header(path)
        batch = read_jsonl(path, ["a"])
    except SourceError:
        return
    lines = [line for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    assert batch.frame.height + len(batch.malformed) == len(lines)
