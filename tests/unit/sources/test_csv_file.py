"""CSV: every cell comes back as it was written, every line is a record or set aside, and nothing is guessed."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.errors import SourceError
from batch_assets.sources.base import SOURCE_LINE, SourceBatch
from batch_assets.sources.csv_file import read_csv, read_csv_header

Read = Callable[..., SourceBatch]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that reads a CSV file of the given bytes or text."""

    def read_it(data: bytes | str, delimiter: str | None = None) -> SourceBatch:
        path = tmp_path / "x.csv"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return read_csv(path, delimiter)

    return read_it


def rows(batch: SourceBatch) -> list[tuple[str, ...]]:
    return batch.frame.drop(SOURCE_LINE).rows()


def numbers(batch: SourceBatch) -> list[int]:
    return batch.frame[SOURCE_LINE].to_list()


# What is read


def test_all_cells_are_text(read: Read) -> None:
    batch = read("id,n\n007,1.10\n12345678901234567890,true\n-0,\n1e3,NULL\n")
    assert rows(batch) == [("007", "1.10"), ("12345678901234567890", "true"), ("-0", ""), ("1e3", "NULL")]
    assert batch.frame.schema == {"id": pl.String, "n": pl.String, SOURCE_LINE: pl.Int64}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_delimiter_line_end_and_bom_do_not_matter(read: Read, delimiter: str, line_end: str, bom: str) -> None:
    lines = ["id,text", '1,"a, b; c\t| d"', '2,"say ""hi"""', "3,"]
    data = bom + line_end.join(line.replace(",", delimiter, 1) for line in lines) + line_end
    assert rows(read(data)) == [("1", "a, b; c\t| d"), ("2", 'say "hi"'), ("3", "")]


def test_a_bom_before_a_quoted_header_is_no_part_of_it(read: Read) -> None:
    assert read(b'\xef\xbb\xbf"id","text"\n"1","a"\n').frame.columns == ["id", "text", SOURCE_LINE]


def test_a_delimiter_inside_a_quoted_name_does_not_mislead(read: Read) -> None:
    assert rows(read('"a;b;c",id\n1,2\n')) == [("1", "2")]


def test_a_delimiter_inside_a_quoted_name_of_two_lines_does_not_mislead(read: Read) -> None:
    assert rows(read('id\t"a,b,\nc"\n1\t2\n')) == [("1", "2")]


def test_the_delimiter_that_is_given_is_the_one(read: Read) -> None:
    assert rows(read("id:a,b\n1:x,y\n", ":")) == [("1", "x,y")]


def test_a_file_of_one_column_needs_no_delimiter(read: Read) -> None:
    batch = read('id\n1\n""\n\n2')
    assert rows(batch) == [("1",), ("",), ("2",)]
    assert numbers(batch) == [2, 3, 5]


def test_newlines_in_quotes_are_kept_and_counted(read: Read) -> None:
    batch = read('id,text\n1,"a\nb\r\nc\rd"\n2,x\n\n3,"\n"\n4,y')
    assert rows(batch) == [("1", "a\nb\r\nc\rd"), ("2", "x"), ("3", "\n"), ("4", "y")]
    assert numbers(batch) == [2, 5, 7, 9]


def test_an_old_mac_file_ends_its_lines_with_cr(read: Read) -> None:
    batch = read("id,text\r1,a\r2,b\r")
    assert rows(batch) == [("1", "a"), ("2", "b")]
    assert numbers(batch) == [2, 3]


def test_a_quote_inside_an_unquoted_cell_is_text(read: Read) -> None:
    assert rows(read('id,text\n1,5" nail\n2,a "b" c\n3, "x"\n')) == [("1", '5" nail'), ("2", 'a "b" c'), ("3", ' "x"')]


