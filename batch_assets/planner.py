"""What is missing or stale, by partition and in records, and why. Decides by level: by what is, not by what happened.

One planner serves the command line, sensors and estimates. It reads; freezing and asking are the assets' work.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import polars as pl
from dagster import DagsterInstance

from batch_assets.asset_keys import (
    FALLBACK_OUTPUTS,
    LLM_OUTPUTS,
    RESULT_ASSETS,
    SOURCE_RECORDS,
    VARIANT_SPECS,
    load_versions,
    spec_version,
)
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.identity import VariantSpec, fingerprint
from batch_assets.core.records import input_hash
from batch_assets.core.tasks import Task, Variant
from batch_assets.partitions import PartitionKey
from batch_assets.resources import Platform
from batch_assets.sources.base import ITEM_ID, SOURCE_LINE, BatchRef, Source
from batch_assets.store.batches import BatchState, content_of, load_batches
from batch_assets.store.fallbacks import load_fallbacks
from batch_assets.store.leases import load_live
from batch_assets.store.partitions import PartitionState, load_partitions
from batch_assets.store.results import VariantKey, load_foreign, load_states
from batch_assets.works import find_fallback, to_records, used_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one output partition needs, in records. All zero: finished in the store, but its event is missing.

    Where the plan was made without counting they are zero as well; `fingerprint` is what the partition is to become.
    """

    partition: PartitionKey
    fingerprint: str = ""
    missing: int = 0
    stale: int = 0
    retried: int = 0
    rejudged: int = 0
    reasons: tuple[str, ...] = ()
    leased_by: str | None = None
    held_at: str = ""
    """Where the process of `leased_by` is."""

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
    """Batches whose stamp changed and whose content didn't."""
    unspecified: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    done: tuple[PartitionKey, ...] = ()
    fallbacks: tuple[PartitionKey, ...] = ()
    """Finished output partitions whose quarantined records the fallback model has yet to be asked, or told of."""
    fallback_fingerprints: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    """What the fallbacks are to become."""
    outdated: tuple[PartitionKey, ...] = ()
    """Finished output partitions whose results (validated_results and after) are of another version."""
    versions: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    """The data versions of the outdated."""
    outdated_since: dt.datetime | None = None
    """When the first of the outdated was finished."""
    set_aside: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    """Of the batches to freeze: the lines that can't be used, with the reason. Known where records are counted."""
    cleaned: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    """The same for lines of which a value would be cleaned."""

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to do at all."""
        return not (self.unfrozen or self.unspecified or self.needs or self.fallbacks or self.outdated)

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


@dataclass(slots=True)
class _Findings:
    """What make_plan has found so far."""

    unfrozen: list[BatchRef] = field(default_factory=list[BatchRef])
    touched: list[BatchRef] = field(default_factory=list[BatchRef])
    needs: list[Need] = field(default_factory=list[Need])
    done: list[PartitionKey] = field(default_factory=list[PartitionKey])
    fallbacks: dict[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    outdated: dict[PartitionKey, tuple[PartitionState, str]] = field(
        default_factory=dict[PartitionKey, tuple[PartitionState, str]]
    )
    set_aside: dict[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])
    cleaned: dict[str, Sequence[tuple[int, str]]] = field(default_factory=dict[str, Sequence[tuple[int, str]]])

    def note(self, batch: _Batch) -> None:
        if batch.unfrozen:
            self.unfrozen.append(batch.unfrozen)
        if batch.touched:
            self.touched.append(batch.touched)
        if batch.malformed:
            self.set_aside[batch.name] = batch.malformed
        if batch.cleaned:
            self.cleaned[batch.name] = batch.cleaned


def make_plan(
    task: Task,
    source: Source,
    platform: Platform,
    instance: DagsterInstance,
    *,
    selection: Selection = Selection(),
    retry: RetryMode = RetryMode.NONE,
    is_counting: bool = True,
) -> Plan:
    """Compare what should be with what is. Raises SourceError and ConfigError for input that can't be used.

    Without counting no record is read, neither from the source nor from a frame: a batch whose stamp changed is to be
    frozen, and its partitions are as before until it was. That is what a sensor does at each tick.
    """
    with platform.database.read() as connection:
        frozen = load_batches(connection, task.name)
        finished = load_partitions(connection, task.name)
        fallen_back = load_fallbacks(connection, task.name)
        leased = load_live(connection, task.name)
    followed = (FALLBACK_OUTPUTS,) if task.fallbacks else ()
    stamped = {name: load_versions(instance, task, name) for name in (LLM_OUTPUTS, *followed, *RESULT_ASSETS)}
    specs = {key: platform.spec(task, key) for key in task.variants if selection.has_variant(key)}
    found = _Findings()
    # One by one: a batch's records are many.
    for batch in _list_batches(task, source, platform, frozen, selection, is_counting=is_counting):
        found.note(batch)
        for key, spec in specs.items():
            partition = PartitionKey(batch.name, key)
            state = finished.get((batch.name, key))
            need = _find_need(
                task, platform, batch, partition, spec, state, stamped[LLM_OUTPUTS], retry, is_counting=is_counting
            )
            if need is not None:
                holder = leased.get((batch.name, key))
                if holder is not None:
                    need = replace(need, leased_by=holder.run_id, held_at=holder.place)
                found.needs.append(need)
                continue
            found.done.append(partition)
            if state is None:
                continue
            fallback = find_fallback(task, platform, state, fallen_back.get((batch.name, key)))
            if fallback and stamped[FALLBACK_OUTPUTS].get(str(partition)) != fallback.data_version:
                found.fallbacks[partition] = fallback.fingerprint
            version = fallback.results_version(state) if fallback else state.data_version
            if any(stamped[name].get(str(partition)) != version for name in RESULT_ASSETS):
                found.outdated[partition] = state, version
    specified = load_versions(instance, task, VARIANT_SPECS)
    order = list(specs)
    return Plan(
        task=task,
        unfrozen=tuple(found.unfrozen),
        touched=tuple(found.touched),
        unspecified=tuple(k for k, spec in specs.items() if specified.get(k) != spec_version(spec)),
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


def _list_batches(
    task: Task,
    source: Source,
    platform: Platform,
    frozen: Mapping[str, BatchState],
    selection: Selection,
    *,
    is_counting: bool,
) -> Iterator[_Batch]:
    refs = source.list_batches()
    for ref in refs:
        if selection.has_batch(ref.batch):
            state = frozen.get(ref.batch)
            found = _look_at(task, source, platform, ref, state, is_counting=is_counting)
            if found.unfrozen or found.touched or state is None or selection.is_recent(state):
                yield found
    for gone in sorted(frozen.keys() - {ref.batch for ref in refs}):
        if selection.has_batch(gone) and selection.is_recent(frozen[gone]):
            yield _as_frozen(task, platform, frozen[gone])


def _look_at(
    task: Task, source: Source, platform: Platform, ref: BatchRef, state: BatchState | None, *, is_counting: bool
) -> _Batch:
    """Return a batch as it is now; one whose stamp is as it was when it was frozen is not read."""
    has_frame = platform.frames.path(task.name, SOURCE_RECORDS, ref.batch).exists()
    if state is not None and has_frame and state.stamp == ref.stamp:
        return _as_frozen(task, platform, state)
    if not is_counting:
        found = _as_frozen(task, platform, state) if state is not None else _Batch(ref.batch, "", pl.DataFrame)
        found.unfrozen = ref
        return found
    read = source.read(ref, used_fields(task))
    if state is not None and has_frame and state.source_hash == read.source_hash:
        found = _as_frozen(task, platform, state)
        found.touched = ref
        return found
    content = content_of(read.source_hash, state.superseded_hash if state else "")
    return _Batch(
        ref.batch, content, lambda: read.frame, unfrozen=ref, malformed=read.malformed, cleaned=read.cleaned
    )  # fmt: skip


def _as_frozen(task: Task, platform: Platform, state: BatchState) -> _Batch:
    def load() -> pl.DataFrame:
        frame = platform.frames.read(task.name, SOURCE_RECORDS, state.batch)
        return pl.DataFrame(schema={ITEM_ID: pl.String, SOURCE_LINE: pl.Int64}) if frame is None else frame

    return _Batch(state.batch, state.content, load)


def _find_need(
    task: Task,
    platform: Platform,
    batch: _Batch,
    partition: PartitionKey,
    spec: VariantSpec,
    state: PartitionState | None,
    stamped: Mapping[str, str],
    retry: RetryMode,
    *,
    is_counting: bool,
) -> Need | None:
    wanted = fingerprint(batch.content, spec)
    is_finished = state is not None and state.fingerprint == wanted
    is_stamped = state is not None and stamped.get(str(partition)) == state.data_version
    to_retry = sum(state.counts.get(s, 0) for s in Status if retry.selects(s)) if state else 0
    if is_finished and not to_retry:
        if is_stamped:
            return None
        return Need(partition=partition, fingerprint=wanted, reasons=("finished, but Dagster wasn't told",))
    parts = {"source": batch.content, **spec.parts}
    if not is_counting:
        return Need(partition=partition, fingerprint=wanted, reasons=_find_reasons(parts, state, to_retry))
    counts = _count_records(task.variants[partition.variant], task, platform, batch, spec, retry)
    if is_finished and is_stamped and not any(counts.values()):
        return None
    return Need(
        partition=partition,
        fingerprint=wanted,
        missing=counts["missing"],
        stale=counts["stale"],
        retried=counts["retried"],
        rejudged=counts["rejudged"],
        reasons=_find_reasons(parts, state, counts["retried"]),
    )


def _find_reasons(parts: Mapping[str, str], state: PartitionState | None, retried: int) -> tuple[str, ...]:
    """Name what changed since the partition was finished."""
    if state is None:
        return ("never finished",)
    changed = tuple(f"{name} changed" for name, value in parts.items() if state.parts.get(name) != value)
    return changed or (f"retry of {retried}",)


def _count_records(
    variant: Variant, task: Task, platform: Platform, batch: _Batch, spec: VariantSpec, retry: RetryMode
) -> dict[str, int]:
    key = VariantKey(task=task.name, prompt_ver=variant.prompt.prompt_ver, model_id=variant.model.model_id)
    counts = {"missing": 0, "stale": 0, "retried": 0, "rejudged": 0}
    with platform.database.read() as connection:
        for records in to_records(batch.read()):
            ids = [r.item_id for r in records]
            foreign = load_foreign(connection, task.name, batch.name, ids)
            states = load_states(connection, key, ids)
            for record in records:
                state = states.get(record.item_id)
                if record.item_id in foreign:
                    continue
                if state is None:
                    counts["missing"] += 1
                elif state.input_hash != input_hash(record, variant.prompt.fields) or (
                    state.request_spec != spec.request_spec
                ):
                    counts["stale"] += 1
                elif retry.selects(state.status, state.error_kind):
                    counts["retried"] += 1
                elif state.accept_spec != spec.accept_spec or state.is_fallback:
                    counts["rejudged"] += 1
    return counts
