"""`export`: a task's validated results as one file."""

from collections.abc import Sequence
from typing import Any

import click

from batch_assets.cli.exit_codes import FAILING_CHECKS
from batch_assets.cli.export_output import STDOUT, Format, choose_format, choose_output
from batch_assets.cli.exporter import Exported, Exporter, describe, describe_rows
from batch_assets.cli.options import batches_option, json_option, variants_option
from batch_assets.cli.printing import print_json
from batch_assets.cli.selection import select
from batch_assets.cli.session import open_session
from batch_assets.core.errors import NotReadyError


@click.command()
@click.argument("task")
@batches_option
@variants_option
@click.option(
    "--format",
    "form",
    type=click.Choice([f.value for f in Format]),
    help="Default: by the ending of --output, else parquet. In CSV, text that a spreadsheet would run gets a ' before.",
)
@click.option("--output", help="The file (default: TASK[--VARIANT].FORMAT here); - is stdout, for csv and jsonl.")
@click.option("--strict", is_flag=True, help="Write nothing, and exit with 1, if anything is missing or out of date.")
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    task: str,
    batches: Sequence[str],
    variants: Sequence[str],
    form: str | None,
    output: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Write the validated results of TASK to one file, which is there as a whole or not at all."""
    chosen = choose_format(form, output)
    if as_json and output == STDOUT:
        raise click.UsageError("--json and --output - would both write to stdout")
    with open_session() as session:
        bound = session.find_task(task)
        selection = select(session, *bound, batches, variants)
        exporter = Exporter(*bound, session.platform, session.instance)
        try:
            done = exporter.export(
                selection, chosen, choose_output(output, task, batches, variants, chosen), strict=strict
            )
        except NotReadyError as e:
            click.echo(f"not exported: {e}", err=True)
            ctx.exit(FAILING_CHECKS)
    if as_json:
        print_json(summary_document(task, chosen, done))
    else:
        print_export(task, done)


def summary_document(task: str, form: Format, done: Exported) -> dict[str, Any]:
    """Return what was exported as plain data."""
    return {
        "task": task,
        "format": form.value,
        "path": done.path,
        "rows": done.rows,
        "partitions": done.partitions,
        "bytes": done.bytes,
        "left_out": done.left_out,
        "has_changed": done.has_changed,
        "missing": done.missing,
        "outdated": done.outdated,
        "lost": done.lost,
        "held_back": done.held,
    }


def print_export(task: str, done: Exported) -> None:
    """Print the one line of figures, and on stderr what is wrong with them."""
    for line in [*describe(task, done), *describe_rows(done)]:
        click.echo(f"warning: {line}", err=True)
    words = f"{done.rows} rows of {done.partitions} partitions"
    if done.path == STDOUT:
        click.echo(words, err=True)
    else:
        click.echo(f"{words} in {done.path} ({done.bytes} bytes)")
