"""Tables and JSON for people and scripts."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batch_assets.cli.launch import FailedCheck, RunSummary
from batch_assets.cli.terminal import make_visible
from batch_assets.core.steps import Step
from batch_assets.pipeline.plan import Plan
from batch_assets.store.failures import Failing
from batch_assets.store.overview import VariantStatus


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_as_json))


def _as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


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
            _print_text(console, f"{batch}: {len(lines)} {words}: {shown}")
    for f in held:
        why = f.error or "killed, or it killed its process"
        words = f"failed {f.failures} times ({f.step}), and is launched no more but by `run` or `plan --launch --reset`"
        if f.step is Step.RESULTS:
            words = "results held back"
        _print_text(console, f"{f.partition}: {words}: {why}")
    if plan.is_empty:
        console.print(f"{plan.task.name}: nothing to do; {len(plan.done)} output partitions are up to date")
        return
    if plan.needs:
        numbers = ("missing", "stale", "retry", "judge again")
        table = _make_table(f"{plan.task.name}: what is missing or stale", ("batch", "variant"), numbers)
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


def print_summary(
    console: Console, summary: RunSummary, reports: Mapping[tuple[str, str], Mapping[str, Any]], hints: Sequence[str]
) -> None:
    """Print the run report, failing checks, and what to try next."""
    found = [(p, reports[p.batch, p.variant]) for p in summary.partitions if (p.batch, p.variant) in reports]
    shown = found[-SHOWN_PARTITIONS:]
    table = _make_table(f"{summary.task}: run report", ("batch", "variant"), REPORT_COLUMNS)
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
        _print_text(console, line)
    if hints:
        console.print("next:\n" + "\n".join(f"  {hint}" for hint in hints), highlight=False, soft_wrap=True)


SHOWN_PARTITIONS = 30
SHOWN_CHECKS = 30
SHOWN_LINES = 5
REPORT_COLUMNS = ("total", "ok", "invalid", "error", "reused", "rec/s", "p95 s")


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


def _make_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


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


def print_status(console: Console, task: str, lines: Sequence[VariantStatus], new_batches: int) -> None:
    """Print a task at a glance; the records of new batches, which were never read, are in no figure."""
    if not lines:
        console.print(f"{task}: no results yet")
        return
    table = _make_table(task, ("prompt_ver", "model_id"), ("ok", "invalid", "error", "pending"))
    for line in lines:
        counts = (str(n) for n in (line.ok, line.invalid, line.error, line.pending))
        marked = f"{line.model_id} (fallback)" if line.is_fallback else line.model_id
        table.add_row(line.prompt_ver, marked, *counts)
    console.print(table)
    if new_batches:
        console.print(f"not counted: {new_batches} new batches, see batch-assets plan {task}", highlight=False)
    if not any(line.reasons for line in lines):
        return
    why = _make_table("why, with the first record of each kind", ("prompt_ver", "model_id", "reason"), ("records",))
    why.add_column("such as", overflow="fold")
    for line in lines:
        for reason, found in line.reasons.items():
            why.add_row(line.prompt_ver, line.model_id, reason, str(found.records), escape(found.first))
    console.print(why)


def print_record(console: Console, item_id: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print all rows and attempts of one record."""
    pending = [] if found["results"] else [f"{item_id} in batch {b['batch']}: pending" for b in found["batches"]]
    for line in [*pending, *_row_lines(item_id, found["results"]), *_attempt_lines(found["attempts"])]:
        _print_text(console, line)


def _print_text(console: Console, text: str) -> None:
    """Print what records, answers or servers may have a part in: no markup, no commands for the terminal.

    In a file a line stays one, however long.
    """
    console.print(make_visible(text), highlight=False, markup=False, soft_wrap=True)


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


_ENDS = {
    None: "no end: in flight, or its process died",
    "released": "released: its run stopped before it was answered",
}


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
