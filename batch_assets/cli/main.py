"""The verbs of `batch-assets`.

Exit codes: 0 done, 1 finished with failing checks, 2 wrong use or input, 3 stopped by a fault.
"""

import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from dagster import DagsterExecutionInterruptedError
from rich.console import Console

from batch_assets.cli.doctor import examine, findings_document, is_well, print_findings
from batch_assets.cli.export import Exporter, print_export
from batch_assets.cli.export import summary_document as export_document
from batch_assets.cli.export_output import STDOUT, Format, choose_format, choose_output
from batch_assets.cli.launch import Launcher, RunSummary
from batch_assets.cli.run_reports import find_reports
from batch_assets.cli.selection import select
from batch_assets.cli.session import Session, open_session
from batch_assets.cli.show import (
    plan_document,
    print_json,
    print_plan,
    print_record,
    print_status,
    print_summary,
    summary_document,
)
from batch_assets.cli.terminal import ProgressView, make_visible, quiet
from batch_assets.cli.webui import serve
from batch_assets.core.attempts import RetryMode
from batch_assets.core.completions import make_storable
from batch_assets.core.errors import BatchAssetsError, ConfigError, NotReadyError, SourceError, StoreGone, unwrap
from batch_assets.core.tasks import Task
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.dagster.dead_runs import end_dead_runs
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.runs import COMMAND_LINE, LAUNCHED_BY_TAG, PLAN_JOB, TASK_TAG, enqueue, has_daemon
from batch_assets.engines.factory import build_engine
from batch_assets.pipeline.dispatch import InFlight, choose
from batch_assets.pipeline.plan import Selection, make_plan
from batch_assets.pipeline.platform import BuildEngine
from batch_assets.run.sync_bridge import end_runs
from batch_assets.settings import load_settings
from batch_assets.sources.base import Source
from batch_assets.sources.files import FileSource
from batch_assets.store.batches import load_batches
from batch_assets.store.database import Connection, find_fault, now
from batch_assets.store.failures import load_failing
from batch_assets.store.overview import load_fallback_status, load_record, load_status

