"""What every step of the pipeline stands on: settings, store, frames and engines. Opened once per process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from batch_assets.core.errors import ConfigError
from batch_assets.core.identity import VariantSpec, variant_spec
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.engines.base import Engine
from batch_assets.engines.factory import build_engine
from batch_assets.pipeline.model_identities import find_model_digest
from batch_assets.run.loop import Observer
from batch_assets.run.partition_run import Tally
from batch_assets.settings import Settings
from batch_assets.store.database import Database, open_database
from batch_assets.store.frame_folders import record_frame_folder
from batch_assets.store.frames import FrameStore

BuildEngine = Callable[[ModelEntry, Path], Engine]
"""Makes the engine of a model's entry, not yet open; the path is the cache of converted models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What a step reads, writes and asks. The command line sets an `observer`, to show progress."""

    settings: Settings
    database: Database
    frames: FrameStore
    observer: Observer | None = None
    asked: Tally = field(default_factory=Tally)
    """Counts what the steps have asked the models, and what became of it."""
    build_engine: BuildEngine = build_engine
    _specs: dict[tuple[str, str], VariantSpec] = field(default_factory=dict[tuple[str, str], VariantSpec])

    def spec(self, task: Task, variant: str) -> VariantSpec:
        """Return the identity of a variant. Raises ConfigError if the task has no such variant."""
        found = task.find_variant(variant)
        if found is None:
            raise ConfigError(f"task {task.name} has no variant {variant!r}; it has {', '.join(task.variants)}")
        key = (task.name, variant)
        if key not in self._specs:
            model = find_model_digest(task, found.model, self.database, self.settings.cache_dir)
            self._specs[key] = variant_spec(task, found, model)
        return self._specs[key]


def open_platform(
    settings: Settings, observer: Observer | None = None, build_engine: BuildEngine = build_engine
) -> Platform:
    """Open the store (and bring its schema up to date) and the frames' folder, which the store is told of."""
    database = open_database(settings.store_url)
    record_frame_folder(database, settings.frames_dir)
    return Platform(
        settings=settings,
        database=database,
        frames=FrameStore(settings.frames_dir),
        observer=observer,
        build_engine=build_engine,
    )
