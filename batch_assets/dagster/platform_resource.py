"""The resource that a step of Dagster's gets the platform from."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

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

        def open_once(opened: ExitStack) -> Platform:
            run, instance = context.run, context.instance
            if instance is not None and run is not None:
                instance.add_run_tags(run.run_id, process_tags(run.run_id))
            platform = open_platform(settings, build_engine=build_engine)
            opened.callback(platform.database.close)
            if run is not None:
                opened.enter_context(keep_heartbeat(platform.database, run.run_id))
            if instance is not None:
                recognise_moved_models(tasks.values(), platform, instance)
            return platform

        with ExitStack() as opened:
            try:
                platform = open_once(opened)
            except Exception as e:
                if not is_connection_lost(e):
                    raise
                opened.close()
                wait_for_database(settings.store_url)
                platform = open_once(opened)
            yield platform

    return dg.ResourceDefinition(open_for_run)
