"""Files that nobody here wrote, of ../shared/data/nasty: csv-spectrum, csvkit, naughty strings, JSONTestSuite."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE
from batch_assets.sources.csv_file import read_csv
from batch_assets.sources.files import FileSource
from batch_assets.sources.jsonl_file import read_jsonl

NASTY = Path(__file__).resolve().parents[4] / "shared" / "data" / "nasty"

pytestmark = pytest.mark.skipif(
    not NASTY.is_dir(), reason=f"{NASTY} is absent: these files lie beside the checkout, not in it"
)


def find(folder: str, pattern: str) -> list[Path]:
    return sorted((NASTY / folder).glob(pattern)) if NASTY.is_dir() else []


@pytest.mark.parametrize("path", find("csv_spectrum", "*.csv"), ids=lambda path: path.stem)
def test_csv_spectrum_is_read_as_its_gold_says(path: Path) -> None:
    gold: Any = json.loads(path.with_suffix(".gold.json").read_text(encoding="utf-8"))
    batch = read_csv(path, None)
    found = batch.frame.drop(SOURCE_LINE).to_dicts()
    if path.stem == "location_coordinates":  # its gold is one object, and has another phone number than its file
        gold = [{**gold, "Contact Phone Number": found[0]["Contact Phone Number"]}]
    assert found == gold
    assert batch.malformed == []


@pytest.mark.parametrize("name", ["naughty_strings.csv", "naughty_strings.jsonl"])
def test_every_naughty_string_is_read_as_it_is(name: str) -> None:
    strings = json.loads((NASTY / "blns" / "blns.json").read_text(encoding="utf-8"))
    source = FileSource(name).bind(NASTY / "blns")
    batch = source.read(source.list_batches()[0], ["text"])
    assert batch.malformed == []
    cleaned = {n: re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", " ", text) for n, text in enumerate(strings)}
    assert batch.frame["text"].to_list() == list(cleaned.values())
    odd = [n for n, text in cleaned.items() if text != strings[n]]
    assert [line for line, _ in batch.cleaned] == [batch.frame[SOURCE_LINE][n] for n in odd]
    assert len(odd) == 5


REFUSED = {
    "bad_skip_lines": "line 1: it is empty",
    "empty": "line 1: it is empty",
    "sheetsxlsx_converted": "line 1: column names must be there",
    "test_empty_columns": "line 1: column names must be there",
    "test_latin1": "line 3: not UTF-8 (byte 0xa9): it may be cp",
    "test_skip_lines": "line 1: it is empty",
    "test_utf16_big": "line 1: not UTF-8 (byte 0xfe): it looks like utf-16:",
    "test_utf16_little": "line 1: not UTF-8 (byte 0xff): it looks like utf-16:",
}
SET_ASIDE = {
    "bad": [2, 3],
    "join_a_short": [2, 3],
    "test_empty_columns_long_row": [2],
    "test_empty_columns_short_row": [2],
    "test_extra_header": [2],
    "test_join_short_rows": [2, 3],
}


@pytest.mark.parametrize("path", find("csvkit", "*.csv"), ids=lambda path: path.stem)
def test_each_example_of_csvkit_is_read_set_aside_or_refused_by_name(path: Path) -> None:
    if path.stem in REFUSED:
        with pytest.raises(SourceError, match=re.escape(f"{path}: {REFUSED[path.stem]}")):
            read_csv(path, None)
        return
    batch = read_csv(path, None)
    assert [n for n, _ in batch.malformed] == SET_ASIDE.get(path.stem, [])
    if path.stem not in ("test_header_newline", "mac_newlines"):  # these have records of several lines
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        assert 1 + batch.frame.height + len(batch.malformed) == len(lines)


def test_utf8_with_a_bom_is_read_as_without() -> None:
    with_bom, without = (read_csv(NASTY / "csvkit" / name, None) for name in ("test_utf8_bom.csv", "test_utf8.csv"))
    assert with_bom.frame.equals(without.frame)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_file_in_another_encoding_is_read_where_the_task_names_it(encoding: str) -> None:
    batch = read_csv(NASTY / "csvkit" / "test_latin1.csv", None, encoding)
    assert batch.frame.rows() == [("1", "2", "3", 2), ("4", "5", "©", 3)]
    for name in ("test_utf16_big.csv", "test_utf16_little.csv"):
        assert read_csv(NASTY / "csvkit" / name, None, "utf-16").frame.rows()[1] == ("4", "5", "ʤ", 3)


def test_naughty_strings_survive_every_encoding_that_has_them(tmp_path: Path) -> None:
    text = (NASTY / "blns" / "naughty_strings.jsonl").read_text(encoding="utf-8")
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "gb18030"):
        (tmp_path / "b.jsonl").write_bytes(text.encode(encoding))
        source = FileSource("*.jsonl", encoding=encoding).bind(tmp_path)
        found = source.read(source.list_batches()[0], ["text"])
        plain = FileSource("naughty_strings.jsonl").bind(NASTY / "blns")
        assert found.frame.equals(plain.read(plain.list_batches()[0], ["text"]).frame), encoding


def test_every_file_under_every_suffix_is_a_batch_or_refused_by_name(tmp_path: Path) -> None:
    paths = [p for p in find(".", "**/*") if p.is_file()]
    assert len(paths) > 400
    read = 0
    for number, path in enumerate(paths):
        for suffix in (".csv", ".jsonl", ".parquet"):
            copy = tmp_path / f"{number}{suffix}"
            copy.write_bytes(path.read_bytes())
            source = FileSource(copy.name, key="id").bind(tmp_path)
            try:
                source.columns()
                source.read(source.list_batches()[0], [])
                read += 1
            except SourceError as e:
                assert copy.name in str(e)
            copy.unlink()
    assert read > 5


def test_a_nul_byte_is_text() -> None:
    assert read_csv(NASTY / "csvkit" / "null_byte.csv", None).frame.rows() == [("\0", "2", "3", 2)]


def wrap(path: Path, folder: Path) -> Path:
    """Write a file of JSON as the value of a field, on a line between two good ones."""
    wrapped = folder / "x.jsonl"
    data = path.read_bytes().strip(b"\n")
    wrapped.write_bytes(b'{"id":"1","v":0}\n{"id":"2","v":' + data + b'}\n{"id":"3","v":0}\n')
    return wrapped


def test_what_is_json_is_read_and_what_is_not_is_set_aside_or_refused(tmp_path: Path) -> None:
    set_aside: set[str] = set()
    for path in find("json_parsing", "[yn]_*.json"):
        wrapped = wrap(path, tmp_path)
        if wrapped.read_bytes().count(b"\n") > 3:
            continue  # over several lines it is no JSON Lines
        try:
            batch = read_jsonl(wrapped, ["id", "v"])
        except SourceError as e:
            assert path.name.startswith("n_"), path.name
            assert "not UTF-8" in str(e)
            continue
        ids = batch.frame["id"].to_list()
        assert ids in (["1", "2", "3"], ["1", "3"]), path.name
        if len(ids) == 2:
            assert [n for n, _ in batch.malformed] == [2]
            set_aside.add(path.name)
        elif path.name.startswith("y_"):
            text = batch.frame["v"][1]
            value = json.loads(path.read_bytes())
            assert text == value if isinstance(value, str) or value is None else json.loads(text) == value
        else:
            raise AssertionError(f"{path.name} was read as {batch.frame['v'][1]!r}")
    assert {name for name in set_aside if name.startswith("y_")} == {
        "y_object_duplicated_key.json",
        "y_object_duplicated_key_and_value.json",
    }
