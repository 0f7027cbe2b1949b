"""`up`: the web UI and its daemon, in the foreground."""

import sys

import click

from batch_assets.cli.session import open_session
from batch_assets.cli.webui import serve
from batch_assets.dagster.dead_runs import end_dead_runs
from batch_assets.dagster.partitions import sync_partitions


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port of the web UI, on 127.0.0.1."
)
def up(port: int) -> None:
    """Start the web UI and its daemon on 127.0.0.1, in the foreground; Ctrl-C stops both.

    One that dies is started again, five times in ten minutes at most; while PostgreSQL is away, once it answers.
    """
    with open_session() as session:
        for bound in session.project.tasks.values():
            sync_partitions(*bound, session.instance)
        end_dead_runs(session.instance, session.platform.database)
        settings = session.settings
    sys.exit(serve(settings, port))
