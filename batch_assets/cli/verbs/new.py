"""`new`: the folder of a new task, which runs as it is."""

import os
from pathlib import Path

import click

from batch_assets.cli.options import json_option
from batch_assets.cli.printing import print_json, shorten
from batch_assets.core.errors import ConfigError
from batch_assets.dagster.new_task import SHIPPED_DEFS, check_new_task, find_package, write_defs_package, write_task
from batch_assets.settings import load_settings


@click.command()
@click.argument("task")
@click.option("--yaml", "is_yaml", is_flag=True, help="Declare the task in YAML, its output model beside it.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path),
    help="The folder of tasks; a new one is made (default: BATCH_ASSETS_DEFS).",
)
@json_option
def new(task: str, is_yaml: bool, defs: Path | None, as_json: bool) -> None:
    """Write the folder of a new TASK, with a prompt and three records: it runs as it is."""
    settings = load_settings()
    folder = defs.expanduser().resolve() if defs else settings.defs
    if folder == SHIPPED_DEFS:
        raise ConfigError(
            "the shipped tasks are a part of the package, and yours don't belong there: "
            f"name a folder, such as batch-assets new {task} --defs my_tasks, or set BATCH_ASSETS_DEFS"
        )
    check_new_task(folder / task)
    written = write_defs_package(folder) if defs else []
    written += write_task(folder / task, package=find_package(folder), is_yaml=is_yaml)
    is_set = folder == settings.defs and "BATCH_ASSETS_DEFS" in os.environ
    command = f"{'' if is_set else f'BATCH_ASSETS_DEFS={shorten(folder)} '}batch-assets run {task}"
    if as_json:
        print_json({"task": task, "written": [str(path) for path in written], "next": command})
        return
    for path in written:
        click.echo(f"wrote {shorten(path)}")
    click.echo(f"next:\n  {command}")