@pytest.mark.parametrize("character", ["\0", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1a"])
def test_no_other_character_ends_a_line_or_a_file(read: Read, character: str) -> None:
    assert rows(read(f"id,text\n1,a{character}b\n2,c\n")) == [("1", f"a{character}b"), ("2", "c")]


def test_a_cell_may_be_long(read: Read) -> None:
    assert rows(read(f"id,text\n1,{'x' * 200_000}\n")) == [("1", "x" * 200_000)]


def test_a_header_alone_is_a_batch_without_records(read: Read) -> None:
    batch = read("id,text\n")
    assert batch.frame.is_empty()
    assert batch.frame.schema == {"id": pl.String, "text": pl.String, SOURCE_LINE: pl.Int64}
    assert batch.malformed == []


# What is set aside


def test_a_line_of_another_width_is_set_aside_with_its_number(read: Read) -> None:
    batch = read('id,text\n1,"a\nb"\n2\n3,x,y\n4,"c\n\nd",e,f\n5,ok\n   \n')
    assert rows(batch) == [("1", "a\nb"), ("5", "ok")]
    assert numbers(batch) == [2, 9]
    assert batch.malformed == [
        (4, "1 fields, the header has 2"),
        (5, "3 fields, the header has 2"),
        (6, "4 fields, the header has 2"),
        (10, "1 fields, the header has 2"),
    ]


@pytest.mark.parametrize("cell", ['"abc"def', '"he said "hi" to me"', '"a" ', '"', '"a\rb'])
def test_a_stray_quote_in_the_last_line_or_within_one_sets_that_line_aside(read: Read, cell: str) -> None:
    if cell not in ('"', '"a\rb'):
        batch = read(f"id,text\n1,{cell}\n2,ok\n")
        assert rows(batch) == [("2", "ok")]
        assert [n for n, _ in batch.malformed] == [2]
    batch = read(f"id,text\n1,ok\n2,{cell}")
    assert rows(batch) == [("1", "ok")]
    assert [n for n, _ in batch.malformed] == [3]


def test_a_cr_in_an_unquoted_cell_sets_its_line_aside(read: Read) -> None:
    batch = read("id,text\n1,a\rb\n2,a\r,b\n3,c\n")
    assert rows(batch) == [("3", "c")]
    assert [n for n, _ in batch.malformed] == [2, 3]


# What is refused


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ('id,text\n1,"hello\n2,world\n3,foo\n', "lines 2 to 4"),
        ('id,text\n1,ok\n2,"hello\n3,"foo"\n4,bar\n', "lines 3 to 4"),
        ('id,text\n1,a\n2,"b\n3,c', "lines 3 to 4"),
    ],
)
def test_a_quote_that_is_not_closed_is_refused_with_its_lines(read: Read, data: str, lines: str) -> None:
    with pytest.raises(SourceError, match=f"{lines}: a quote that opens here"):
        read(data)


@pytest.mark.parametrize("data", ["", "\n", "\r\n", "\ufeff", "\ufeff\n", "  \n1,2\n"])
def test_an_empty_file_is_refused(read: Read, data: str) -> None:
    with pytest.raises(SourceError, match="line 1: it is empty"):
        read(data)


@pytest.mark.parametrize("header", ["a,,b", "a,a", "a, ,b", "a,", f"a,{SOURCE_LINE}", "sep=,"])
def test_a_header_with_names_that_are_missing_doubled_or_ours_is_refused(
    read: Read, tmp_path: Path, header: str
) -> None:
    with pytest.raises(SourceError, match="line 1: column names must be there, differ"):
        read(f"{header}\n1,2\n")
    with pytest.raises(SourceError, match="line 1: column names must be there, differ"):
        read_csv_header(tmp_path / "x.csv", None)


@pytest.mark.parametrize("data", ['"id"x,text\n1,a\n', 'id,"text\n', '"'])
def test_a_header_with_a_stray_quote_is_refused(read: Read, data: str) -> None:
    with pytest.raises(SourceError, match="line 1: the names of the columns can't be read: not CSV"):
        read(data)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"id,caf\xe9\n", 1),
        (b"id,text\n1,a\n2,caf\xe9\n", 3),
        (b'id,text\r\n1,"a\r\nb"\r\n2,\xff\r\n', 4),
        ("id,text\n1,a\n".encode("utf-16"), 1),
        (b"id,text\n1,\xed\xa0\x80\n", 2),
        (b"id,text\n1,a\xc3", 2),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_their_line(read: Read, data: bytes, line: int) -> None:
    with pytest.raises(SourceError, match=rf"x\.csv: line {line}: not UTF-8 \(byte 0x"):
        read(data)


