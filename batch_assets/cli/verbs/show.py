"""`show`: every row and attempt of one record."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from batch_assets.cli.options import json_option
from batch_assets.cli.printing import make_console, print_json, print_text
from batch_assets.cli.session import open_session
from batch_assets.core.completions import make_storable
from batch_assets.core.errors import ConfigError
from batch_assets.store.overview import load_record

_ENDS = {
    None: "no end: in flight, or its process died",
    "released": "released: its run stopped before it was answered",
}


@click.command()
@click.argument("task")
@click.argument("item_id")
@json_option
def show(task: str, item_id: str, as_json: bool) -> None:
    """Show every row and attempt of the record ITEM_ID of TASK."""
    with open_session() as session:
        name = session.find_task(task)[0].name
        with session.platform.database.read() as connection:
            # What a shell hands over that is not UTF-8 is no text to a database, and no record's id.
            found = load_record(connection, name, make_storable(item_id))
    if not any(found.values()):
        raise ConfigError(f"task {name} has no record {item_id!r} in the batches that were read until now")
    if as_json:
        print_json(found)
    else:
        print_record(make_console(), item_id, found)


def print_record(console: Console, item_id: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print all rows and attempts of one record."""
    pending = [] if found["results"] else [f"{item_id} in batch {b['batch']}: pending" for b in found["batches"]]
    for line in [*pending, *_row_lines(item_id, found["results"]), *_attempt_lines(found["attempts"])]:
        print_text(console, line)


def _row_lines(item_id: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        reason = f" {row['error_kind']}: {row['error']}" if row["error_kind"] else ""
        variant = f"{row['prompt_ver']}--{row['model_id']}"
        step = f" at step {row['ladder_step']} of the ladder" if row["ladder_step"] else ""
        marked = " (fallback for another variant)" if row["is_fallback"] else ""
        yield f"{item_id} {variant} in batch {row['batch']}: {row['status']}{step}{marked}{reason}"
        reused = f" (answer of attempt {row['reused_from']})" if row["reused_from"] else ""
        yield f"  answer {json.dumps(row['payload'], ensure_ascii=False)}{reused}"
        at = f"{row['updated_at']:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  attempts {row['attempts']}, updated {at}, run {row['run_id']}"


def _attempt_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for a in rows:
        end = _ENDS.get(a["outcome"], a["outcome"])
        latency = f", {a['latency_s']:.2f} s" if a["latency_s"] is not None else ""
        tokens = f", {a['prompt_tokens']}+{a['completion_tokens']} tokens" if a["prompt_tokens"] is not None else ""
        variant = f"{a['prompt_ver']}--{a['model_id']}"
        at = f"{a['started_at']:%Y-%m-%d %H:%M:%S}"
        step = f", step {a['ladder_step']}" if a["ladder_step"] else ""
        yield f"  attempt {a['attempt']}{step} of {variant} at {at}: {end}{latency}{tokens}, key {a['request_key']}"
        if a["completion"] is not None:
            yield f"    {a['finish_reason']}: {a['completion']}"
        for name in ("reasoning", "refusal"):
            if a[name]:
                yield f"    {name}: {a[name]}"
        if a["error"]:
            yield f"    {a['error_kind']}: {a['error']}"
