"""Options that several verbs have."""

import click

from batch_assets.core.attempts import RetryMode

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
batches_option = click.option(
    "--batch", "batches", multiple=True, help="Only this batch; may come more than once; '2026-11-*' (default: all)."
)
variants_option = click.option(
    "--variant",
    "variants",
    multiple=True,
    help="Only this variant, <prompt_ver>--<model_id>; may come more than once; 'v2--*' (default: all).",
)
retry_option = click.option(
    "--retry",
    type=click.Choice([m.value for m in RetryMode]),
    default=RetryMode.NONE.value,
    show_default=True,
    help="Ask again although nothing changed: error rows, failed (errors and invalid), or all.",
)
