"""The identity of a task's models. A local folder is known by its files, wherever it lies."""

from collections.abc import Iterable
from pathlib import Path

from batch_assets.core.identity import model_digest, variant_spec
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task, Variant
from batch_assets.engines.weights import find_revision, is_local_folder
from batch_assets.store.database import Database
from batch_assets.store.model_identities import has_rows_of, load_used_digest, save_used_digest


def find_model_digest(task: Task, model: ModelEntry, database: Database, cache_dir: Path) -> str:
    """Return the digest that a model counts by in a task: its own, or that of rows made by the rules of version 0.1."""
    revision = find_revision(model, cache_dir)
    if not is_local_folder(model):
        return model_digest(model, revision)
    own = model_digest(model, revision, local_place="")
    return recognise_model(task, model, database, cache_dir, [model.weights]) or own


def recognise_model(
    task: Task, model: ModelEntry, database: Database, cache_dir: Path, places: Iterable[str]
) -> str | None:
    """Return the digest that a local model's rows were made under, if it lay at one of `places` then; else None.

    Only rows that were made of the very same files fit: the digest covers the hash of the folder's files. What was
    found once is kept in the store, so that the folder can be moved afterwards.
    """
    revision = find_revision(model, cache_dir)
    own = model_digest(model, revision, local_place="")
    with database.read() as connection:
        used = load_used_digest(connection, task.name, model.model_id, own)
        if used is not None:
            return used
        for place in places:
            earlier = model_digest(model, revision, local_place=place)
            specs = {variant_spec(task, v, earlier).request_spec for v in _list_variants(task, model)}
            if has_rows_of(connection, task.name, model.model_id, earlier, specs):
                used = earlier
                break
    if used is not None:
        with database.write() as connection:
            save_used_digest(connection, task.name, model.model_id, own, used)
    return used


def find_unrecognised(task: Task, database: Database, cache_dir: Path) -> list[ModelEntry]:
    """Return the local models of a task, its fallback too, under whose present identity it has no rows known."""
    models = [*task.models.values(), *([task.fallback] if task.fallback else [])]
    return [m for m in models if is_local_folder(m) and not _is_known(task, m, database, cache_dir)]


def _is_known(task: Task, model: ModelEntry, database: Database, cache_dir: Path) -> bool:
    own = model_digest(model, find_revision(model, cache_dir), local_place="")
    specs = {variant_spec(task, v, own).request_spec for v in _list_variants(task, model)}
    with database.read() as connection:
        used = load_used_digest(connection, task.name, model.model_id, own)
        return used is not None or has_rows_of(connection, task.name, model.model_id, own, specs)


def _list_variants(task: Task, model: ModelEntry) -> Iterable[Variant]:
    return [Variant(prompt=prompt, model=model) for prompt in task.prompts.values()]
