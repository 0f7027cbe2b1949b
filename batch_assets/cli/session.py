"""What every verb opens: settings, project, platform, instance."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from dagster import DagsterInstance

from batch_assets.core.errors import ConfigError
from batch_assets.core.tasks import Task
from batch_assets.dagster.instance import open_instance
from batch_assets.dagster.moved_models import recognise_moved_models
from batch_assets.dagster.project import Project, load_project
from batch_assets.engines.factory import build_engine
from batch_assets.pipeline.platform import Platform, open_platform
from batch_assets.run.loop import Observer
from batch_assets.settings import Settings, load_settings
from batch_assets.sources.base import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that a verb works with."""

    settings: Settings
    project: Project
    platform: Platform
    instance: DagsterInstance

    def find_task(self, name: str) -> tuple[Task, Source]:
        """Return a task by name. ConfigError lists those there are."""
        if name not in self.project.tasks:
            raise ConfigError(f"no task {name!r}; there are {', '.join(sorted(self.project.tasks)) or 'none'}")
        return self.project.tasks[name]


@contextmanager
def open_session(observer: Observer | None = None) -> Generator[Session, None, None]:
    """Open everything, and close it in the end. The command line's object is what makes engines, if it has one."""
    settings = load_settings()
    project = load_project(settings)
    context = click.get_current_context(silent=True)
    platform = open_platform(settings, observer, (context.obj if context else None) or build_engine)
    try:
        with open_instance(settings) as instance:
            recognise_moved_models(project.tasks.values(), platform, instance)
            yield Session(settings=settings, project=project, platform=platform, instance=instance)
    finally:
        platform.database.close()
