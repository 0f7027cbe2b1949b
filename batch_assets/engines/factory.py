"""From an entry of models.yaml to its engine."""

from pathlib import Path

from batch_assets.core.models import ModelEntry
from batch_assets.engines.base import Engine, EngineEntry


def build_engine(entry: ModelEntry, cache_dir: Path) -> Engine:
    """Return the engine of an entry, not yet open. Raises ConfigError for arguments that it doesn't know."""
    own = _as_engine_entry(entry)
    own.check()
    return own.build(cache_dir)


def check_entry(entry: ModelEntry) -> None:
    """Refuse an entry whose arguments its engine doesn't know, without starting anything."""
    _as_engine_entry(entry).check()


def _as_engine_entry(entry: ModelEntry) -> EngineEntry:
    if not isinstance(entry, EngineEntry):
        raise TypeError(f"model {entry.model_id}: its entry has no engine: make it by make_entry")
    return entry
