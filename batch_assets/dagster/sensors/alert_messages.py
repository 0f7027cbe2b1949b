"""The words of alerts: figures, limits, partitions and links. A record's text never gets into one on purpose.

If an error of ours repeats what a server said, that may quote a record: what chat programs and mail read as markup
becomes plain there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import dagster as dg
from dagster import DagsterEvent, DagsterRun
from dagster._core.events import JobFailureData
from dagster_shared.error import SerializableErrorInfo

from batch_assets.core.errors import BatchAssetsError
from batch_assets.store.alerts import Alert, AlertKind

SHOWN = 20
SHOWN_PARTITIONS = 3
MAX_LINE, MAX_BODY = 400, 3500
"""In characters. Telegram takes 4096 in a message."""

PARTITION_TAG = "dagster/partition"
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
WILL_RETRY_TAG = "dagster/will_retry"
_LAUNCHED = "__launch_"
_MARKUP = str.maketrans("<>[]`", "\u2039\u203a()'")
"""What begins a tag, a link or code, in HTML, Markdown or Slack's own, and what it is written as."""
_NOUNS = {
    AlertKind.CHECK_FAILED: ("check failed", "checks failed"),
    AlertKind.CHECK_WARNED: ("check warns", "checks warn"),
    AlertKind.RUN_FAILED: ("run failed", "runs failed"),
}


def format_check(evaluation: dg.AssetCheckEvaluation, run_id: str, ui_url: str) -> Alert:
    """Return the alert of a check that didn't pass."""
    asset = evaluation.asset_key.to_user_string()
    is_warning = evaluation.severity is dg.AssetCheckSeverity.WARN
    where = f" for {evaluation.partition}" if evaluation.partition else ""
    figures = _format_figures(evaluation.metadata)
    verb = "warns" if is_warning else "failed"
    return Alert(
        key="|".join((run_id, asset, evaluation.check_name, evaluation.partition or "")),
        kind=AlertKind.CHECK_WARNED if is_warning else AlertKind.CHECK_FAILED,
        subject=evaluation.asset_key.path[0],
        body=_shorten(f"{asset} {evaluation.check_name} {verb}{where}{': ' if figures else ''}{figures}."),
        link=_link(ui_url, run_id),
        run_id=run_id,
    )


