"""A sensor, on by default, that registers new files as partitions and frees what killed runs have left taken."""

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.tasks import Task
from batch_assets.dagster.dead_runs import end_dead_runs
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.store.database import open_database


def build_sync_sensor(task: Task, source: Source) -> dg.SensorDefinition:
    """Build the sensor of one task."""

    @dg.sensor(
        name=f"{task.name}__sync_partitions",
        minimum_interval_seconds=load_settings().sensor_interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Keeps the partitions of {task.name} in step with its source, prompts and models, and ends runs whose "
            "process is dead, so that nothing waits for them. Launches nothing."
        ),
    )
    def sync(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = _end_dead_runs(context.instance)  # first: a source that can't be read is no reason to leave them
        sync_partitions(task, source, context.instance, is_retiring=False)
        gone = f"; ended runs of dead processes: {', '.join(ended)}" if ended else ""
        return dg.SkipReason(f"partitions are in step{gone}; this sensor launches nothing")

    return sync


def _end_dead_runs(instance: DagsterInstance) -> list[str]:
    """End what a kill -9 or a power cut has left: else it is never retried, and its slot stays taken for ever."""
    database = open_database(load_settings().store_url)
    try:
        return end_dead_runs(instance, database)
    finally:
        database.close()
