"""The tasks: whether the definitions load, and what each task has."""

import contextlib
import sys
from collections.abc import Iterator

from batch_assets.cli.probes.findings import Finding, Level, count, first_line
from batch_assets.core.errors import BatchAssetsError
from batch_assets.dagster.project import Project, load_project
from batch_assets.settings import Settings
from batch_assets.sources.stream import Microbatched
from batch_assets.store.inspection import StoreInspection


def load_tasks(settings: Settings) -> tuple[Project | None, Finding | None]:
    """Load the definitions, which runs the code of the defs folder; return them, or what is wrong with them."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what that code prints is no part of the report
            return load_project(settings), None
    except BatchAssetsError as e:
        words = str(e)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - the code of a task may raise anything
        words = f"{type(e).__name__}: {first_line(e)}"
    says = f"the definitions in {settings.defs} don't load: {words}"
    return None, Finding(about="tasks", says=says, level=Level.WRONG, mend="correct the file that is named")


def probe_tasks(project: Project, store: StoreInspection | None) -> Iterator[Finding]:
    """Yield a line for each task. `store`: the store, where microbatches stand; None if it can't be read."""
    if not project.tasks:
        yield Finding(about="tasks", says="there are none", level=Level.WARN, mend="make a folder in BATCH_ASSETS_DEFS")
    for name, (task, source) in sorted(project.tasks.items()):
        about = f"task {name}"
        variants = (
            f"{count(len(task.variants), 'variant', 'variants')}: {', '.join(task.prompts)} × {', '.join(task.models)}"
        )
        if isinstance(source, Microbatched):  # to ask it would open the store, which makes it
            formed = count(store.count_microbatches(name) if store else 0, "microbatch", "microbatches")
            yield Finding(about=about, says=f"{formed} of {source.stream.place}, {variants}")
            continue
        try:
            batches = len(source.list_batches())
        except BatchAssetsError as e:
            yield Finding(about=about, says=str(e), level=Level.WRONG)
            continue
        says = f"{count(batches, 'batch', 'batches')}, {variants}"
        if batches:
            yield Finding(about=about, says=says)
        else:
            yield Finding(about=about, says=says, level=Level.WARN, mend="put records where the source looks for them")
