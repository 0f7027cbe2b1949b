"""Text of a file as UTF-8, or an error that names the line."""

from pathlib import Path

from batch_assets.core.errors import SourceError


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, with or without BOM. SourceError names the line that isn't UTF-8."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise SourceError(f"{path}: line {line}: not UTF-8 (byte {data[e.start]:#04x}): save the file as UTF-8") from e
