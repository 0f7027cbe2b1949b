"""The hash of a batch: any cell changes it; how and where the file says it does not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batch_assets.sources import base
from batch_assets.sources.base import SourceBatch
from batch_assets.sources.files import FileSource

Hash = Callable[..., str]

BASE = 'item_id,text\n1,"a\nb"\n2,c\n3,\n'


def read(folder: Path, data: str | bytes, name: str = "b.csv") -> SourceBatch:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    source = FileSource(name).bind(folder)
    return source.read(source.list_batches()[0], [])


@pytest.fixture
def hash_of(tmp_path: Path) -> Hash:
    """A function that hashes the batch in a file of the given text."""
    return lambda data, name="b.csv": read(tmp_path, data, name).source_hash


@pytest.mark.parametrize(
    "data",
    [
        BASE,
        b"\xef\xbb\xbf" + BASE.encode(),
        'item_id,text\r\n1,"a\nb"\r\n2,c\r\n3,\r\n',
        BASE.rstrip("\n"),
        'item_id,text\n\n1,"a\nb"\n\n2,c\n3,\n\n',
        '"item_id";"text"\n"1";"a\nb"\n"2";"c"\n"3";""\n',
        'item_id,text\n3,\n2,c\n1,"a\nb"\n',
    ],
)
def test_how_the_file_is_written_does_not_matter(hash_of: Hash, data: str | bytes) -> None:
    assert hash_of(data) == hash_of(BASE)


def test_the_kind_of_file_does_not_matter(hash_of: Hash) -> None:
    lines = [{"item_id": "1", "text": "a\nb"}, {"item_id": "2", "text": "c"}, {"item_id": "3", "text": ""}]
    assert hash_of("\n".join(map(json.dumps, lines)), "b.jsonl") == hash_of(BASE)


@pytest.mark.parametrize(
    "data",
    [
        BASE.replace("c", "d"),
        BASE.replace("c", "c "),
        BASE.replace("2,c", "4,c"),
        BASE.replace("2,c\n", ""),
        BASE + "4,\n",
        BASE.replace("text", "txet"),
        BASE.replace("a\nb", "a\r\nb"),
        BASE + "5,too,many\n",
        'item_id,text\n1,c\n2,"a\nb"\n3,\n',
        'item_id,text,more\n1,"a\nb",\n2,c,\n3,,\n',
    ],
)
def test_what_the_file_says_does_matter(hash_of: Hash, data: str) -> None:
    assert hash_of(data) != hash_of(BASE)


def test_null_is_not_the_empty_text_nor_the_word(hash_of: Hash) -> None:
    values = ["null", '""', '"null"']
    assert len({hash_of(f'{{"item_id":1,"text":{v}}}', "b.jsonl") for v in values}) == 3


def test_a_line_that_is_set_aside_matters_with_its_number(hash_of: Hash) -> None:
    base = "item_id,text\n1,a\n2,b,c\n"
    found = [base, base.replace("1,a\n", "1,a\n\n"), base.replace("2,b,c", "2,b,c,d"), base.replace("2,b,c\n", "")]
    assert len(set(map(hash_of, found))) == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hash")


cells = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
tables = st.lists(st.tuples(cells, cells), min_size=1, max_size=4)


def hash_table(folder: Path, table: list[tuple[str, str]], order: list[int]) -> str:
    lines = [json.dumps({"item_id": f"r{n}", "a": table[n][0], "b": table[n][1]}) for n in order]
    return read(folder, "\n".join(lines), "b.jsonl").source_hash


@settings(deadline=None, max_examples=40)
@given(tables, st.data())
def test_the_order_of_records_does_not_matter_and_every_cell_does(
    folder: Path, table: list[tuple[str, str]], data: st.DataObject
) -> None:
    order = list(range(len(table)))
    base = hash_table(folder, table, order)
    assert hash_table(folder, table, data.draw(st.permutations(order))) == base
    row, column, cell = data.draw(st.sampled_from(order)), data.draw(st.booleans()), data.draw(cells)
    assume(table[row][column] != cell)
    changed = [(cell, b) if not column else (a, cell) for a, b in [table[row]]]
    assert hash_table(folder, [*table[:row], *changed, *table[row + 1 :]], order) != base


def test_a_batch_is_hashed_in_parts_as_it_would_be_whole(hash_of: Hash, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hash_of(BASE)
    monkeypatch.setattr(base, "HASHED_ROWS", 1)
    assert hash_of(BASE) == whole


def test_the_hash_of_a_batch_is_made_once(tmp_path: Path) -> None:
    batch = read(tmp_path, BASE)
    first = batch.source_hash
    assert batch.source_hash is first
    assert SourceBatch(frame=batch.frame, malformed=batch.malformed).source_hash == first
