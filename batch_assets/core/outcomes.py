"""What a step of the pipeline reports: a partition that it made, its figures, and what its checks found.

Figures are plain values. Text that needs a form of its own has a type here, so that the pages, the command line and
Dagster each show it in their way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a failed check means: ERROR is to be mended, WARN is to be looked at."""

    WARN = "WARN"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Markdown:
    """Text in Markdown; what came from outside is escaped in it."""

    text: str


@dataclass(frozen=True, slots=True)
class Json:
    """A value that JSON can hold."""

    value: object


@dataclass(frozen=True, slots=True)
class FilePath:
    """The path of a file on this machine."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | bool | None]]


Figure = str | int | float | bool | Markdown | Json | FilePath | Table
Figures = Mapping[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """What a check found in one partition; figures and limits are in `figures`."""

    name: str
    passed: bool
    figures: Figures
    severity: Severity = Severity.ERROR
    is_blocking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePartition:
    """One asset's partition after it was made: its key, data version, figures, and what its checks found.

    With `is_unmade` a blocking check refused it, nothing was written, and what was there before stays; then its data
    version is that of what was refused.
    """

    asset: str
    partition: str
    data_version: str
    figures: Figures
    checks: Sequence[CheckOutcome] = ()
    is_unmade: bool = False

    @property
    def failed_gates(self) -> list[str]:
        """The names of the blocking checks that failed."""
        return [c.name for c in self.checks if c.is_blocking and not c.passed]
