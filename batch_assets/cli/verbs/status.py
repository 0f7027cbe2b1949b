"""`status`: each task at a glance."""

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.markup import escape

from batch_assets.cli.options import json_option
from batch_assets.cli.printing import make_console, make_table, print_json
from batch_assets.cli.session import open_session
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.tasks import Task
from batch_assets.sources.base import Source
from batch_assets.store.batches import load_batches
from batch_assets.store.database import Connection
from batch_assets.store.overview import VariantStatus, load_fallback_status, load_status


@click.command()
@click.argument("task", required=False)
@json_option
def status(task: str | None, as_json: bool) -> None:
    """Show how many records of TASK (default: of each task) are ok, invalid, error or pending, by variant."""
    with open_session() as session:
        names = [session.find_task(task)[0].name] if task else sorted(session.project.tasks)
        with session.platform.database.read() as connection:
            tasks = {name: session.project.tasks[name][0] for name in names}
            found = {
                name: [
                    *load_status(connection, name, _list_variants(task)),
                    *load_fallback_status(connection, name),
                ]
                for name, task in tasks.items()
            }
            new = {name: _count_new(connection, name, session.project.tasks[name][1]) for name in names}
    if as_json:
        print_json({name: [asdict(line) for line in lines] for name, lines in found.items()})
        return
    for name, lines in found.items():
        print_status(make_console(), name, lines, new[name])


def _count_new(connection: Connection, task: str, source: Source) -> int:
    """Return how many batches the source offers that were never read: nobody has counted their records."""
    try:
        offered = {ref.batch for ref in source.list_batches()}
    except (ConfigError, SourceError):  # `plan` and `run` say what is wrong with it
        return 0
    return len(offered - set(load_batches(connection, task)))


def _list_variants(task: Task) -> list[tuple[str, str]]:
    """Return a task's variants as (prompt_ver, model_id)."""
    return [(v.prompt.prompt_ver, v.model.model_id) for v in task.variants.values()]


def print_status(console: Console, task: str, lines: Sequence[VariantStatus], new_batches: int) -> None:
    """Print a task at a glance; the records of new batches, which were never read, are in no figure."""
    if not lines:
        console.print(f"{task}: no results yet")
        return
    table = make_table(task, ("prompt_ver", "model_id"), ("ok", "invalid", "error", "pending"))
    for line in lines:
        counts = (str(n) for n in (line.ok, line.invalid, line.error, line.pending))
        marked = f"{line.model_id} (fallback)" if line.is_fallback else line.model_id
        table.add_row(line.prompt_ver, marked, *counts)
    console.print(table)
    if new_batches:
        console.print(f"not counted: {new_batches} new batches, see batch-assets plan {task}", highlight=False)
    if not any(line.reasons for line in lines):
        return
    why = make_table("why, with the first record of each kind", ("prompt_ver", "model_id", "reason"), ("records",))
    why.add_column("such as", overflow="fold")
    for line in lines:
        for reason, found in line.reasons.items():
            why.add_row(line.prompt_ver, line.model_id, reason, str(found.records), escape(found.first))
    console.print(why)