# The header alone


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"", None),
        (b"\xef\xbb\xbf\n", None),
        (b"id,text\n1,2", ("id", "text")),
        (b"\xef\xbb\xbfid;text\r\n", ("id", "text")),
        (b'id,"a\nb"\n1,2\n', ("id", "a\nb")),
        (b"id,text\r1,a\r", ("id", "text")),
        (b"id,caf\xe9\n", ("id", "caf\ufffd")),
    ],
)
def test_the_header_is_read_alone(tmp_path: Path, data: bytes, columns: tuple[str, ...] | None) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    assert read_csv_header(path, None) == columns


# Laws


cells = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8) | st.text(
    st.sampled_from(list(',;\t|"\n\r ab')), max_size=8
)
tables = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), max_size=6))


def write(table: Sequence[Sequence[str]], delimiter: str, line_end: str, quoting: int) -> tuple[str, list[int]]:
    """Return the text of a CSV file as Python writes it, and the line of each record."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writerow([f"c{n}" for n in range(len(table[0]) if table else 2)])
    starts: list[int] = []
    for row in table:
        starts.append(out.getvalue().count("\n") + 1)
        writer.writerow(row)
    return out.getvalue(), starts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv")


@settings(deadline=None, max_examples=80)
@given(
    tables,
    st.sampled_from(",;\t|"),
    st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL)]),
    st.booleans(),
)
def test_what_was_written_comes_back_exactly_and_polars_agrees(
    folder: Path, table: list[list[str]], delimiter: str, style: tuple[str, int], has_bom: bool
) -> None:
    text, starts = write(table, delimiter, *style)
    path = folder / "x.csv"
    path.write_bytes(text.encode("utf-8-sig" if has_bom else "utf-8"))
    batch = read_csv(path, None if table and len(table[0]) > 1 else delimiter)
    assert batch.malformed == []
    assert rows(batch) == [tuple(row) for row in table]
    assert numbers(batch) == starts
    theirs = pl.read_csv(path, separator=delimiter, infer_schema=False, empty_string_is_null=False)
    assert batch.frame.drop(SOURCE_LINE).equals(theirs)


pieces = st.sampled_from(
    [
        b'"',
        b'""',
        b",",
        b";",
        b"\n",
        b"\r",
        b"\r\n",
        b"\t",
        b"a",
        b"id",
        b"id,text\n",
        b"\xff",
        b"\xc3",
        b"\0",
        b"\xef\xbb\xbf",
    ]
)
any_bytes = st.binary(max_size=30) | st.lists(pieces, max_size=16).map(b"".join)


@settings(deadline=None, max_examples=120)
@given(any_bytes)
def test_any_bytes_are_a_batch_or_a_source_error(folder: Path, data: bytes) -> None:
    path = folder / "any.csv"
    path.write_bytes(data)
    for read in (read_csv_header, read_csv):
        try:
            read(path, None)
        except SourceError as e:
            assert re.search(r"any\.csv: lines? \d+", str(e))


@settings(deadline=None, max_examples=80)
@given(st.lists(pieces, max_size=16).map(b"".join))
def test_every_line_is_in_a_record_or_in_a_set_aside_one_or_empty(folder: Path, data: bytes) -> None:
    path = folder / "lines.csv"
    path.write_bytes(b"id,text\n" + data)
    try:
        batch = read_csv(path, ",")
    except SourceError:
        return
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    inner = {n: sum(cell.count("\n") for cell in row) for n, row in zip(numbers(batch), rows(batch), strict=True)}
    starts = sorted([*inner, *(n for n, _ in batch.malformed)])
    assert len(set(starts)) == len(starts)
    ends = {1: 1, **{n: n + count for n, count in inner.items()}}
    for start, following in zip([1, *starts], [*starts, len(lines) + 1], strict=True):
        between = lines[ends[start] : following - 1] if start in ends else []
        assert [line for line in between if line.strip("\r")] == []
