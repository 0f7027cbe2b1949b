"""What every verb opens: settings, project, platform, instance."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from dagster import DagsterInstance

from batch_assets.core.errors import ConfigError
from batch_assets.core.tasks import Task
from batch_assets.dagster.instance import open_instance
from batch_assets.dagster.project import Project, load_project
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
    """Open everything, and close it in the end."""
    settings = load_settings()
    project = load_project(settings)
    platform = open_platform(settings, observer)
    try:
        with open_instance(settings) as instance:
            yield Session(settings=settings, project=project, platform=platform, instance=instance)
    finally:
        platform.database.close()
