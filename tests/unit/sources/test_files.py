"""FileSource: a batch per file, ids that are there and differ, and every problem named by file, line and field."""

import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
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


def test_a_file_that_goes_while_the_folder_is_read_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, "a.csv", "b.csv")
    is_file = Path.is_file

    def is_file_and_then_gone(path: Path) -> bool:
        found = is_file(path)
        if path.name == "b.csv":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", is_file_and_then_gone)
    assert [r.batch for r in FileSource("*.csv").bind(tmp_path).list_batches()] == ["a"]


@pytest.mark.parametrize("pattern", ["", ".", "/", "**x/*.csv", "~no_such_user_here/*.csv"])
def test_what_is_no_pattern_of_files_is_refused_by_name(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=f"^source {re.escape(repr(pattern))}: not a pattern of files"):
        FileSource(pattern).bind(tmp_path).list_batches()


def test_a_folder_that_cant_be_read_is_told_by_its_pattern(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^source '.*': the files can't be listed: .*too long"):
        FileSource("a" * 300 + "/*.csv").bind(tmp_path).columns()


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

    def change_token() -> str:
        return source.list_batches()[0].change_token

    before = change_token()
    assert change_token() == before
    os.utime(path, ns=(1, 1))
    touched = change_token()
    assert touched != before
    path.write_text("item_id,text\n1,ab\n")
    os.utime(path, ns=(1, 1))
    assert change_token() not in (before, touched)


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


def test_an_id_column_called_as_a_pattern_of_columns_leaves_the_others(read: Read) -> None:
    frame = read("^t.*$,text\n1,a\n", ["text"], key="^t.*$").frame
    assert frame.to_dicts() == [{ITEM_ID: "1", SOURCE_LINE: 2, "text": "a"}]


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


def read_as(folder: Path, data: bytes, encoding: str = "utf-8", name: str = "b.csv") -> SourceBatch:
    """Write bytes and read them as a batch with the field `text`."""
    (folder / name).write_bytes(data)
    source = FileSource(name, key="id", encoding=encoding).bind(folder)
    assert source.columns() == ("id", "text")
    return source.read(source.list_batches()[0], ["text"])


@pytest.mark.parametrize(
    "encoding", ["cp1252", "latin-1", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "mac_roman"]
)
@pytest.mark.parametrize("name", ["b.csv", "b.jsonl"])
def test_an_encoding_that_the_task_names_is_read(tmp_path: Path, encoding: str, name: str) -> None:
    text = "id,text\n1,Crème brûlée\n" if name == "b.csv" else '{"id":1,"text":"Crème brûlée"}\n'
    batch = read_as(tmp_path, text.encode(encoding), encoding, name)
    assert batch.frame["text"].to_list() == ["Crème brûlée"]


@pytest.mark.parametrize(("bom", "encoding"), [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")])
def test_a_bom_is_no_part_of_the_first_name(tmp_path: Path, bom: bytes, encoding: str) -> None:
    (tmp_path / "b.csv").write_bytes(bom + "id,text\n1,a\n".encode(encoding))
    source = FileSource("b.csv", key="id", encoding=encoding).bind(tmp_path)
    assert source.read(source.list_batches()[0], ["text"]).frame.height == 1


@pytest.mark.parametrize("name", ["b.csv", "b.jsonl"])
@pytest.mark.parametrize(
    ("encoding", "words", "guess"),
    [
        ("cp1251", "Здравствуйте, моя карта не работает уже третий день", "cp1251"),
        ("cp1252", "Où est la gare ? Le café était fermé à cause de la grève.", "cp1252"),
        ("cp932", "クレジットカードが使えません。助けてください。", "cp932"),
        ("utf-16", "a", "utf-16"),
        ("utf-16-le", "plain words", "utf-16-le"),
        ("utf-16-be", "plain words", "utf-16-be"),
        ("utf-32", "a", "utf-32"),
    ],
)
def test_a_file_that_is_not_utf8_is_refused_with_what_it_looks_like(
    tmp_path: Path, name: str, encoding: str, words: str, guess: str
) -> None:
    rows = [("1", "first"), ("2", words)]
    text = (
        "id;text\n" + "".join(f"{i};{t}\n" for i, t in rows)
        if name == "b.csv"
        else "".join(f'{{"id":"{i}","text":"{t}"}}\n' for i, t in rows)
    )
    (tmp_path / name).write_bytes(text.encode(encoding))
    source = FileSource(name, key="id").bind(tmp_path)
    with pytest.raises(SourceError, match=r"line \d: not UTF-8") as error:
        source.read(source.list_batches()[0], ["text"])
    says = "looks like" if guess.startswith("utf") else "may be"
    assert f"it {says} {guess}: save the file as UTF-8, or name its encoding: encoding={guess!r}" in str(error.value)
    assert read_as(tmp_path, text.encode(encoding), guess, name).frame["text"][1] == words


def test_bytes_that_are_not_in_the_named_encoding_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes("id,text\n1,a\n2,жук\n".encode("cp1251"))
    source = FileSource("b.csv", key="id", encoding="shift_jis").bind(tmp_path)
    with pytest.raises(SourceError, match=r"b\.csv: line 3: not shift_jis \(byte 0x"):
        source.read(source.list_batches()[0], ["text"])


def test_an_encoding_that_can_say_half_a_character_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"id,text\n1,a\n2,+2AA-\n")
    source = FileSource("b.csv", key="id", encoding="utf-7").bind(tmp_path)
    with pytest.raises(SourceError, match=r"b\.csv: line 3: not utf-7: an unpaired surrogate"):
        source.read(source.list_batches()[0], ["text"])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"encoding": "utf-99"}, "encoding 'utf-99': Python knows no such text encoding"),
        ({"encoding": "base64"}, "encoding 'base64'"),
        ({"encoding": "rot13"}, "encoding 'rot13'"),
        ({"encoding": "undefined"}, "encoding 'undefined'"),
        ({"encoding": ""}, "encoding ''"),
        ({"encoding": "a\0b"}, "encoding "),
        ({"max_value_bytes": 0}, "max_value_bytes 0: it is a whole number, 1 or more"),
        ({"max_value_bytes": -5}, "max_value_bytes -5"),
        ({"max_value_bytes": True}, "max_value_bytes True"),
        ({"max_value_bytes": 1.5}, "max_value_bytes 1.5"),
        ({"settle_s": -1}, "settle_s -1: seconds, 0 or more"),
        ({"settle_s": float("nan")}, "settle_s nan"),
        ({"settle_s": float("inf")}, "settle_s inf"),
        ({"settle_s": True}, "settle_s True"),
        ({"settle_s": "5"}, "settle_s '5'"),
    ],
)
def test_an_encoding_or_a_limit_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=r"source '\*\.csv': ") as error:
        FileSource("*.csv", **wrong)
    assert named in str(error.value)