def format_failed_run(run: DagsterRun, failure: DagsterEvent | None, ui_url: str) -> Alert:
    """Return the alert of a failed run. `failure` is Dagster's event that says so."""
    subject = _find_task(run, _find_step(failure))
    partitions = _find_partitions(run)
    where = f" for {partitions}" if partitions else ""
    job = "" if run.job_name.startswith("__") else f" ({run.job_name})"
    retried = " Dagster will retry it." if run.tags.get(WILL_RETRY_TAG) == "true" else ""
    error = _shorten(_format_error(failure).rstrip("."), MAX_LINE // 2)
    return Alert(
        key=run.run_id,
        kind=AlertKind.RUN_FAILED,
        subject=subject,
        body=_shorten(f"run of {subject}{job} failed{where}: {error}.{retried}"),
        link=_link(ui_url, run.run_id),
        run_id=run.run_id,
    )


def compose(kind: AlertKind, told: Sequence[Alert]) -> tuple[str, str]:
    """Return title and body of the one message that tells all of these, which are of one kind."""
    one, many = _NOUNS[kind]
    subjects = ", ".join(dict.fromkeys(a.subject for a in told))
    title = _shorten(f"{one}: {subjects}" if len(told) == 1 else f"{len(told)} {many}: {subjects}", 200)
    lines: list[str] = []
    room = MAX_BODY
    for alert in told[:SHOWN]:
        line = f"{alert.body} {alert.link}"
        room -= len(line) + 1
        if lines and room < 0:
            break
        lines.append(line)
    if len(lines) < len(told):
        lines.append(f"and {len(told) - len(lines)} more")
    return title, "\n".join(lines)


def _format_figures(metadata: Any) -> str:
    """Return the figures of a check. Text, tables and the like may quote records, so they are left out."""
    scalars = (dg.IntMetadataValue, dg.FloatMetadataValue, dg.BoolMetadataValue)
    found = {k: _format_number(v.value) for k, v in metadata.items() if isinstance(v, scalars) and v.value is not None}
    if "share" in found and "limit" in found:
        share, limit = metadata["share"].value, metadata["limit"].value
        records = f" ({found['records']} records)" if "records" in found else ""
        return f"{found['share']} {'over' if share > limit else 'against'} the limit {found['limit']}{records}"
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _format_number(value: float | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _find_task(run: DagsterRun, failed_step: str) -> str:
    """Return the task, or the tasks, of a run: of its assets, or of the job that the planner launched."""
    selected = {key.path[0] for key in run.asset_selection or ()}
    selected |= {key.asset_key.path[0] for key in run.asset_check_selection or ()}
    if selected:
        return ", ".join(sorted(selected))
    if run.job_name.startswith("__"):  # Dagster's own job of all assets, whose steps are named <task>__<asset>
        return failed_step.rpartition("__")[0] or "assets"
    return run.job_name.partition(_LAUNCHED)[0]


def _find_step(failure: DagsterEvent | None) -> str:
    data = failure.event_specific_data if failure else None
    step = data.first_step_failure_event if isinstance(data, JobFailureData) else None
    return (step.step_key if step else None) or ""


def _find_partitions(run: DagsterRun) -> str:
    if PARTITION_TAG in run.tags:
        return run.tags[PARTITION_TAG]
    if RANGE_TAGS[0] in run.tags:
        return " to ".join(run.tags.get(tag, "?") for tag in RANGE_TAGS)
    listed = _find_listed(run.run_config)
    more = f" and {len(listed) - SHOWN_PARTITIONS} more" if len(listed) > SHOWN_PARTITIONS else ""
    return ", ".join(listed[:SHOWN_PARTITIONS]) + more


def _find_listed(run_config: Any) -> list[str]:
    """Return the partitions that the config of a launch job lists."""
    listed: list[str] = []
    for op in run_config.get("ops", {}).values():
        config: Any = cast("dict[str, Any]", op).get("config") if isinstance(op, dict) else None
        if isinstance(config, dict):
            fields = cast("dict[str, Any]", config)
            listed += [*map(str, fields.get("batches") or ()), *map(str, fields.get("partitions") or ())]
    return listed


def _format_error(failure: DagsterEvent | None) -> str:
    """Return what failed: the message of an error of ours, else the name of the error's class alone.

    Our messages quote no record; those of others may.
    """
    if failure is None:
        return "no reason recorded"
    data = failure.event_specific_data
    step = data.first_step_failure_event if isinstance(data, JobFailureData) else None
    error = step.step_failure_data.error if step else data.error if isinstance(data, JobFailureData) else None
    if error is None:
        return (failure.message or "no reason recorded").strip().splitlines()[0].translate(_MARKUP)
    chain = list(_unwrap(error))
    ours = {c.__name__ for c in _subclasses(BatchAssetsError)}
    where = f" in step {step.step_key}" if step and step.step_key else ""
    for e in chain:
        if e.cls_name in ours:
            return f"{e.cls_name}: {_first_line(e)}"
    for e in chain:
        if not (e.cls_name or "").startswith("Dagster"):  # which wraps what a step raised
            return f"{e.cls_name or 'an error'}{where}"
    return f"{chain[-1].cls_name}: {_first_line(chain[-1])}"


def _unwrap(error: SerializableErrorInfo | None) -> Iterator[SerializableErrorInfo]:
    while error is not None:
        yield error
        error = error.cause or error.context


def _first_line(error: SerializableErrorInfo) -> str:
    line = error.message.strip().splitlines()[0] if error.message.strip() else ""
    prefix, found, rest = line.partition(": ")
    words = rest if found and prefix.endswith(error.cls_name or " ") else line
    return words.translate(_MARKUP)


def _subclasses(cls: type[BatchAssetsError]) -> Iterator[type[BatchAssetsError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _subclasses(child)


def _link(ui_url: str, run_id: str) -> str:
    return f"{ui_url}/runs/{run_id}"


def _shorten(text: str, limit: int = MAX_LINE) -> str:
    """Return the text in one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
