"""The command `batch-assets`: the group of its verbs, and what each error says and exits with.

The verbs are in `verbs/`, a file each, and are found there. A verb is imported when it runs: `--help` loads no Dagster.
"""

import ast
import os
import pkgutil
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batch_assets.cli import verbs
from batch_assets.cli.exit_codes import STOPPED, WRONG_USE
from batch_assets.cli.visible import make_visible
from batch_assets.core.errors import BatchAssetsError, ConfigError, SourceError, StoreGone, unwrap

if TYPE_CHECKING:
    from batch_assets.pipeline.platform import BuildEngine

GOES_ON = "what was done is kept; the same command goes on from there"
IS_GONE = "what was done is in the old file alone; put it back, or the same command begins anew"


class VerbGroup(click.Group):
    """Finds the verbs by the names of their files."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all verbs."""
        return sorted(module.name for module in pkgutil.iter_modules(verbs.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return getattr(import_module(f"{verbs.__name__}.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with the first sentence of their help, which is read from their files: nothing is imported."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        lines = [(name, click.Command(name, help=_read_help(name)).get_short_help_str(limit)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


def _read_help(verb: str) -> str:
    path = Path(verbs.__path__[0]) / f"{verb}.py"
    functions = (n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef))
    return next((ast.get_docstring(f) or "" for f in functions if f.name == verb), "")


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run a language model over records, resumably: only what is missing or stale is asked.

    State lies under BATCH_ASSETS_HOME (default .batch_assets), the store at BATCH_ASSETS_DB_URL (default SQLite
    there), tasks in BATCH_ASSETS_DEFS (default: the shipped ones).

    Exit codes: 0 done, 1 finished with failing checks, 2 wrong use or input, 3 stopped by a fault.
    """


def main(build_engine: "BuildEngine | None" = None) -> None:
    """Run the command line; turn every error into a plain message and an exit code."""
    warnings.simplefilter("ignore")
    try:
        code = cli.main(standalone_mode=False, obj=build_engine)
    except click.ClickException as e:
        e.show()
        sys.exit(WRONG_USE)
    except (ConfigError, SourceError) as e:
        click.echo(make_visible(f"error: {e}"), err=True)
        sys.exit(WRONG_USE)
    except BatchAssetsError as e:
        click.echo(make_visible(f"stopped: {e}\n{IS_GONE if isinstance(e, StoreGone) else GOES_ON}"), err=True)
        sys.exit(STOPPED)
    except _list_interrupts():
        click.echo(f"stopped by a signal\n{GOES_ON}", err=True)
        _end_at_once_if_told_again()
        sys.exit(STOPPED)
    except Exception as e:  # noqa: BLE001 - the last edge: an exit code of 1 would mean that the run finished
        find_fault = import_module("batch_assets.store.database").find_fault
        faults = [f for error in unwrap(e) if (f := find_fault(error))]
        if faults:  # in Dagster's own files: ours are told as StoreError
            click.echo(f"stopped: Dagster's own database: {faults[0]}\n{GOES_ON}", err=True)
            sys.exit(STOPPED)
        traceback.print_exc()
        click.echo(f"stopped by a fault that nobody foresaw: {type(e).__name__}: {e}\n{GOES_ON}", err=True)
        sys.exit(STOPPED)
    sys.exit(code)


def _list_interrupts() -> tuple[type[BaseException], ...]:
    """Return what a signal raises. Dagster has one of its own, which only a verb that has loaded Dagster can meet."""
    dagster = sys.modules.get("dagster")
    return (KeyboardInterrupt, click.Abort, *((dagster.DagsterExecutionInterruptedError,) if dagster else ()))


def _end_at_once_if_told_again() -> None:
    """Flush what is under way; at a second signal end without that, and without waiting for threads as exits do."""
    bridge = sys.modules.get("batch_assets.run.sync_bridge")  # without it no run was begun
    try:
        has_ended = bridge is None or bridge.end_runs()
    except _list_interrupts():
        has_ended = False
    if not has_ended:
        sys.stdout.flush()
        os._exit(STOPPED)


if __name__ == "__main__":
    main()
