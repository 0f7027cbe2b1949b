"""A sensor, on by default, that registers new files, prompts and models as partitions."""

import dagster as dg

from batch_assets.core.tasks import Task
from batch_assets.partitions import sync_partitions
from batch_assets.sources.base import Source

EVERY_S = 30


def build_sync_sensor(task: Task, source: Source) -> dg.SensorDefinition:
    """Build the sensor of one task."""

    @dg.sensor(
        name=f"{task.name}__sync_partitions",
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Keeps the partitions of {task.name} in step with its source, prompts and models.",
    )
    def sync(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        sync_partitions(task, source, context.instance, is_retiring=False)
        return dg.SkipReason("partitions are in step; this sensor launches nothing")

    return sync
