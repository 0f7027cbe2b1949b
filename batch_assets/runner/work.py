"""What the runner is given, what it keeps of a partition under way, and what it tells of a finished one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batch_assets.core.identity import VariantSpec
from batch_assets.core.records import Record
from batch_assets.core.requests import Request
from batch_assets.core.tasks import Task, Variant
from batch_assets.store.partitions import PartitionState
from batch_assets.store.results import VariantKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWork:
    """One output partition to bring up to date. `read` yields its batch's records in chunks, the same each time."""

    task: Task
    variant: Variant
    spec: VariantSpec
    batch: str
    fingerprint: str
    parts: Mapping[str, str]
    read: Callable[[], Iterator[Sequence[Record]]]

    @property
    def key(self) -> VariantKey:
        """Which rows are this partition's variant's."""
        return VariantKey(
            task=self.task.name, prompt_ver=self.variant.prompt.prompt_ver, model_id=self.variant.model.model_id
        )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What happened to the records of a partition in this run. `sent` counts requests, all else records."""

    already_done: int = 0
    superseded: int = 0
    sent: int = 0
    reused: int = 0
    rejudged: int = 0
    ok: int = 0
    invalid: int = 0
    error: int = 0

    def add(self, other: "Tally") -> None:
        """Add another tally to this one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, kw_only=True, eq=False)
class OpenPartition:
    """A partition under way: `waiting` counts its records that are read and have no committed row yet."""

    work: PartitionWork
    chunks: Iterator[Sequence[Record]]
    tally: Tally = field(default_factory=Tally)
    waiting: int = 0
    is_read: bool = False

    def __str__(self) -> str:
        return f"{self.work.batch}|{self.work.variant.key}"


@dataclass(slots=True, kw_only=True, eq=False)
class Ask:
    """A record that is to be asked. `followers` ask the same; they take the answer if it is `ok`."""

    partition: OpenPartition
    item_id: str
    input_hash: str
    request: Request
    attempts_before: int
    is_suspect: bool
    failed: int = 0
    charged: int = 0
    """Of the failed attempts, those that the record has to answer for."""
    attempt_id: str = ""
    started_at_share: float = 0.0
    followers: "list[Ask]" = field(default_factory=list["Ask"])

    @property
    def attempt(self) -> int:
        """The number of the present or next attempt."""
        return self.attempts_before + self.failed + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """A finished partition, or one that was passed over because another run works on it (`leased_by` says who)."""

    work: PartitionWork
    tally: Tally
    state: PartitionState | None = None
    leased_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is, in records. `is_starting` while the engine loads.

    `pause_s` is None while all goes well; while the engine fails, the seconds until the next probe, 0 during one.
    """

    total: int
    done: int
    tally: Tally
    in_flight: int
    is_starting: bool = False
    pause_s: float | None = None
