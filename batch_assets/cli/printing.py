"""How the verbs print: JSON documents, tables, and text that records or answers have a part in."""

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from batch_assets.cli.visible import make_visible


def make_console() -> Console:
    """Return stdout as a console; what is no terminal is 160 columns wide."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_as_json))


def _as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def make_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table: columns of words to the left, of numbers to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_text(console: Console, text: str) -> None:
    """Print what records, answers or servers may have a part in: no markup, no commands for the terminal.

    In a file a line stays one, however long.
    """
    console.print(make_visible(text), highlight=False, markup=False, soft_wrap=True)


def shorten(path: Path) -> str:
    """Return a path as seen from here, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
