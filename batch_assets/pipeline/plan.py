"""What is missing or stale, by partition and in records, and why. Decides by level: by what is, not by what happened.

One planner serves the command line, sensors and estimates. It reads; freezing and asking are for the other modules.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import polars as pl

from batch_assets.core.asset_names import FALLBACK_OUTPUTS, LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.classification import RecordNeed, classify
from batch_assets.core.identity import VariantSpec, fingerprint
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.records import input_hash
from batch_assets.core.tasks import Task, Variant
from batch_assets.pipeline.partition_inputs import find_fallback, to_records
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.result_assets import RESULT_NAMES
from batch_assets.run.partition_run import key_of
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, BatchRef, Source
from batch_assets.store.batches import BatchState, content_of, load_batches
from batch_assets.store.fallbacks import FallbackState, load_fallbacks
from batch_assets.store.leases import Live, load_live
from batch_assets.store.partitions import PartitionState, load_partitions
from batch_assets.store.results import count_retried, load_foreign, load_states

RecordedVersions = Mapping[str, Mapping[str, str]]
"""The data versions that Dagster has recorded, by asset and partition: its shadow of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNeed:
    """What one output partition needs, in records. All zero: finished in the store, but Dagster hasn't recorded it.

    In a plan that was made without counting they are zero as well; `fingerprint` is what the partition is to become.
    """

    partition: PartitionKey
    fingerprint: str = ""
    missing: int = 0
    stale: int = 0
    retried: int = 0
    rejudged: int = 0
    reasons: tuple[str, ...] = ()
    leased_by: str | None = None
    lease_location: str = ""
    """The process of `leased_by`, `pid 12 on host`."""

    @property
    def to_ask(self) -> int:
        """Records that have no valid row; how many of them cost a request, reuse decides."""
        return self.missing + self.stale + self.retried


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a task needs now. `unfrozen`: batches to read first; `done`: output partitions that need nothing."""

    task: Task
    unfrozen: tuple[BatchRef, ...] = ()
    touched: tuple[BatchRef, ...] = ()
    """Batches whose change token changed and whose content didn't."""
    undescribed: tuple[str, ...] = ()
    needs: tuple[PartitionNeed, ...] = ()
    done: tuple[PartitionKey, ...] = ()
    fallbacks: tuple[PartitionKey, ...] = ()
    """Finished output partitions whose quarantined records are still to be asked of the fallback model."""
    fallback_fingerprints: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    """What the fallbacks are to become."""
    outdated: tuple[PartitionKey, ...] = ()
    """Finished output partitions whose results (validated_results and after) are of another version."""
    versions: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    """The data versions of the outdated."""
    outdated_since: dt.datetime | None = None
    """When the first of the outdated was finished."""
    set_aside: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    """Of the batches to freeze: the lines that can't be used, with the reason. Known if records are counted."""
    cleaned: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    """The same for lines of which a value would be cleaned."""

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to do at all."""
        return not (self.unfrozen or self.undescribed or self.needs or self.fallbacks or self.outdated)

    @property
    def to_ask(self) -> int:
        """Records to ask, over all partitions."""
        return sum(n.to_ask for n in self.needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of a task is meant; None means all. `since`: only batches frozen since then, and those to freeze."""

    batches: frozenset[str] | None = None
    variants: frozenset[str] | None = None
    since: dt.datetime | None = None

    @classmethod
    def of(cls, *, batch: str | None = None, variant: str | None = None) -> Self:
        """Return one batch or variant, or both; None means all."""
        return cls(
            batches=None if batch is None else frozenset({batch}),
            variants=None if variant is None else frozenset({variant}),
        )

    def has_batch(self, batch: str) -> bool:
        """Say whether a batch is meant, as far as its name goes."""
        return self.batches is None or batch in self.batches

    def has_variant(self, variant: str) -> bool:
        """Say whether a variant is meant."""
        return self.variants is None or variant in self.variants

    def is_recent(self, state: BatchState) -> bool:
        """Say whether a frozen batch is recent enough."""
        return self.since is None or state.frozen_at >= self.since


EVERYTHING = Selection()


def make_plan(
    task: Task,
    source: Source,
    platform: Platform,
    recorded: RecordedVersions,
    *,
    selection: Selection = EVERYTHING,
    retry: RetryMode = RetryMode.NONE,
    fallback_retry: RetryMode | None = None,
    is_counting: bool = True,
) -> Plan:
    """Compare what should be with what is. Raises SourceError and ConfigError for input that can't be used.

    Without counting no record is read, neither from the source nor from a frame: a batch whose change token changed is
    to be frozen, and its partitions are as before until it is. That is what a sensor does at each tick.
    `retry` is for the outputs, `fallback_retry` for what the fallback was asked; it is `retry` unless it is given.
    """
    retries = (retry, retry if fallback_retry is None else fallback_retry)
    return _Planner(task, platform, recorded, selection, retries, is_counting=is_counting).plan(source)


