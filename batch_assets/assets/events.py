"""From a finished partition to Dagster's events: one shape for a run of one partition, one for a run of many."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dagster as dg
from dagster import DagsterInstance
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from batch_assets.asset_keys import VALIDATED_RESULTS, asset_key
from batch_assets.core.tasks import Task
from batch_assets.event_log import keep_event_log_open

DATA_VERSION_TAG = "dagster/data_version"
BACKFILL_TAG = "dagster/backfill"

HOLDING = frozenset({VALIDATED_RESULTS})
"""Assets that aren't made where a blocking check refuses them; the others' data is what it is, and is shown."""

Metadata = Mapping[str, Any]
Event = dg.AssetMaterialization | dg.AssetCheckEvaluation
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found in one partition. Figures and limits go into the metadata."""

    name: str
    passed: bool
    metadata: Metadata
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    is_blocking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """One asset's partition, made: its key, data version, figures, and what its checks found."""

    asset: str
    partition: str
    data_version: str
    metadata: Metadata
    findings: Sequence[Finding] = ()

    @property
    def is_held(self) -> bool:
        """Say whether a blocking check refused it: its findings are reported, and nothing was made."""
        return any(f.is_blocking and not f.passed for f in self.findings)


def to_result(task: Task, stamp: Stamp) -> dg.MaterializeResult[Any]:
    """Return the stamp as the result of a run of this one partition."""
    key = asset_key(task, stamp.asset)
    return dg.MaterializeResult(
        asset_key=key,
        data_version=dg.DataVersion(stamp.data_version),
        metadata=dict(stamp.metadata),
        check_results=[
            dg.AssetCheckResult(
                asset_key=key, check_name=f.name, passed=f.passed, severity=f.severity, metadata=dict(f.metadata)
            )
            for f in stamp.findings
        ],
    )


def to_events(task: Task, stamp: Stamp, run_tags: Mapping[str, str], instance: DagsterInstance) -> Iterator[Event]:
    """Yield the stamp as events of a run of many partitions: each keeps its own data version, figures and findings."""
    key = asset_key(task, stamp.asset)
    tags = {DATA_VERSION_TAG: stamp.data_version}
    if BACKFILL_TAG in run_tags:
        tags[BACKFILL_TAG] = run_tags[BACKFILL_TAG]
    if not (stamp.is_held and stamp.asset in HOLDING):
        yield dg.AssetMaterialization(key, partition=stamp.partition, metadata=dict(stamp.metadata), tags=tags)
    target = _find_materialization(instance, key, stamp.partition) if stamp.findings else None
    for f in stamp.findings:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=f.name,
            passed=f.passed,
            severity=f.severity,
            metadata=dict(f.metadata),
            partition=stamp.partition,
            target_materialization_data=target,
            # Never blocking here: that would fail the step at its end, and with it every other partition. What a
            # failed gate holds back is its own partition's results (assets.results.follow).
            blocking=False,
        )


def _find_materialization(
    instance: DagsterInstance, key: dg.AssetKey, partition: str
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return the materialization that a finding is about; without it the web UI shows the partition as not checked."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
    found = instance.fetch_materializations(wanted, limit=1).records
    if not found:
        return None
    last = found[0]
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=last.storage_id, run_id=last.run_id, timestamp=last.timestamp
    )


def emit(
    context: dg.AssetExecutionContext, task: Task, stamps: Iterable[Stamp]
) -> Iterator[dg.MaterializeResult[Any] | Event | dg.Output[None]]:
    """Yield stamps in the shape that the run needs, and at its end what Dagster wants of the step's checks.

    A run of a range has no partition key, even if the range holds one partition: then Dagster would record the
    findings under none. What a run of one partition makes beside its own are the partitions that it took over.
    """
    own = str(context.partition_key) if context.has_partition_key else None
    with keep_event_log_open(context.instance, context.run.run_id):
        for stamp in stamps:
            if stamp.partition == own:
                yield to_result(task, stamp)
            else:
                yield from to_events(task, stamp, context.run.tags, context.instance)
    if own is None:
        for key in context.selected_asset_check_keys:
            yield dg.Output(None, output_name=f"{key.asset_key.to_python_identifier()}_{key.name}")