DONE, FAILING_CHECKS, WRONG_USE, STOPPED = 0, 1, 2, 3

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
_batches = click.option(
    "--batch", "batches", multiple=True, help="Only this batch; may come more than once; '2026-11-*' (default: all)."
)
_variants = click.option(
    "--variant",
    "variants",
    multiple=True,
    help="Only this variant, <prompt_ver>--<model_id>; may come more than once; 'v2--*' (default: all).",
)
_retry = click.option(
    "--retry",
    type=click.Choice([m.value for m in RetryMode]),
    default=RetryMode.NONE.value,
    show_default=True,
    help="Ask again although nothing changed: error rows, failed (errors and invalid), or all.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run a language model over records, resumably: only what is missing or stale is asked.

    State lies under BATCH_ASSETS_HOME (default .batch_assets), the store at BATCH_ASSETS_DB_URL (default SQLite
    there), tasks in BATCH_ASSETS_DEFS (default: the shipped ones).

    Exit codes: 0 done, 1 finished with failing checks, 2 wrong use or input, 3 stopped by a fault.
    """


@cli.command()
@click.argument("task")
@_batches
@_variants
@_retry
@_json
@click.pass_context
def run(
    ctx: click.Context, task: str, batches: Sequence[str], variants: Sequence[str], retry: str, as_json: bool
) -> None:
    """Bring TASK up to date: freeze new batches, ask what is missing or stale, make the results."""
    settings = load_settings()
    log = settings.home / "logs" / f"run-{time.strftime('%Y%m%d-%H%M%S')}.log"
    try:
        with (
            quiet(log) as console,
            ProgressView(Console(quiet=True) if as_json else console) as view,
            open_session(view.observe) as session,
        ):
            bound = session.find_task(task)
            selection = select(session, *bound, batches, variants)
            for run_id in end_dead_runs(session.instance, session.platform.database):
                view.say(f"run {run_id} was killed; it is marked as failed, and its work goes on here")
            launcher = Launcher(session.project, session.platform, session.instance, view.say)
            summary = launcher.run(*bound, selection, RetryMode(retry))
            reports = find_reports(session.platform, bound[0], summary.run_ids)
    except (ConfigError, SourceError):
        raise
    except BaseException:
        if log.exists():
            click.echo(f"the log is {_shorten(log)}", err=True)
        raise
    _warn_of_no_batch(*bound)
    if as_json:
        print_json(summary_document(summary, reports))
    else:
        print_summary(_make_console(), summary, reports, _make_hints(task, bound[0], summary))
    if summary.passed_over:
        ctx.exit(STOPPED)
    is_failing = summary.held_back or any(c.severity == "ERROR" for c in summary.failed_checks)
    ctx.exit(FAILING_CHECKS if is_failing else DONE)


@cli.command()
@click.argument("task")
@_batches
@_variants
@_retry
@click.option("--launch", is_flag=True, help="Put it into the queue; the daemon, which `up` starts, does it.")
@click.option("--reset", is_flag=True, help="With --launch: also what failed too often to be launched again.")
@_json
def plan(
    task: str, batches: Sequence[str], variants: Sequence[str], retry: str, launch: bool, reset: bool, as_json: bool
) -> None:
    """Show what `run` would do for TASK: missing and stale, by partition and in records, and why. Asks nothing."""
    if reset and not launch:
        raise click.UsageError("--reset goes with --launch")
    with open_session() as session:
        bound = session.find_task(task)
        selection = select(session, *bound, batches, variants)
        sync_partitions(*bound, session.instance)
        recorded = load_recorded(session.instance, bound[0])
        made = make_plan(*bound, session.platform, recorded, selection=selection, retry=RetryMode(retry))
        with session.platform.database.read() as connection:
            failing = load_failing(connection, task)
        over_budget = choose(made, failing, InFlight(), now()).over_budget
        queued = None
        if launch and not made.is_empty:
            queued = _launch(session, task, selection, retry, is_resetting=reset)
        is_daemon_alive = has_daemon(session.instance)
    if as_json:
        print_json(plan_document(made, over_budget, queued))
        return
    _warn_of_no_batch(*bound)
    print_plan(_make_console(), made, over_budget)
    if queued:
        waits = "" if is_daemon_alive else "; no daemon is running here: it starts when `batch-assets up` does"
        click.echo(f"run {queued} of {PLAN_JOB} is in the queue{waits}")


@cli.command()
@click.argument("task", required=False)
@_json
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
        print_status(_make_console(), name, lines, new[name])


@cli.command()
@click.argument("task")
@click.argument("item_id")
@_json
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
        print_record(_make_console(), item_id, found)


@cli.command()
@click.argument("task")
@_batches
@_variants
@click.option(
    "--format",
    "form",
    type=click.Choice([f.value for f in Format]),
    help="Default: by the ending of --output, else parquet. In CSV, text that a spreadsheet would run gets a ' before.",
)
@click.option("--output", help="The file (default: TASK[--VARIANT].FORMAT here); - is stdout, for csv and jsonl.")
@click.option("--strict", is_flag=True, help="Write nothing, and exit with 1, if anything is missing or out of date.")
@_json
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
        print_json(export_document(task, chosen, done))
    else:
        print_export(task, done)


@cli.command()
@_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Show what is installed, which engine, store and instance would be used, what is wrong and what mends it.

    Changes nothing, makes nothing. Exits with 1 if anything is wrong.
    """
    found = examine()
    if as_json:
        print_json(findings_document(found))
    else:
        print_findings(Console(), found)
    ctx.exit(DONE if is_well(found) else FAILING_CHECKS)


@cli.command()
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


def main(build_engine: BuildEngine = build_engine) -> None:
    """Run the command line; turn every error into a plain message and an exit code."""
    warnings.simplefilter("ignore")
    try:
        sys.exit(cli.main(standalone_mode=False, obj=build_engine))
    except click.ClickException as e:
        e.show()
        sys.exit(WRONG_USE)
    except (ConfigError, SourceError) as e:
        click.echo(make_visible(f"error: {e}"), err=True)
        sys.exit(WRONG_USE)
    except BatchAssetsError as e:
        click.echo(make_visible(f"stopped: {e}\n{IS_GONE if isinstance(e, StoreGone) else GOES_ON}"), err=True)
        sys.exit(STOPPED)
    except (KeyboardInterrupt, click.Abort, DagsterExecutionInterruptedError):
        click.echo(f"stopped by a signal\n{GOES_ON}", err=True)
        _end_at_once_if_told_again()
        sys.exit(STOPPED)
    except Exception as e:  # noqa: BLE001 - the last edge: an exit code of 1 would mean that the run finished
        faults = [f for error in unwrap(e) if (f := find_fault(error))]
        if faults:  # in Dagster's own files: ours are told as StoreError
            click.echo(f"stopped: Dagster's own database: {faults[0]}\n{GOES_ON}", err=True)
            sys.exit(STOPPED)
        traceback.print_exc()
        click.echo(f"stopped by a fault that nobody foresaw: {type(e).__name__}: {e}\n{GOES_ON}", err=True)
        sys.exit(STOPPED)


def _end_at_once_if_told_again() -> None:
    """Flush what is under way; at a second signal end without that, and without waiting for threads as exits do."""
    try:
        has_ended = end_runs()
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        has_ended = False
    if not has_ended:
        sys.stdout.flush()
        os._exit(STOPPED)


GOES_ON = "what was done is kept; the same command goes on from there"
IS_GONE = "what was done is in the old file alone; put it back, or the same command begins anew"


def _launch(session: Session, task: str, selection: Selection, retry: str, *, is_resetting: bool) -> str:
    config = {
        "task": task,
        "batches": sorted(selection.batches or ()),
        "variants": sorted(selection.variants or ()),
        "retry": retry,
        "reset_failures": is_resetting,
    }
    job = session.project.definitions.resolve_job_def(PLAN_JOB)
    return enqueue(session.instance, job, config, {TASK_TAG: task, LAUNCHED_BY_TAG: COMMAND_LINE})


def _count_new(connection: Connection, task: str, source: Source) -> int:
    """Return how many batches the source offers that were never read: nobody has counted their records."""
    try:
        offered = {ref.batch for ref in source.list_batches()}
    except (ConfigError, SourceError):  # `plan` and `run` say what is wrong with it
        return 0
    return len(offered - set(load_batches(connection, task)))


def _warn_of_no_batch(task: Task, source: Source) -> None:
    """Say where a source offers nothing: a misspelt pattern looks like a day without records."""
    if not source.list_batches():
        words = f": no file fits {source.pattern} in {source.folder}" if isinstance(source, FileSource) else ""
        click.echo(f"warning: the source of task {task.name} offers no batch{words}", err=True)


def _make_hints(task: str, bound: Task, summary: RunSummary) -> list[str]:
    command = _shorten(Path(sys.argv[0]).absolute()) if "/" in sys.argv[0] else "batch-assets"
    if summary.passed_over:
        return [f"{command} run {task}   # once the other run has ended"]
    if summary.held_back:
        return [
            f"{command} status {task}   # why, with a record of each kind for `show`",
            f"{command} run {task} --retry failed   # asks what is not ok again",
        ]
    first = next(iter(bound.prompts.values())).path
    return [
        f"{command} status {task}",
        f"{command} plan {task}   # after an edit of {_shorten(first)}: what it makes stale",
        f"{command} up   # the web UI",
    ]


def _shorten(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _list_variants(task: Task) -> list[tuple[str, str]]:
    """Return a task's variants as (prompt_ver, model_id)."""
    return [(v.prompt.prompt_ver, v.model.model_id) for v in task.variants.values()]


def _make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


if __name__ == "__main__":
    main()
