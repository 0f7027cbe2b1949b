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
_LIKELY = [
    *("cp1252", "cp1251", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("koi8_r", "cp866", "cp932", "euc_jp", "gb18030", "big5", "cp949", "euc_kr"),
]
"""What files are in that aren't UTF-8, the commonest first: many a text reads as well in several of them."""

_HEAD_BYTES = 200
_SAMPLE_BYTES = 20_000
_SURROGATE = re.compile("[\ud800-\udfff]")


def find_codec(encoding: str) -> str:
    """Return Python's name of an encoding. Raises ConfigError for one that is none of text."""
    try:
        "a".encode(encoding).decode(encoding)
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
        guess = _guess(data, e.start)
        hint = f"it may be {guess}: {_advise(guess)}" if guess else _advise("cp1252")
        raise SourceError(f"{where}: {hint}") from e
    except ValueError as e:  # of encodings that say no byte
        raise SourceError(f"{path}: line 1: not {_name(codec)}: {e}") from e
    found = None if text.isascii() else _SURROGATE.search(text)
    if found:  # some encodings, such as utf-7, can say what is no character
        line = text.count("\n", 0, found.start()) + 1
        raise SourceError(f"{path}: line {line}: not {_name(codec)}: an unpaired surrogate, which is no text")
    return text.removeprefix("\ufeff")


def open_text(path: Path, encoding: str, newline: str) -> TextIO:
    """Open a file to read its start; what isn't in the encoding is replaced. Raises SourceError for another Unicode."""
    codec = find_codec(encoding)
    with path.open("rb") as f:
        _check_head(path, f.read(_HEAD_BYTES), codec)
    return path.open(encoding=codec, errors="replace", newline=newline)


def _check_head(path: Path, head: bytes, codec: str) -> None:
    """Raise SourceError for UTF-16 or UTF-32 where UTF-8 is expected, though its bytes may be UTF-8 by chance."""
    found = _find_wide(head) if codec == "utf-8-sig" else None
    if found:
        raise SourceError(f"{path}: line 1: not UTF-8 (byte {head[0]:#04x}): it looks like {found}: {_advise(found)}")


def _find_wide(head: bytes) -> str | None:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    if len(head) >= 4 and head.count(0) * 3 >= len(head):  # of plain letters in UTF-16, every second byte is 0
        return "utf-16-be" if head[0] == 0 else "utf-16-le"
    return None


def _guess(data: bytes, at: int) -> str | None:
    """Return what the text around a byte looks like, or None."""
    matches = from_bytes(data[max(0, at - _SAMPLE_BYTES) : at + _SAMPLE_BYTES], cp_isolation=_LIKELY)
    best = matches.best()
    if best is None:
        return None
    equal = [m for m in matches if (m.chaos, m.coherence) == (best.chaos, best.coherence)]
    names = {name for m in equal for name in m.could_be_from_charset}
    return next((name for name in _LIKELY if name in names), None)


def _advise(encoding: str) -> str:
    return f"save the file as UTF-8, or name its encoding: encoding={encoding!r} of the source"


def _name(codec: str) -> str:
    return "UTF-8" if codec == "utf-8-sig" else codec
