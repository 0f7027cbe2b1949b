"""What a probe finds, and what is told where a probe itself breaks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from batch_assets.core.errors import BatchAssetsError


class Level(StrEnum):
    """How a finding counts: `wrong` keeps something from working, `warn` may matter to you."""

    OK = "ok"
    WARN = "warn"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's report. `mend` is a command, or what else to do."""

    about: str
    says: str
    level: Level = Level.OK
    mend: str = ""


def guard(about: str, probe: Callable[[], Iterable[Finding]], secrets: Sequence[str] = ()) -> list[Finding]:
    """Return what a probe finds. An error of ours is its finding; any other is told, without secrets, as a warning."""
    found: list[Finding] = []
    try:
        found.extend(probe())
    except BatchAssetsError as e:
        found.append(Finding(about=about, says=hide(str(e), secrets), level=Level.WRONG))
    except Exception as e:  # noqa: BLE001 - one probe that breaks must not keep the others from telling
        words = hide(first_line(e), secrets)
        found.append(Finding(about=about, says=f"this probe failed: {type(e).__name__}: {words}", level=Level.WARN))
    return found


def first_line(error: BaseException) -> str:
    """Return an error's first line of words."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no more is known"


def hide(text: str, secrets: Sequence[str]) -> str:
    """Return the text with each secret taken out."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def find_existing(path: Path) -> Path:
    """Return the folder in which a path is, or would be made."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def format_size(count: int) -> str:
    """Return bytes in words."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.0f} {name}" if count >= 100 * unit else f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def count(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number} {one if number == 1 else many}"
