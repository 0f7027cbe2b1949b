"""FileSource: a batch per file, ids that are there and differ, and every problem named by file, line and field."""

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, BatchRef, SourceBatch
from batch_assets.sources.files import FileSource

Read = Callable[..., SourceBatch]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that writes one file and reads it as a batch."""

    def read_it(text: str, fields: Sequence[str] = (), *, key: str = "id", name: str = "b.csv") -> SourceBatch:
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        source = FileSource(name, key=key).bind(tmp_path)
        [ref] = source.list_batches()
        return source.read(ref, fields)

    return read_it


def write_all(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("item_id,text\n1,a\n")


# Batches


def test_each_file_is_a_batch_named_by_its_stem_in_the_order_of_the_names(tmp_path: Path) -> None:
    write_all(tmp_path, "2026-11-02.csv", "2026-11-01.csv", "sub/2026-10-31.csv", "2026.11.03.tsv", "notes.md")
    source = FileSource("**/*.[ct]sv").bind(tmp_path)
    refs = source.list_batches()
    assert [r.batch for r in refs] == ["2026-10-31", "2026-11-01", "2026-11-02", "2026.11.03"]
    assert refs[0].locator == str(tmp_path / "sub" / "2026-10-31.csv")


def test_what_is_no_file_or_is_hidden_is_no_batch(tmp_path: Path) -> None:
    write_all(tmp_path, "a.csv", ".hidden.csv", "folder.csv/inside.txt")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere")
    assert [r.batch for r in FileSource("*.csv").bind(tmp_path).list_batches()] == ["a"]


def test_a_pattern_without_files_offers_nothing(tmp_path: Path) -> None:
    source = FileSource("*.csv").bind(tmp_path)
    assert source.list_batches() == []
    assert source.columns() is None


@pytest.mark.parametrize("name", ["my file.csv", "a|b.csv", "ünï.csv", "a..b.csv", "_a.csv", "x" * 101 + ".csv"])
def test_a_file_name_that_cannot_be_a_key_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_all(tmp_path, name)
    with pytest.raises(ConfigError, match="can't be a partition key") as error:
        FileSource("*").bind(tmp_path).list_batches()
    assert name in str(error.value)


def test_two_files_of_one_stem_are_refused_by_name(tmp_path: Path) -> None:
    write_all(tmp_path, "a.csv", "a.jsonl")
    with pytest.raises(ConfigError, match=r"a\.(csv|jsonl) and .*a\.(csv|jsonl) would both be batch 'a'"):
        FileSource("*").bind(tmp_path).list_batches()


def test_a_stamp_changes_with_size_and_time_and_not_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_all(tmp_path, "a.csv")
    source = FileSource("*.csv").bind(tmp_path)

    def stamp() -> str:
        return source.list_batches()[0].stamp

    before = stamp()
    assert stamp() == before
    os.utime(path, ns=(1, 1))
    touched = stamp()
    assert touched != before
    path.write_text("item_id,text\n1,ab\n")
    os.utime(path, ns=(1, 1))
    assert stamp() not in (before, touched)


def test_an_absolute_pattern_needs_no_folder(tmp_path: Path) -> None:
    write_all(tmp_path, "a.csv")
    assert [r.batch for r in FileSource(str(tmp_path / "*.csv")).list_batches()] == ["a"]
    assert [r.batch for r in FileSource(str(tmp_path / "*.csv")).bind(Path("/nowhere")).list_batches()] == ["a"]


def test_a_relative_pattern_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"source '\*\.csv': a relative pattern needs the task's folder"):
        FileSource("*.csv").list_batches()


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx", "a.csv.gz"])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_all(tmp_path, name)
    source = FileSource("*").bind(tmp_path)
    with pytest.raises(
        ConfigError, match=re.escape(name) + r".*files are \.csv, \.tsv, \.jsonl, \.ndjson or \.parquet"
    ):
        source.read(source.list_batches()[0], [])


@pytest.mark.parametrize(
    "wrong", [{"key": SOURCE_LINE}, {"delimiter": ""}, {"delimiter": ",,"}, {"delimiter": '"'}, {"delimiter": "\n"}]
)
def test_a_source_that_no_file_can_satisfy_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"source '\*\.csv': (key|delimiter)"):
        FileSource("*.csv", **wrong)


# Columns


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "item_id,text\n1,x\n"),
        ("a.tsv", "item_id\ttext\n"),
        ("a.JSONL", '{"item_id":1,"text":"x"}'),
        ("a.ndjson", '{"item_id":1,"text":"x"}'),
    ],
)
def test_the_columns_are_those_that_some_file_has(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "b.csv").write_text("other\n")
    (tmp_path / "c.csv").write_text("")
    assert FileSource("*").bind(tmp_path).columns() == ("item_id", "text", "other")


def test_the_columns_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    pl.DataFrame({"item_id": [1], "text": ["x"]}).write_parquet(tmp_path / "a.parquet")
    assert FileSource("*").bind(tmp_path).columns() == ("item_id", "text")


# Records


def test_the_id_comes_first_and_is_called_item_id(read: Read) -> None:
    frame = read("text,id,more\na,007,x\n", ["text"]).frame
    assert frame.columns == [ITEM_ID, SOURCE_LINE, "text", "more"]
    assert frame.row(0) == ("007", 2, "a", "x")


def test_an_id_that_a_prompt_uses_is_a_field_too(read: Read) -> None:
    frame = read("id,text\n007,a\n", ["id", "text"]).frame
    assert frame.columns == [ITEM_ID, SOURCE_LINE, "id", "text"]
    assert frame.row(0) == ("007", 2, "007", "a")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.csv", "id,text\n007,a\n12345678901234567890,b\n"),
        ("b.jsonl", '{"id":"007","text":"a"}\n{"id":12345678901234567890,"text":"b"}'),
    ],
)
def test_an_id_keeps_all_its_digits(read: Read, name: str, text: str) -> None:
    assert read(text, name=name).frame[ITEM_ID].to_list() == ["007", "12345678901234567890"]


def test_the_id_of_a_parquet_file_may_be_a_number(tmp_path: Path) -> None:
    pl.DataFrame({"id": [2**60, 7], "text": ["a", None]}).write_parquet(tmp_path / "b.parquet")
    source = FileSource("*", key="id").bind(tmp_path)
    assert source.read(source.list_batches()[0], ["text"]).frame.rows() == [(str(2**60), 1, "a"), ("7", 2, None)]


@pytest.mark.parametrize("text", ["no,text\n1,a\n", "ID,text\n1,a\n", " id,text\n1,a\n", "text\n"])
def test_a_missing_id_column_is_named(read: Read, text: str) -> None:
    with pytest.raises(SourceError, match=r"b\.csv: line 1: no column 'id'; it has .*text"):
        read(text)


def test_every_missing_column_is_named(read: Read) -> None:
    with pytest.raises(SourceError, match=r"b\.csv: line 1: no column 'lang', 'source_line'; it has id, text"):
        read("id,text\n1,a\n", ["text", "lang", SOURCE_LINE])


def test_a_missing_column_is_named_where_there_is_no_record_either(read: Read) -> None:
    with pytest.raises(SourceError, match="no column 'lang'"):
        read("id,text\n", ["lang"])


@pytest.mark.parametrize("blank", ["", " ", "\t", "\u00a0", '"\n"'])
def test_a_blank_id_is_an_error_with_its_lines(read: Read, blank: str) -> None:
    with pytest.raises(SourceError, match=r"b\.csv: lines 3, \d+: id: the id is missing or blank"):
        read(f"id,text\n1,a\n{blank},b\n{blank},c\n2,d\n")


@pytest.mark.parametrize("blank", ["null", '""', '" "'])
def test_a_blank_id_of_json_is_an_error_with_its_line(read: Read, blank: str) -> None:
    with pytest.raises(SourceError, match=r"b\.jsonl: line 2: id: the id is missing or blank"):
        read(f'{{"id":1}}\n{{"id":{blank}}}', name="b.jsonl")


def test_a_doubled_id_is_an_error_that_names_both_lines(read: Read) -> None:
    with pytest.raises(SourceError, match=r"b\.csv: lines 2, 5: id: the id 'x' comes 2 times$"):
        read('id,text\nx,a\ny,"b\nb"\nx,c\n')


def test_of_many_doubled_ids_the_first_is_shown_and_the_rest_counted(read: Read) -> None:
    lines = "".join(f"{n % 3},a\n" for n in range(30))
    with pytest.raises(
        SourceError, match=r"lines 2, 5, 8, 11, 14, …: id: the id '0' comes 10 times \(and 2 more ids\)"
    ):
        read(f"id,text\n{lines}")


def test_ids_that_differ_in_spaces_or_case_are_different(read: Read) -> None:
    assert read("id,text\nx,a\nX,b\n x,c\n").frame.height == 3


@pytest.mark.parametrize("character", ["\0", "\x01", "\x1f", "\x7f"])
def test_an_id_with_a_control_character_is_an_error_with_its_line(read: Read, character: str) -> None:
    with pytest.raises(SourceError, match=r"b\.csv: line 3: id: a control character in the id"):
        read(f"id,text\n1,a\n2{character},b\n")


def test_another_column_called_item_id_is_an_error(read: Read) -> None:
    with pytest.raises(SourceError, match="the id is column 'id', so no other may be called 'item_id'"):
        read("id,item_id\n1,2\n")


def test_lines_that_are_set_aside_do_not_count_as_records(read: Read) -> None:
    batch = read("id,text\n1,a\n1,b,c\n2,d\n")
    assert batch.frame[ITEM_ID].to_list() == ["1", "2"]
    assert [n for n, _ in batch.malformed] == [3]


@pytest.mark.parametrize("name", ["gone.csv", "gone.jsonl", "gone.parquet"])
def test_a_file_that_has_gone_is_a_source_error(tmp_path: Path, name: str) -> None:
    ref = BatchRef(batch="gone", locator=str(tmp_path / name), stamp="")
    with pytest.raises(SourceError, match=re.escape(name)):
        FileSource("*", key="id").bind(tmp_path).read(ref, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_a_source_error(tmp_path: Path) -> None:
    write_all(tmp_path, "a.csv")
    (tmp_path / "a.csv").chmod(stat.S_IWUSR)
    source = FileSource("*").bind(tmp_path)
    with pytest.raises(SourceError, match=r"a\.csv: can't be read: Permission denied"):
        source.read(source.list_batches()[0], [])
    with pytest.raises(SourceError, match=r"a\.csv: can't be read: Permission denied"):
        source.columns()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


pieces = st.sampled_from(
    [b"id", b",", b'"', b"\n", b"\r", b"a", b"1", b'{"id":"1"}\n', b'{"id":null}\n', b"id,text\n", b"\0", b"\xff"]
)


@settings(deadline=None, max_examples=80)
@given(
    st.binary(max_size=30) | st.lists(pieces, max_size=12).map(b"".join),
    st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.ndjson", "a.parquet"]),
)
def test_any_file_is_a_batch_or_a_source_error(folder: Path, data: bytes, name: str) -> None:
    (folder / name).write_bytes(data)
    source = FileSource(name, key="id").bind(folder)
    try:
        source.columns()
        batch = source.read(source.list_batches()[0], [])
    except SourceError as e:
        assert name in str(e)
        return
    assert batch.frame[ITEM_ID].is_unique().all()
    assert len(batch.source_hash) == 24
