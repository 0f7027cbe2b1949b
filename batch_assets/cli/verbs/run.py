"""`run`: bring a task up to date, in this process."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from batch_assets.cli.exit_codes import DONE, FAILING_CHECKS, STOPPED
from batch_assets.cli.launch import FailedCheck, Launcher, RunSummary
from batch_assets.cli.options import batches_option, json_option, retry_option, variants_option
from batch_assets.cli.printing import make_console, make_table, print_json, print_text, shorten
from batch_assets.cli.run_reports import find_reports
from batch_assets.cli.selection import select, warn_of_no_batch
from batch_assets.cli.session import open_session
from batch_assets.cli.terminal import ProgressView, quiet
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import ConfigError, SourceError
from batch_assets.core.tasks import Task
from batch_assets.dagster.dead_runs import end_dead_runs
from batch_assets.settings import load_settings

SHOWN_PARTITIONS = 30
SHOWN_CHECKS = 30
REPORT_COLUMNS = ("total", "ok", "invalid", "error", "reused", "rec/s", "p95 s")


@click.command()
@click.argument("task")
@batches_option
@variants_option
@retry_option
@json_option
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
            click.echo(f"the log is {shorten(log)}", err=True)
        raise
    warn_of_no_batch(*bound)
    if as_json:
        print_json(summary_document(summary, reports))
    else:
        print_summary(make_console(), summary, reports, _make_hints(task, bound[0], summary))
    if summary.passed_over:
        ctx.exit(STOPPED)
    is_failing = summary.held_back or any(c.severity == "ERROR" for c in summary.failed_checks)
    ctx.exit(FAILING_CHECKS if is_failing else DONE)


def print_summary(
    console: Console, summary: RunSummary, reports: Mapping[tuple[str, str], Mapping[str, Any]], hints: Sequence[str]
) -> None:
    """Print the run report, failing checks, and what to try next."""
    found = [(p, reports[p.batch, p.variant]) for p in summary.partitions if (p.batch, p.variant) in reports]
    shown = found[-SHOWN_PARTITIONS:]
    table = make_table(f"{summary.task}: run report", ("batch", "variant"), REPORT_COLUMNS)
    for p, figures in shown:
        table.add_row(p.batch, p.variant, *_report_cells(figures))
    if shown:
        console.print(table)
    if len(found) > len(shown):
        console.print(f"and {len(found) - len(shown)} partitions more; --json has them all", highlight=False)
    lines = _total_lines([figures for _, figures in found])
    lines += [
        f"passed over {need.partition}: run {need.leased_by} works on it ({need.lease_location})"
        for need in summary.passed_over
    ]
    if summary.held_back:
        lines.append(f"results held back: {summary.held_back}")
    checks = [f"check failed ({c.severity}): {_check_line(c)}" for c in summary.failed_checks]
    lines += checks[:SHOWN_CHECKS]
    if len(checks) > SHOWN_CHECKS:
        lines.append(f"and {len(checks) - SHOWN_CHECKS} failed checks more; --json has them all")
    lines.append(f"{summary.requests_sent} requests sent in {summary.seconds:.0f} s")
    for line in lines:
        print_text(console, line)
    if hints:
        console.print("next:\n" + "\n".join(f"  {hint}" for hint in hints), highlight=False, soft_wrap=True)


def _report_cells(f: Mapping[str, Any]) -> list[str]:
    counts = [str(f[name]) for name in ("total", "ok", "invalid", "error", "reused")]
    return [*counts, *("" if f[name] is None else f"{f[name]:.2f}" for name in ("records_per_s", "latency_p95_s"))]


def _total_lines(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sums over partitions, in words."""
    if not figures:
        return []
    names = ("total", "ok", "invalid", "error", "reused", "repeated", "superseded", "prompt_tokens",
             "completion_tokens", "unknown_usage", "seconds", "cost")  # fmt: skip
    t = {name: sum(f[name] for f in figures) for name in names}
    kinds: dict[str, int] = {}
    for f in figures:
        for kind, n in f["error_kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + n
    why = f" ({', '.join(f'{n} {k}' for k, n in sorted(kinds.items()))})" if kinds else ""
    unknown = f", of {t['unknown_usage']} attempts unknown" if t["unknown_usage"] else ""
    answered = sum(f.get("fallback_ok", 0) for f in figures)
    fallback = f"; {answered} of these answered by the fallback" if answered else ""
    cost = f", cost {t['cost']:.4f}" if t["cost"] else ""  # without a price it is unknown, not 0
    return [
        f"{t['total']} results: {t['ok']} ok, {t['invalid']} invalid, {t['error']} error{why}{fallback}",
        f"{t['reused']} reused, {t['repeated']} repeated, {t['superseded']} superseded; "
        f"tokens: {t['prompt_tokens']} in, {t['completion_tokens']} out{unknown}; "
        f"engine: {t['seconds']:.0f} s{cost}",
    ]


def _check_line(check: FailedCheck) -> str:
    figures = ", ".join(f"{k} {v}" for k, v in check.metadata.items() if v not in ("", None))
    return f"{check.asset}.{check.check} {check.partition}: {figures}"


def summary_document(summary: RunSummary, reports: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `run` did as plain data."""
    return {
        "task": summary.task,
        "requests_sent": summary.requests_sent,
        "fallback": {name: getattr(summary.fallback, name) for name in ("sent", "ok", "invalid", "error")},
        "seconds": round(summary.seconds, 3),
        "run_ids": summary.run_ids,
        "failed_checks": [
            {
                "asset": c.asset,
                "check": c.check,
                "partition": c.partition,
                "severity": c.severity,
                "metadata": c.metadata,
            }
            for c in summary.failed_checks
        ],
        "held_back": summary.held_back,
        "passed_over": [
            {"partition": str(n.partition), "leased_by": n.leased_by, "held_at": n.lease_location}
            for n in summary.passed_over
        ],
        "reports": [
            {"batch": p.batch, "variant": p.variant, **reports[p.batch, p.variant]}
            for p in summary.partitions
            if (p.batch, p.variant) in reports
        ],
    }


def _make_hints(task: str, bound: Task, summary: RunSummary) -> list[str]:
    command = shorten(Path(sys.argv[0]).absolute()) if "/" in sys.argv[0] else "batch-assets"
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
        f"{command} plan {task}   # after an edit of {shorten(first)}: what it makes stale",
        f"{command} up   # the web UI",
    ]
