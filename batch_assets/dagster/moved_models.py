"""Local models whose folder was moved after version 0.1 had asked them: what Dagster recorded says where it lay.

By the rules of that version the folder's path was part of a model's identity, and the store holds only its digest.
Today the files alone count. The store remembers which identity the rows have, so a project needs this once.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from batch_assets.core.asset_names import SOURCE_RECORDS, VARIANT_SPECS
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import asset_key
from batch_assets.pipeline.model_identities import find_unrecognised, recognise_model
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source


def recognise_moved_models(tasks: Iterable[tuple[Task, Source]], platform: Platform, instance: DagsterInstance) -> None:
    """Find the identity of each local model's rows by the paths in Dagster's records, unless the store knows it."""
    for task, source in tasks:
        for model in find_unrecognised(task, platform.database, platform.settings.cache_dir):
            places = _list_places(task, source, model, instance)
            recognise_model(task, model, platform.database, platform.settings.cache_dir, places)


def _list_places(task: Task, source: Source, model: ModelEntry, instance: DagsterInstance) -> Iterator[str]:
    """Yield the paths at which a model's folder may have been: as recorded, or as the project has moved."""
    moves: list[tuple[Path, Path]] = []
    for variant in task.variants.values():
        described = _load_metadata(instance, task, VARIANT_SPECS, variant.key).get("model")
        if isinstance(described, dict):
            place = str(described.get("weights", ""))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - JSON
            if variant.model.model_id == model.model_id:
                yield place
            moves.append((Path(place), Path(variant.model.weights)))
    for ref in source.list_batches():
        before = _load_metadata(instance, task, SOURCE_RECORDS, ref.batch).get("source")
        if isinstance(before, str):
            moves.append((Path(before), Path(ref.locator)))
    now = Path(model.weights)
    for root, moved_to in dict.fromkeys(found for before, after in moves if (found := _find_roots(before, after))):
        if now.is_relative_to(moved_to):
            yield str(root / now.relative_to(moved_to))


def _find_roots(before: Path, after: Path) -> tuple[Path, Path] | None:
    """Return the folders in which two paths are alike, as (before, after); None if the paths are equal or unlike."""
    if before == after or not (before.is_absolute() and after.is_absolute()) or before.name != after.name:
        return None
    old, new = list(before.parts), list(after.parts)
    while old and new and old[-1] == new[-1]:
        old.pop()
        new.pop()
    return (Path(*old), Path(*new)) if old and new else None


def _load_metadata(instance: DagsterInstance, task: Task, asset: str, partition: str) -> dict[str, Any]:
    """Return the metadata of a partition's last materialization, as plain values."""
    wanted = dg.AssetRecordsFilter(asset_key=asset_key(task, asset), asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    found = records[0].asset_materialization if records else None
    return {name: value.value for name, value in found.metadata.items()} if found else {}
