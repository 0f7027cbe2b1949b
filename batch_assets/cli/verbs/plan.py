"""`plan`: what `run` would do, and `--launch`, which puts it into the queue."""

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from batch_assets.cli.options import batches_option, json_option, retry_option, variants_option
from batch_assets.cli.printing import make_console, make_table, print_json, print_text
from batch_assets.cli.selection import select, warn_of_no_batch
from batch_assets.cli.session import Session, open_session
from batch_assets.core.attempts import RetryMode
from batch_assets.core.steps import Step
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.runs import COMMAND_LINE, LAUNCHED_BY_TAG, PLAN_JOB, TASK_TAG, enqueue, has_daemon
from batch_assets.pipeline.dispatch import InFlight, choose
from batch_assets.pipeline.plan import Plan, Selection, make_plan
from batch_assets.store.database import now
from batch_assets.store.failures import Failing, load_failing

SHOWN_LINES = 5


@click.command()
@click.argument("task")
@batches_option
@variants_option
@retry_option
@click.option("--launch", is_flag=True, help="Put it into the queue; the daemon, which `up` starts, does it.")
@click.option("--reset", is_flag=True, help="With --launch: also what failed too often to be launched again.")
@json_option
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
    warn_of_no_batch(*bound)
    print_plan(make_console(), made, over_budget)
    if queued:
        waits = "" if is_daemon_alive else "; no daemon is running here: it starts when `batch-assets up` does"
        click.echo(f"run {queued} of {PLAN_JOB} is in the queue{waits}")


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


def plan_document(plan: Plan, held: Sequence[Failing], run_id: str | None) -> dict[str, Any]:
    """Return a plan as plain data, with what failed too often, and the run that was launched for it."""
    return {
        "task": plan.task.name,
        "batches_to_freeze": [r.batch for r in plan.unfrozen],
        "records_to_ask": plan.to_ask,
        "done": [str(p) for p in plan.done],
        "fallbacks_to_ask": [str(p) for p in plan.fallbacks],
        "results_to_make": [str(p) for p in plan.outdated],
        "set_aside": {batch: [list(line) for line in lines] for batch, lines in plan.set_aside.items()},
        "cleaned": {batch: [list(line) for line in lines] for batch, lines in plan.cleaned.items()},
        "failed_too_often": [
            {"step": f.step, "partition": f.partition, "failures": f.failures, "error": f.error, "run_id": f.run_id}
            for f in held
        ],
        "launched": run_id,
        "needs": [
            {
                "batch": n.partition.batch,
                "variant": n.partition.variant,
                "missing": n.missing,
                "stale": n.stale,
                "retried": n.retried,
                "rejudged": n.rejudged,
                "why": list(n.reasons),
                "leased_by": n.leased_by,
                "held_at": n.lease_location,
            }
            for n in plan.needs
        ],
    }


def print_plan(console: Console, plan: Plan, held: Sequence[Failing]) -> None:
    """Print what is missing and stale, and why; lines that would be set aside; what failed too often."""
    for found, words in ((plan.set_aside, "lines would be set aside"), (plan.cleaned, "values would be cleaned")):
        for batch, lines in found.items():
            shown = "; ".join(f"line {number}: {why}" for number, why in lines[:SHOWN_LINES])
            print_text(console, f"{batch}: {len(lines)} {words}: {shown}")
    for f in held:
        why = f.error or "killed, or it killed its process"
        words = f"failed {f.failures} times ({f.step}), and is launched no more but by `run` or `plan --launch --reset`"
        if f.step is Step.RESULTS:
            words = "results held back"
        print_text(console, f"{f.partition}: {words}: {why}")
    if plan.is_empty:
        console.print(f"{plan.task.name}: nothing to do; {len(plan.done)} output partitions are up to date")
        return
    if plan.needs:
        numbers = ("missing", "stale", "retry", "judge again")
        table = make_table(f"{plan.task.name}: what is missing or stale", ("batch", "variant"), numbers)
        table.add_column("why")
        for n in plan.needs:
            why = ", ".join(n.reasons) + (
                f" (run {n.leased_by} works on it: {n.lease_location})" if n.leased_by else ""
            )
            counts = (str(c or "") for c in (n.missing, n.stale, n.retried, n.rejudged))
            table.add_row(n.partition.batch, n.partition.variant, *counts, why)
        console.print(table)
    console.print(
        f"{len(plan.needs)} partitions to do, {len(plan.done)} up to date; {plan.to_ask} records to ask, "
        f"{len(plan.unfrozen)} batches to freeze, results of {len(plan.outdated)} more partitions to make"
        + (f", the fallback of {len(plan.fallbacks)} to ask" if plan.fallbacks else "")
    )