@dataclass(slots=True)
class _Batch:
    """A batch as it is in the source now, or as it was frozen."""

    name: str
    content: str
    load: Callable[[], pl.DataFrame]
    unfrozen: BatchRef | None = None
    touched: BatchRef | None = None
    frame: pl.DataFrame | None = None
    malformed: Sequence[tuple[int, str]] = ()
    cleaned: Sequence[tuple[int, str]] = ()

    def read(self) -> pl.DataFrame:
        if self.frame is None:
            self.frame = self.load()
        return self.frame


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the store says of a task, read in one state."""

    frozen: Mapping[str, BatchState]
    finished: Mapping[tuple[str, str], PartitionState]
    fallbacks: Mapping[tuple[str, str], FallbackState]
    retried: Mapping[tuple[str, str], int]
    leased: Mapping[tuple[str, str], Live]


@dataclass(slots=True)
class _Found:
    """What the planner has found so far."""

    unfrozen: list[BatchRef] = field(default_factory=list[BatchRef])
    touched: list[BatchRef] = field(default_factory=list[BatchRef])
    needs: list[PartitionNeed] = field(default_factory=list[PartitionNeed])
    done: list[PartitionKey] = field(default_factory=list[PartitionKey])
    fallbacks: dict[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    outdated: dict[PartitionKey, tuple[PartitionState, str]] = field(
        default_factory=dict[PartitionKey, tuple[PartitionState, str]]
    )
    set_aside: dict[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    cleaned: dict[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])

    def record_batch(self, batch: _Batch) -> None:
        if batch.unfrozen:
            self.unfrozen.append(batch.unfrozen)
        if batch.touched:
            self.touched.append(batch.touched)
        if batch.malformed:
            self.set_aside[batch.name] = batch.malformed
        if batch.cleaned:
            self.cleaned[batch.name] = batch.cleaned


class _Planner:
    """Makes one plan."""

    def __init__(
        self,
        task: Task,
        platform: Platform,
        recorded: RecordedVersions,
        selection: Selection,
        retries: tuple[RetryMode, RetryMode],
        *,
        is_counting: bool,
    ) -> None:
        self._task = task
        self._platform = platform
        self._recorded = recorded
        self._selection = selection
        self._retry, self._fallback_retry = retries
        self._is_counting = is_counting
        self._specs = {key: platform.spec(task, key) for key in task.variants if selection.has_variant(key)}
        self._stored = self._load_stored()
        self._found = _Found()

    def plan(self, source: Source) -> Plan:
        for batch in self._iterate_batches(source):  # one by one: a batch's records are many
            self._found.record_batch(batch)
            for key, spec in self._specs.items():
                self._look_at_partition(batch, PartitionKey(batch.name, key), spec)
        found, order = self._found, list(self._specs)
        described = self._recorded.get(VARIANT_SPECS, {})
        return Plan(
            task=self._task,
            unfrozen=tuple(found.unfrozen),
            touched=tuple(found.touched),
            undescribed=tuple(k for k, spec in self._specs.items() if described.get(k) != spec.data_version),
            # By variant: a prompt's common beginning is then computed once and kept by the engine's cache.
            needs=tuple(sorted(found.needs, key=lambda n: order.index(n.partition.variant))),
            done=tuple(found.done),
            fallbacks=tuple(found.fallbacks),
            fallback_fingerprints=found.fallbacks,
            outdated=tuple(found.outdated),
            versions={p: version for p, (_, version) in found.outdated.items()},
            outdated_since=min((state.finished_at for state, _ in found.outdated.values()), default=None),
            set_aside=found.set_aside,
            cleaned=found.cleaned,
        )

    def _load_stored(self) -> _Stored:
        name = self._task.name
        with self._platform.database.read() as connection:
            return _Stored(
                frozen=load_batches(connection, name),
                finished=load_partitions(connection, name),
                fallbacks=load_fallbacks(connection, name),
                retried=count_retried(connection, name, self._retry),
                leased=load_live(connection, name),
            )

    def _look_at_partition(self, batch: _Batch, partition: PartitionKey, spec: VariantSpec) -> None:
        """Find what one output partition needs; if it needs nothing, what its fallback and its results need."""
        place = (partition.batch, partition.variant)
        state = self._stored.finished.get(place)
        need = self._find_need(batch, partition, spec, state)
        if need is not None:
            holder = self._stored.leased.get(place)
            if holder is not None:
                need = replace(need, leased_by=holder.run_id, lease_location=holder.place)
            self._found.needs.append(need)
            return
        self._found.done.append(partition)
        if state is None:
            return
        made = self._stored.fallbacks.get(place)
        fallback = find_fallback(self._task, self._platform, state, made)
        if fallback:
            is_recorded = self._find_recorded(FALLBACK_OUTPUTS, partition) == fallback.data_version
            is_retried = made is not None and any(made.counts.get(s) for s in Status if self._fallback_retry.selects(s))
            if not is_recorded or is_retried:
                self._found.fallbacks[partition] = fallback.fingerprint
        version = fallback.results_version(state) if fallback else state.data_version
        if any(self._find_recorded(name, partition) != version for name in RESULT_NAMES):
            self._found.outdated[partition] = state, version

    def _find_recorded(self, asset: str, partition: PartitionKey) -> str | None:
        return self._recorded.get(asset, {}).get(str(partition))

    def _iterate_batches(self, source: Source) -> Iterator[_Batch]:
        refs, frozen, selection = source.list_batches(), self._stored.frozen, self._selection
        for ref in refs:
            if selection.has_batch(ref.batch):
                state = frozen.get(ref.batch)
                found = self._look_at_batch(source, ref, state)
                if found.unfrozen or found.touched or state is None or selection.is_recent(state):
                    yield found
        for gone in sorted(frozen.keys() - {ref.batch for ref in refs}):
            if selection.has_batch(gone) and selection.is_recent(frozen[gone]):
                yield self._as_frozen(frozen[gone])

    def _look_at_batch(self, source: Source, ref: BatchRef, state: BatchState | None) -> _Batch:
        """Return a batch as it is now; one whose change token is as it was when it was frozen is not read."""
        has_frame = self._platform.frames.path(self._task.name, SOURCE_RECORDS, ref.batch).exists()
        if state is not None and has_frame and state.change_token == ref.change_token:
            return self._as_frozen(state)
        if not self._is_counting:
            found = self._as_frozen(state) if state is not None else _Batch(ref.batch, "", pl.DataFrame)
            found.unfrozen = ref
            return found
        read = source.read(ref, self._task.used_fields)
        if state is not None and has_frame and state.change_token and state.source_hash == read.source_hash:
            found = self._as_frozen(state)
            found.touched = ref
            return found
        content = content_of(read.source_hash, state.superseded_hash if state else "")
        return _Batch(
            ref.batch, content, lambda: read.frame, unfrozen=ref, malformed=read.malformed, cleaned=read.cleaned
        )  # fmt: skip

    def _as_frozen(self, state: BatchState) -> _Batch:
        def load() -> pl.DataFrame:
            frame = self._platform.frames.read(self._task.name, SOURCE_RECORDS, state.batch)
            return pl.DataFrame(schema={ITEM_ID: pl.String, SOURCE_LINE: pl.Int64}) if frame is None else frame

        return _Batch(state.batch, state.content, load)

    def _find_need(
        self, batch: _Batch, partition: PartitionKey, spec: VariantSpec, state: PartitionState | None
    ) -> PartitionNeed | None:
        wanted = fingerprint(batch.content, spec)
        is_finished = state is not None and state.fingerprint == wanted
        is_recorded = state is not None and self._find_recorded(LLM_OUTPUTS, partition) == state.data_version
        to_retry = self._stored.retried.get((partition.batch, partition.variant), 0) if state else 0
        if is_finished and not to_retry:
            if is_recorded:
                return None
            return PartitionNeed(
                partition=partition, fingerprint=wanted, reasons=("finished, but not recorded in Dagster",)
            )
        parts = {"source": batch.content, **spec.parts}
        if not self._is_counting:
            reasons = _find_reasons(parts, state, to_retry)
            return PartitionNeed(partition=partition, fingerprint=wanted, reasons=reasons)
        counts = self._count_records(self._task.variants[partition.variant], batch, spec)
        if is_finished and is_recorded and not any(counts.values()):
            return None
        return PartitionNeed(
            partition=partition,
            fingerprint=wanted,
            missing=counts[RecordNeed.MISSING],
            stale=counts[RecordNeed.STALE],
            retried=counts[RecordNeed.RETRY],
            rejudged=counts[RecordNeed.JUDGEMENT],
            reasons=_find_reasons(parts, state, counts[RecordNeed.RETRY]),
        )

    def _count_records(self, variant: Variant, batch: _Batch, spec: VariantSpec) -> Counter[RecordNeed]:
        """Count what a batch's records need of a variant; those that need nothing are left out."""
        key, name = key_of(self._task, variant), self._task.name
        counts: Counter[RecordNeed] = Counter()
        with self._platform.database.read() as connection:
            for records in to_records(batch.read()):
                ids = [r.item_id for r in records]
                foreign = load_foreign(connection, name, batch.name, ids)
                states = load_states(connection, key, ids)
                counts.update(
                    classify(input_hash(r, variant.prompt.fields), states.get(r.item_id), spec, self._retry)
                    for r in records
                    if r.item_id not in foreign
                )
        del counts[RecordNeed.NOTHING]
        return counts


def _find_reasons(parts: Mapping[str, str], state: PartitionState | None, retried: int) -> tuple[str, ...]:
    """Name what changed since the partition was finished."""
    if state is None:
        return ("never finished",)
    changed = tuple(f"{name} changed" for name, value in parts.items() if state.parts.get(name) != value)
    return changed or (f"retry of {retried}",)
