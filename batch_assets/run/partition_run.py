"""What the runner is given, what it keeps of a partition under way, and what it reports of a finished one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batch_assets.core.identity import VariantSpec
from batch_assets.core.ladder import Refused
from batch_assets.core.records import Record
from batch_assets.core.requests import Request
from batch_assets.core.tasks import Task, Variant
from batch_assets.store.fallbacks import FallbackKey, FallbackState
from batch_assets.store.partitions import PartitionState
from batch_assets.store.results import VariantKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInputs:
    """One output partition to bring up to date. `read` yields its batch's records in chunks, the same each time.

    `fallback_for` names another variant if this is its fallback's work. The records are then those that the other
    variant has quarantined, their rows are marked, and what gets finished is the fallback, not a partition of its own.
    """

    task: Task
    variant: Variant
    spec: VariantSpec
    batch: str
    fingerprint: str
    parts: Mapping[str, str]
    read: Callable[[], Iterator[Sequence[Record]]]
    fallback_for: Variant | None = None

    @property
    def key(self) -> VariantKey:
        """The key of the rows that are written."""
        return key_of(self.task, self.variant)

    @property
    def owner(self) -> Variant:
        """The variant whose partition this is: it has the lease, and what is finished bears its name."""
        return self.fallback_for or self.variant

    def shares_rows(self, other: "PartitionInputs") -> bool:
        """Say whether both write the same rows, as the fallbacks of two variants do."""
        return self.key == other.key and self.batch == other.batch

    @property
    def fallback_key(self) -> FallbackKey | None:
        """The key of the fallback's rows; None if this is the variant's own work."""
        if self.fallback_for is None:
            return None
        return make_fallback_key(self.task, self.fallback_for, self.variant, self.spec, self.batch)

    def __str__(self) -> str:
        return f"{self.batch}|{self.owner.key}"


def key_of(task: Task, variant: Variant) -> VariantKey:
    """Return the key of a variant's rows."""
    return VariantKey(task=task.name, prompt_ver=variant.prompt.prompt_ver, model_id=variant.model.model_id)


def make_fallback_key(task: Task, own: Variant, other: Variant, spec: VariantSpec, batch: str) -> FallbackKey:
    """Return the key of what `other`, of identity `spec`, answers as the fallback of `own`."""
    return FallbackKey(
        own=key_of(task, own),
        other=key_of(task, other),
        request_spec=spec.request_spec,
        accept_spec=spec.accept_spec,
        batch=batch,
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What happened to records in a run. `sent` counts requests, everything else records."""

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
    """A partition under way. `waiting` counts the records that are read and have no row yet."""

    inputs: PartitionInputs
    chunks: Iterator[Sequence[Record]]
    tally: Tally = field(default_factory=Tally)
    waiting: int = 0
    is_read: bool = False

    def __str__(self) -> str:
        return str(self.inputs)


@dataclass(slots=True, kw_only=True, eq=False)
class Ask:
    """A record that is to be asked. `followers` have the same request, and take its answer if that is `ok`.

    `base` is the request of the ladder's first step, `request` that of its present step. `refused` are the answers at
    the steps between; the last of them is that of attempt `refused_attempt_id`.
    """

    partition: OpenPartition
    item_id: str
    input_hash: str
    base: Request
    request: Request
    attempts_before: int
    is_suspect: bool
    refused: tuple[Refused, ...] = ()
    refused_attempt_id: str = ""
    failed: int = 0
    """Failed attempts at the present request in this run."""
    charged: int = 0
    """How many of the failed attempts count against the record, not the engine."""
    climbed: int = 0
    """Steps of the ladder that it went up in this run."""
    attempt_id: str = ""
    engine_time_at_start: float = 0.0
    followers: "list[Ask]" = field(default_factory=list["Ask"])

    @property
    def attempt(self) -> int:
        """The number of the present or next attempt."""
        return self.attempts_before + self.failed + self.climbed + 1

    @property
    def is_first(self) -> bool:
        """Whether the present or next attempt is the first of this run."""
        return not self.failed and not self.climbed

    def start_attempt(self, attempt_id: str) -> None:
        """Begin the next attempt, which has this id."""
        self.attempt_id = attempt_id

    def climb(self, refused: Refused, following: Request) -> None:
        """Go on to the ladder's next step, after a refused answer. The new request has tries of its own."""
        self.refused = (*self.refused, refused)
        self.refused_attempt_id = self.attempt_id
        self.request = following
        self.attempts_before += self.failed
        self.failed = self.charged = 0
        self.climbed += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """A finished partition, or one that was passed over because another run works on it: `leased_by` says which.

    A finished partition has a `state`, finished work of a fallback a `fallback`.
    """

    inputs: PartitionInputs
    tally: Tally
    state: PartitionState | None = None
    fallback: FallbackState | None = None
    leased_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is, in records. `is_starting` while the engine loads.

    `pause_s` is None while all goes well; while the engine fails, the seconds until the next probe, 0 during one, and
    `failure` is what failed last.
    """

    total: int
    done: int
    tally: Tally
    in_flight: int
    is_starting: bool = False
    pause_s: float | None = None
    failure: str = ""