FILES: dict[str, Callable[[Path, list[tuple[str, str, str]]], object]] = {
    "b.csv": lambda path, rows: path.write_bytes(
        ("id,text,note\n" + "".join(f'{i},"{t}","{n}"\n' for i, t, n in rows)).encode()
    ),
    "b.jsonl": lambda path, rows: path.write_text(
        "\n" + "".join(json.dumps({"id": i, "text": t, "note": n}) + "\n" for i, t, n in rows)
    ),
    "b.parquet": lambda path, rows: pl.DataFrame(
        [("0", "first", "n"), *rows], schema=["id", "text", "note"], orient="row"
    ).write_parquet(path),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", ["*", "^text$", "^.*$"])
def test_a_column_called_as_a_pattern_of_columns_is_a_column_as_any_other(tmp_path: Path, name: str, odd: str) -> None:
    rows = [{"id": "1", "text": "a\x01b", odd: "c\x02"}]
    frame = pl.DataFrame(rows)
    write = {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}
    write[Path(name).suffix](tmp_path / name)
    source = FileSource(name, key="id").bind(tmp_path)
    read = source.read(source.list_batches()[0], ["text"])
    assert read.frame.to_dicts() == [{ITEM_ID: "1", SOURCE_LINE: read.frame[SOURCE_LINE][0], "text": "a b", odd: "c "}]
    assert [why.partition(":")[0] for _, why in read.cleaned] == sorted(["text", odd])


@pytest.mark.parametrize("name", FILES)
def test_control_characters_become_spaces_and_are_told_by_line_in_every_kind_of_file(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name, [("1", "a\0b\x1b[31mc\x7f", "ok"), ("2", "tab\tnew\nret\u0085é", "x\x0cy")])
    source = FileSource(name, key="id").bind(tmp_path)
    batch = source.read(source.list_batches()[0], ["text"])
    assert batch.frame["text"].to_list()[-2:] == ["a b [31mc ", "tab\tnew\nret\u0085é"]
    assert batch.frame["note"].to_list()[-2:] == ["ok", "x y"]
    assert batch.malformed == []
    assert batch.cleaned == [
        (2, "text: control characters made spaces: 3"),
        (3, "note: control characters made spaces: 1"),
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_record_with_a_value_over_the_limit_is_set_aside_with_its_line_in_every_kind_of_file(
    tmp_path: Path, name: str
) -> None:
    FILES[name](tmp_path / name, [("1", "é" * 6, "n" * 99), ("2", "é" * 5, "n" * 99), ("3", "x" * 11, "n")])
    source = FileSource(name, key="id", max_value_bytes=10).bind(tmp_path)
    batch = source.read(source.list_batches()[0], ["text"])
    assert batch.frame["text"].to_list()[-1] == "é" * 5
    assert batch.malformed == [
        (2, "text: 12 bytes, more than max_value_bytes (10)"),
        (4, "text: 11 bytes, more than max_value_bytes (10)"),
    ]
    assert batch.frame["note"].to_list()[-1] == "n" * 99  # no prompt uses it


def test_a_value_of_a_mebibyte_is_read_and_one_of_more_is_not(read: Read) -> None:
    batch = read(f"id,text\n1,{'x' * 2**20}\n2,{'x' * (2**20 + 1)}\n", ["text"])
    assert batch.frame[ITEM_ID].to_list() == ["1"]
    assert batch.malformed == [(3, "text: 1,048,577 bytes, more than max_value_bytes (1,048,576)")]


def test_a_line_without_the_id_is_refused_as_one_with_a_null_id_is(read: Read) -> None:
    with pytest.raises(SourceError, match=r"b\.jsonl: lines 2, 3: id: the id is missing or blank"):
        read('{"id":"1","text":"a"}\n{"text":"b"}\n{"id":null,"text":"c"}', ["text"], name="b.jsonl")


def test_a_line_without_the_text_is_set_aside_and_costs_no_other(read: Read) -> None:
    batch = read('{"id":"1","text":"a"}\n{"id":"2","txet":"b"}\n{"id":"3","text":null}', ["text"], name="b.jsonl")
    assert batch.frame[ITEM_ID].to_list() == ["1", "3"]
    assert batch.malformed == [(2, "no field 'text'")]


def test_texts_that_differ_in_unicode_form_stay_as_they_are(read: Read) -> None:
    assert read("id,text\n1,e\u0301\n2,\u00e9\n", ["text"]).frame["text"].to_list() == ["e\u0301", "\u00e9"]


@pytest.mark.parametrize("name", ["gone.csv", "gone.jsonl", "gone.parquet"])
def test_a_file_that_has_gone_is_a_source_error(tmp_path: Path, name: str) -> None:
    ref = BatchRef(batch="gone", locator=str(tmp_path / name), change_token="")
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


ENCODINGS = ["utf-8", "cp1252", "utf-16", "utf-16-be", "utf-32", "utf-7", "shift_jis", "hz", "idna", "unicode_escape"]


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=30)
    | st.lists(pieces, max_size=12).map(b"".join)
    | st.builds(
        lambda text, encoding: text.encode(encoding, "replace"),
        st.text(max_size=12),
        st.sampled_from(["utf-16", "utf-7", "cp1252"]),
    ),
    st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.ndjson", "a.parquet"]),
    st.sampled_from(ENCODINGS),
)
@example(b"id,text\n1,+2AA-\n", "a.csv", "utf-7")
@example(b'{"id":"\\ud800"}', "a.jsonl", "unicode_escape")
def test_any_file_is_a_batch_or_a_source_error(folder: Path, data: bytes, name: str, encoding: str) -> None:
    (folder / name).write_bytes(data)
    source = FileSource(name, key="id", encoding=encoding).bind(folder)
    try:
        source.columns()
        batch = source.read(source.list_batches()[0], [])
    except SourceError as e:
        assert name in str(e)
        return
    assert batch.frame[ITEM_ID].is_unique().all()
    assert len(batch.source_hash) == 24
