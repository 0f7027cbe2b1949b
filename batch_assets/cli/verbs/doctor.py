"""`doctor`: what is installed, what would be used, what is wrong and what mends it."""

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from batch_assets.cli.examination import examine, is_well
from batch_assets.cli.exit_codes import DONE, FAILING_CHECKS
from batch_assets.cli.options import json_option
from batch_assets.cli.printing import print_json
from batch_assets.cli.probes.findings import Finding, Level
from batch_assets.cli.visible import make_visible

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.WRONG: "bold red"}


@click.command()
@json_option
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


def findings_document(found: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as plain data."""
    lines = [{"level": f.level.value, "about": f.about, "says": f.says, "mend": f.mend} for f in found]
    return {"is_well": is_well(found), "findings": lines}


def print_findings(console: Console, found: Sequence[Finding]) -> None:
    """Print a line for each finding, and below it the command that mends it."""
    width = max((len(f.about) for f in found), default=0)
    for f in found:
        level = Text(f"{f.level.value:<6}", _STYLES[f.level])
        console.print(level + Text(make_visible(f"{f.about:<{width}}  {f.says}")), soft_wrap=True)
        if f.mend:
            console.print(Text(f"{'':<6}{'':<{width}}  → {f.mend}", "cyan"), soft_wrap=True)
    counts = {level: sum(f.level is level for f in found) for level in Level}
    console.print(f"{counts[Level.WRONG]} wrong, {counts[Level.WARN]} warnings, {counts[Level.OK]} ok", highlight=False)
