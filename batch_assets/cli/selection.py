"""What is meant by the names and patterns of `--batch` and `--variant`."""

import fnmatch
from collections.abc import Sequence

import click

from batch_assets.cli.session import Session
from batch_assets.core.errors import ConfigError
from batch_assets.core.tasks import Task
from batch_assets.pipeline.plan import Selection
from batch_assets.sources.base import Source
from batch_assets.sources.files import FileSource

SHOWN_NAMES = 20


def select(session: Session, task: Task, source: Source, batches: Sequence[str], variants: Sequence[str]) -> Selection:
    """Return what is meant by names and patterns. Raises ConfigError for one that fits nothing."""
    if not batches:
        return Selection(variants=_match(task.name, "variant", variants, set(task.variants)))
    known = {ref.batch for ref in source.list_batches()}
    known |= set(session.instance.get_dynamic_partitions(f"{task.name}__batch"))
    return Selection(
        batches=_match(task.name, "batch", batches, known),
        variants=_match(task.name, "variant", variants, set(task.variants)),
    )


def _match(task: str, kind: str, patterns: Sequence[str], known: set[str]) -> frozenset[str] | None:
    found: set[str] = set()
    for pattern in patterns:
        fitting = set(fnmatch.filter(known, pattern))
        if not fitting:
            names = sorted(known)
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            has = ", ".join(names[:SHOWN_NAMES]) + more or "none"
            raise ConfigError(f"task {task} has no {kind} {pattern!r}; it has {has}")
        found |= fitting
    return frozenset(found) if patterns else None


def warn_of_no_batch(task: Task, source: Source) -> None:
    """Say so if a source offers nothing: a misspelt pattern looks like a day without records."""
    if not source.list_batches():
        words = f": no file fits {source.pattern} in {source.folder}" if isinstance(source, FileSource) else ""
        click.echo(f"warning: the source of task {task.name} offers no batch{words}", err=True)
