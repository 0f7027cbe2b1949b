"""The resource that a step of Dagster's gets the platform from."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import dagster as dg

from batch_assets.core.tasks import Task
from batch_assets.dagster.dead_runs import process_tags
from batch_assets.dagster.moved_models import recognise_moved_models
from batch_assets.engines.factory import build_engine
from batch_assets.pipeline.platform import BuildEngine, Platform, open_platform
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.store.database import is_connection_lost, wait_for_database
from batch_assets.store.heartbeats import keep_heartbeat

PLATFORM = "platform"


def build_platform_resource(
    tasks: Mapping[str, tuple[Task, Source]], build_engine: BuildEngine = build_engine
) -> dg.ResourceDefinition:
    """Return the resource that assets name `platform`; it opens when a run needs it, not when definitions load.

    It tags the run with its process and keeps its heartbeat, so that `end_dead_runs` can tell when that is gone.
    """

    def open_for_run(context: dg.InitResourceContext) -> Iterator[Platform]:
        settings = load_settings()

        def open_once() -> Platform:
            if context.instance is not None and context.run is not None:
                context.instance.add_run_tags(context.run.run_id, process_tags(context.run.run_id))
            platform = open_platform(settings, build_engine=build_engine)
            if context.instance is not None:
                recognise_moved_models(tasks.values(), platform, context.instance)
            return platform

        try:
            platform = open_once()
        except Exception as e:
            if not is_connection_lost(e):
                raise
            wait_for_database(settings.store_url)
            platform = open_once()
        heart = keep_heartbeat(platform.database, context.run.run_id) if context.run is not None else nullcontext()
        try:
            with heart:
                yield platform
        finally:
            platform.database.close()

    return dg.ResourceDefinition(open_for_run)
