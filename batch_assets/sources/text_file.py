"""Text of a file in the encoding that the task names, or an error that says the line and what the file looks like."""

import codecs
import re
from pathlib import Path
from typing import TextIO

from charset_normalizer import from_bytes

from batch_assets.core.errors import ConfigError, SourceError

UTF8 = "utf-8"
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD_BYTES = 200
_SAMPLE_BYTES = 20_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def find_codec(encoding: str) -> str:
    """Return Python's name of an encoding. ConfigError for one that is none of text."""
    try:
        b"".decode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError) as e:
        raise ConfigError(f"encoding {encoding!r}: Python knows no such text encoding; one is cp1252") from e
    return "utf-8-sig" if name == UTF8 else name


def read_text(path: Path, encoding: str = UTF8) -> str:
    """Return the text of a file, without its BOM. SourceError names the line that isn't in the encoding."""
    data = path.read_bytes()
    codec = find_codec(encoding)
    _check_head(path, data[:_HEAD_BYTES], codec)
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as e:
        line = data[: e.start].decode(codec, "ignore").count("\n") + 1
        where = f"{path}: line {line}: not {_name(codec)} (byte {data[e.start]:#04x})"
        raise SourceError(f"{where}: {_advise(_guess(data, e.start))}") from e
    except ValueError as e:
        raise SourceError(f"{path}: line 1: not {_name(codec)}: {e}: {_advise(_guess(data, 0))}") from e
    found = None if text.isascii() else _SURROGATE.search(text)
    if found:  # some encodings, such as utf-7, can say what is no character
        line = text.count("\n", 0, found.start()) + 1
        raise SourceError(f"{path}: line {line}: not {_name(codec)}: an unpaired surrogate, which is no text")
    return text.removeprefix("\ufeff")


def open_text(path: Path, encoding: str, newline: str) -> TextIO:
    """Open a file to read its beginning; what isn't in the encoding is replaced. SourceError for another Unicode."""
    codec = find_codec(encoding)
    with path.open("rb") as f:
        _check_head(path, f.read(_HEAD_BYTES), codec)
    return path.open(encoding=codec, errors="replace", newline=newline)


def _check_head(path: Path, head: bytes, codec: str) -> None:
    """Raise SourceError for UTF-16 or UTF-32 where UTF-8 is expected, though its bytes may be UTF-8 by chance."""
    found = _find_wide(head) if codec == "utf-8-sig" else None
    if found:
        raise SourceError(f"{path}: line 1: not UTF-8 (byte {head[0]:#04x}): {_advise(found)}")


def _find_wide(head: bytes) -> str | None:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    if len(head) >= 4 and head.count(0) * 3 >= len(head):  # of plain letters in UTF-16, every second byte is 0
        return "utf-16-be" if head[0] == 0 else "utf-16-le"
    return None


def _guess(data: bytes, at: int) -> str | None:
    """Return what the text around a byte looks like, or None."""
    best = from_bytes(data[max(0, at - _SAMPLE_BYTES) : at + _SAMPLE_BYTES]).best()
    return best.encoding if best is not None and best.encoding not in ("ascii", "utf_8") else None


def _advise(guess: str | None) -> str:
    if guess is None:
        return "save the file as UTF-8, or name its encoding: encoding= of the source"
    return f"it looks like {guess}: save the file as UTF-8, or name its encoding: encoding={guess!r} of the source"


def _name(codec: str) -> str:
    return "UTF-8" if codec == "utf-8-sig" else codec
