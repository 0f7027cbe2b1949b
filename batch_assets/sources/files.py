"""Files by pattern, a batch per file: CSV, JSON Lines and Parquet. Every field is read as text: `007` stays `007`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import polars as pl

from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.names import check_key
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, BatchRef, SourceBatch, SourceFields
from batch_assets.sources.csv_file import read_csv, read_csv_header
from batch_assets.sources.jsonl_file import read_jsonl, read_jsonl_header
from batch_assets.sources.parquet_file import read_parquet, read_parquet_header
from batch_assets.sources.registry import register_source
from batch_assets.sources.text_file import UTF8, find_codec
from batch_assets.sources.values import CONTROL_CHARACTERS, MAX_VALUE_BYTES, check_limit, clean_values, is_amount

_SHOWN = 5
_LOOKED_AT = 5
MAX_ID_BYTES = 1000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that match `pattern`, relative to the task's folder unless it is absolute; a batch is named by its stem.

    `key` is the column of the record's id. `delimiter` is for CSV; None takes it from the header line. `encoding` is
    that of CSV and JSON Lines, by Python's name: `cp1252`, `utf-16`. A record with a value of more than
    `max_value_bytes` bytes in a field that a prompt uses is set aside. docs/input.md has all rules.

    A sensor reads a file only when it was left alone for `settle_s` seconds; better still, write elsewhere and rename
    what is whole.
    """

    pattern: str
    key: str = ITEM_ID
    delimiter: str | None = None
    settle_s: float = 10.0
    encoding: str = UTF8
    max_value_bytes: int = MAX_VALUE_BYTES
    folder: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no file can have."""
        if self.key == SOURCE_LINE:
            raise ConfigError(f"source {self.pattern!r}: key: {SOURCE_LINE!r} is the line that a record was found in")
        if not is_amount(self.settle_s):
            raise ConfigError(f"source {self.pattern!r}: settle_s {self.settle_s!r}: seconds, 0 or more")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError(f"source {self.pattern!r}: delimiter {self.delimiter!r}: it is one character, no quote")
        check_limit(self.max_value_bytes, f"source {self.pattern!r}")
        try:
            find_codec(self.encoding)
        except ConfigError as e:
            raise ConfigError(f"source {self.pattern!r}: {e}") from e

    def bind(self, folder: Path) -> Self:
        """Take the pattern from `folder`."""
        return replace(self, folder=folder)

    def list_batches(self) -> list[BatchRef]:
        """Return a batch per file, in the order of the keys. Raises ConfigError for a name that can't be a key."""
        refs: dict[str, BatchRef] = {}
        for path in self._paths():
            batch = check_key(path.stem, f"{path}: the batch name")
            if batch in refs:
                raise ConfigError(f"{path} and {refs[batch].locator} would both be batch {batch!r}: rename one")
            with suppress(FileNotFoundError):  # gone since the folder was read
                refs[batch] = self._refer(batch, path)
        return [refs[b] for b in sorted(refs)]

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns that some file has, the id among them: of the first and the last few files.

        One broken file hides no column, and takes nothing down. Raises SourceError if none can be read.
        """
        paths = self._paths()
        found: dict[str, None] = {}
        error: SourceError | None = None
        for path in dict.fromkeys([*paths[:_LOOKED_AT], *paths[-_LOOKED_AT:]]):
            try:
                found.update(dict.fromkeys(self._read_header(path) or ()))
            except SourceError as e:
                error = error or e
        if error is not None and not found:
            raise error
        return tuple(found) or None

    def _read_header(self, path: Path) -> tuple[str, ...] | None:
        readers: dict[str, Callable[[], tuple[str, ...] | None]] = {
            "csv": lambda: read_csv_header(path, self.delimiter, self.encoding),
            "jsonl": lambda: read_jsonl_header(path, self.encoding),
            "parquet": lambda: read_parquet_header(path),
        }
        return _read(path, readers)

    def read(self, ref: BatchRef, fields: Sequence[str]) -> SourceBatch:
        """Read one file. Raises SourceError: unreadable, no such column, or an id missing, blank or doubled."""
        path = Path(ref.locator)
        readers: dict[str, Callable[[], SourceBatch]] = {
            "csv": lambda: read_csv(path, self.delimiter, self.encoding),
            "jsonl": lambda: read_jsonl(path, fields, key=self.key, encoding=self.encoding),
            "parquet": lambda: read_parquet(path, [self.key, *fields]),
        }
        found = _read(path, readers)
        if path.exists() and self._refer(ref.batch, path).change_token != ref.change_token:
            raise SourceError(f"{path}: it changed while it was read: write elsewhere, and rename it when it is whole")
        missing = [f for f in (self.key, *fields) if f not in found.frame.columns or f == SOURCE_LINE]
        if missing:
            has = ", ".join(c for c in found.frame.columns if c != SOURCE_LINE)
            raise SourceError(f"{path}: line 1: no column {', '.join(map(repr, missing))}; it has {has}")
        checked = replace(found, frame=_check_ids(path, found.frame, self.key, fields))
        return clean_values(checked, fields, self.max_value_bytes)

    def _refer(self, batch: str, path: Path) -> BatchRef:
        state = path.stat()
        return BatchRef(
            batch=batch,
            locator=str(path),
            change_token=f"{state.st_size}:{state.st_mtime_ns}",
            changed_at=state.st_mtime,
            settle_s=self.settle_s,
        )

    def _paths(self) -> list[Path]:
        try:
            pattern = Path(self.pattern).expanduser()
            if pattern.is_absolute():
                root, relative = Path(pattern.anchor), str(pattern.relative_to(pattern.anchor))
            elif self.folder is not None:
                root, relative = self.folder, self.pattern
            else:
                raise ConfigError(f"source {self.pattern!r}: a relative pattern needs the task's folder")
            return sorted(
                (p for p in root.glob(relative) if p.is_file() and not p.name.startswith(".")), key=lambda p: p.stem
            )
        except OSError as e:
            raise SourceError(f"source {self.pattern!r}: the files can't be listed: {e}") from e
        except (ValueError, IndexError, RuntimeError) as e:  # empty, `.`, `**x`; a home folder that nobody has
            raise ConfigError(f"source {self.pattern!r}: not a pattern of files, such as tickets/*.csv: {e}") from e


@register_source("files")
class FilesFields(SourceFields):
    """`source:` of files."""

    files: str
    key: str = ITEM_ID
    delimiter: str | None = None
    settle_s: float = 10.0
    encoding: str = UTF8
    max_value_bytes: int = MAX_VALUE_BYTES

    def build(self) -> FileSource:
        """Return the source."""
        return FileSource(self.files, **self.model_dump(exclude={"files"}))


def _kind(path: Path) -> str:
    match path.suffix.lower():
        case ".csv" | ".tsv":
            return "csv"
        case ".jsonl" | ".ndjson":
            return "jsonl"
        case ".parquet":
            return "parquet"
        case other:
            raise ConfigError(f"{path}: {other or 'no suffix'}: files are .csv, .tsv, .jsonl, .ndjson or .parquet")


def _read(path: Path, readers: Mapping[str, Callable[[], _T]]) -> _T:
    read = readers[_kind(path)]
    try:
        return read()
    except OSError as e:
        raise SourceError(f"{path}: can't be read: {e.strerror or e}") from e
    except UnicodeError as e:  # of a header: some decoders raise although they were told to replace
        raise SourceError(f"{path}: line 1: not in the encoding that the source names: {e}") from e


def _check_ids(path: Path, frame: pl.DataFrame, key: str, fields: Sequence[str]) -> pl.DataFrame:
    if key != ITEM_ID:
        if ITEM_ID in frame.columns:
            raise SourceError(f"{path}: line 1: the id is column {key!r}, so no other may be called {ITEM_ID!r}")
        frame = frame.with_columns(frame[key].alias(ITEM_ID))
    blank = frame.filter(pl.col(ITEM_ID).is_null() | (pl.col(ITEM_ID).str.strip_chars() == ""))
    if blank.height:
        raise SourceError(f"{path}: {_lines(blank[SOURCE_LINE].to_list())}: {key}: the id is missing or blank")
    long = frame.filter(pl.col(ITEM_ID).str.len_bytes() > MAX_ID_BYTES)
    if long.height:
        where = _lines(long[SOURCE_LINE].to_list())
        raise SourceError(f"{path}: {where}: {key}: the id is longer than {MAX_ID_BYTES} bytes")
    odd = frame.filter(pl.col(ITEM_ID).str.contains(CONTROL_CHARACTERS))
    if odd.height:
        raise SourceError(f"{path}: {_lines(odd[SOURCE_LINE].to_list())}: {key}: a control character in the id")
    counts = Counter[str](frame[ITEM_ID].to_list())
    doubled = [i for i, n in counts.items() if n > 1]
    if doubled:
        lines = frame.filter(pl.col(ITEM_ID) == doubled[0])[SOURCE_LINE].to_list()
        more = f" (and {len(doubled) - 1} more ids)" if len(doubled) > 1 else ""
        raise SourceError(f"{path}: {_lines(lines)}: {key}: the id {doubled[0]!r} comes {len(lines)} times{more}")
    left_out = (ITEM_ID, SOURCE_LINE) if key in fields else (ITEM_ID, SOURCE_LINE, key)
    rest = [c for c in frame.columns if c not in left_out]
    # Series, not names: polars takes a name such as `*` or `^a$` for a pattern of names.
    return pl.DataFrame([frame[c] for c in (ITEM_ID, SOURCE_LINE, *rest)])


def _lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:_SHOWN])) + (", …" if len(lines) > _SHOWN else "")
    return f"line {shown}" if len(lines) == 1 else f"lines {shown}"
