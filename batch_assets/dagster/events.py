"""From a made partition to Dagster's events: one shape for a run of one partition, one for a run of many."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg
from dagster import DagsterInstance
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from batch_assets.core.outcomes import CheckOutcome, Figure, Figures, FilePath, Json, MadePartition, Markdown, Table
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.dagster.event_log import keep_event_log_open

DATA_VERSION_TAG = "dagster/data_version"
BACKFILL_TAG = "dagster/backfill"

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def to_metadata(figures: Figures) -> dict[str, Any]:
    """Return figures as Dagster's metadata; the web UI shows a table's cells as plain text."""
    return {name: _to_value(figure) for name, figure in figures.items()}


def _to_value(figure: Figure) -> Any:
    match figure:
        case Markdown(text):
            return dg.MetadataValue.md(text)
        case Json(value):
            return dg.MetadataValue.json(value)  # pyright: ignore[reportArgumentType] - it holds what JSON can
        case FilePath(path):
            return dg.MetadataValue.path(path)
        case Table():
            return dg.MetadataValue.table(
                records=[dg.TableRecord(dict(zip(figure.columns, row, strict=True))) for row in figure.rows],
                schema=dg.TableSchema(columns=[dg.TableColumn(name) for name in figure.columns]),
            )
        case _:
            return figure


def to_result(task: Task, made: MadePartition) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Yield a made partition as the result of a run of this one partition.

    One that a blocking check has refused is no materialization: only what its checks found is recorded.
    """
    key = asset_key(task, made.asset)
    checks = [_to_check_result(key, c) for c in made.checks]
    if made.is_unmade:
        yield from checks
        return
    yield dg.MaterializeResult(
        asset_key=key,
        data_version=dg.DataVersion(made.data_version),
        metadata=to_metadata(made.figures),
        check_results=checks,
    )


def _to_check_result(key: dg.AssetKey, outcome: CheckOutcome) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=outcome.name,
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity(outcome.severity.value),
        metadata=to_metadata(outcome.figures),
    )


def to_events(
    task: Task, made: MadePartition, run_tags: Mapping[str, str], instance: DagsterInstance
) -> Iterator[Event]:
    """Yield a made partition as events of a run of many: each has its own data version, figures and checks."""
    key = asset_key(task, made.asset)
    tags = {DATA_VERSION_TAG: made.data_version}
    if BACKFILL_TAG in run_tags:
        tags[BACKFILL_TAG] = run_tags[BACKFILL_TAG]
    if not made.is_unmade:
        metadata = to_metadata(made.figures)
        yield dg.AssetMaterialization(key, partition=made.partition, metadata=metadata, tags=tags)
    target = _find_materialization(instance, key, made.partition) if made.checks else None
    for outcome in made.checks:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=outcome.name,
            passed=outcome.passed,
            severity=dg.AssetCheckSeverity(outcome.severity.value),
            metadata=to_metadata(outcome.figures),
            partition=made.partition,
            target_materialization_data=target,
            # Never blocking here: that would fail the step at its end, and with it every other partition. What a
            # failed gate holds back is its own partition's results (pipeline/make_results.py).
            blocking=False,
        )


def _find_materialization(
    instance: DagsterInstance, key: dg.AssetKey, partition: str
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return the materialization that a check is about; without it the web UI shows the partition as not checked."""
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
    found = instance.fetch_materializations(wanted, limit=1).records
    if not found:
        return None
    last = found[0]
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=last.storage_id, run_id=last.run_id, timestamp=last.timestamp
    )


def emit(
    context: dg.AssetExecutionContext, task: Task, all_made: Iterable[MadePartition]
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult | Event | dg.Output[None]]:
    """Yield made partitions in the shape that the run needs, and at its end what Dagster wants of the step's checks.

    A run of a range has no partition key, even if the range holds one partition: Dagster would then record the checks
    under none. What a run of one partition makes beside its own are the partitions that it took over.
    """
    own = str(context.partition_key) if context.has_partition_key else None
    with keep_event_log_open(context.instance, context.run.run_id):
        for made in all_made:
            if made.partition == own:
                yield from to_result(task, made)
            else:
                yield from to_events(task, made, context.run.tags, context.instance)
    if own is None:
        for key in context.selected_asset_check_keys:
            yield dg.Output(None, output_name=f"{key.asset_key.to_python_identifier()}_{key.name}")
