"""A sensor, on by default, that forms microbatches of a stream's new rows and registers them as partitions."""

import dagster as dg

from batch_assets.core.tasks import Task
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.settings import load_settings
from batch_assets.sources.base import StreamSource
from batch_assets.sources.stream import Microbatched, form_batches
from batch_assets.store.database import now, open_database
from batch_assets.store.microbatches import MicrobatchLog

MAX_BATCHES = 20
"""In one tick: Dagster gives a sensor 60 s."""


def build_microbatch_sensor(task: Task, stream: StreamSource) -> dg.SensorDefinition:
    """Build the sensor of one task on a stream."""

    @dg.sensor(
        name=f"{task.name}__microbatches",
        minimum_interval_seconds=load_settings().sensor_interval_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Forms batches of the rows that are new in {stream.place}: {stream.max_records} rows make a full one, and "
            f"none waits longer than {stream.max_age_s:g} s. At most {MAX_BATCHES} batches in a tick. Launches nothing."
        ),
    )
    def microbatches(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        database = open_database(load_settings().store_url)
        try:
            log = MicrobatchLog(database, task.name)
            report = form_batches(stream, log, now=now(), max_batches=MAX_BATCHES)
            # All of them, not those just formed: a killed tick may have formed some and registered none.
            sync_partitions(task, Microbatched(stream, log), context.instance, is_retiring=False)
        finally:
            database.close()
        return dg.SkipReason(str(report))

    return microbatches
