"""Every record of a batch asked of a variant, each with one row in the store. Makes llm_outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from batch_assets.core.asset_names import LLM_OUTPUTS
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError, ConfigError, EngineDead, PartitionLeased
from batch_assets.core.models import ModelEntry
from batch_assets.core.outcomes import MadePartition, Table
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.pipeline.checks.llm_outputs import CheckedOutput
from batch_assets.pipeline.checks.of_task import list_checks
from batch_assets.pipeline.partition_inputs import build_inputs
from batch_assets.pipeline.platform import Platform
from batch_assets.reports.run_report import RunReport, make_report
from batch_assets.run.engine_restarts import run_with_restarts
from batch_assets.run.loop import Observer, Runner, RunnerOptions
from batch_assets.run.partition_run import PartitionInputs, PartitionOutcome, Progress, Tally
from batch_assets.run.progress import ProgressLog, count_all
from batch_assets.store.batches import load_batches
from batch_assets.store.figures import load_failures, load_figures

Log = Callable[[str], object]
SHOWN_FAILURES = 10
PLOTTED = frozenset(
    {
        "ok", "invalid", "error", "error_share", "invalid_share", "reused", "superseded", "prompt_tokens",
        "completion_tokens", "seconds", "records_per_s", "tokens_per_s", "latency_p95_s", "cost",
    }
)  # fmt: skip
"""Figures of the run report that are on a partition of llm_outputs too, where the web UI plots them."""


def parse_retry(word: str) -> RetryMode:
    """Read a retry mode. Raises ConfigError, which names the ones there are."""
    try:
        return RetryMode(word)
    except ValueError as e:
        raise ConfigError(f"retry: {word!r}: use one of {', '.join(m.value for m in RetryMode)}") from e


def ask_partitions(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    *,
    run_id: str,
    retry: RetryMode = RetryMode.NONE,
    total: int = 0,
    log: Log,
    taken_over: Sequence[PartitionKey] = (),
) -> Iterator[MadePartition]:
    """Bring output partitions up to date, model by model, one engine start for each; yield each as it is finished.

    `total` is the number of records to do, for the progress; 0 means as many as the batches have. Raises ConfigError
    if a batch was never frozen, and PartitionLeased at the end if another run held some. Partitions that are taken over
    from another run raise neither: that run will.
    """
    unknown = [str(p) for p in partitions if p.variant not in task.variants]
    if unknown:
        raise ConfigError(f"task {task.name}: no variant for {', '.join(unknown)}; it has {', '.join(task.variants)}")
    leased: list[str] = []
    ready = [p for p in taken_over if p.variant in task.variants and build_inputs(task, platform, p) is not None]
    for model in task.models.values():
        mine = [p for p in (*partitions, *ready) if task.variants[p.variant].model.model_id == model.model_id]
        if not mine:
            continue
        outcomes = ask_model(
            platform, model, (_require_inputs(task, platform, p) for p in mine),
            run_id=run_id, retry=retry, total=total or _count_records(platform, task, mine),
            observer=watch(platform, log, counts_all=not total), log=log,
        )  # fmt: skip
        for outcome in outcomes:
            if outcome.leased_by is not None:
                if PartitionKey(outcome.inputs.batch, outcome.inputs.variant.key) not in ready:
                    leased.append(outcome.leased_by)
            else:
                yield report_outcome(platform, outcome, model)
    if leased:
        raise PartitionLeased("; ".join(leased))


def ask_model(
    platform: Platform,
    model: ModelEntry,
    all_inputs: Iterable[PartitionInputs],
    *,
    run_id: str,
    retry: RetryMode,
    total: int,
    observer: Observer,
    log: Log,
) -> Iterator[PartitionOutcome]:
    """Bring partitions of one model up to date with one engine start; yield each when it is finished.

    What was asked is added to `platform.asked`, at an error too. Raises EngineDead with the model's name.
    """
    engine = platform.build_engine(model, platform.settings.cache_dir)
    options = RunnerOptions(max_in_flight=model.max_in_flight, outage_s=model.outage_s)
    asked = Tally()

    def make_runner(observe: Observer, tally: Tally) -> Runner:
        return Runner(
            platform.database, engine, options,
            run_id=run_id, retry=retry, total=total, tally=tally, observer=observe,
        )  # fmt: skip

    try:
        yield from run_with_restarts(
            make_runner, all_inputs, is_restartable=engine.is_restartable, tally=asked, observer=observer, log=log
        )
    except EngineDead as e:  # a task has several models, its fallback among them
        raise EngineDead(f"model {model.model_id}: {e}", took_requests_down=e.took_requests_down) from e
    finally:
        platform.asked.add(asked)


def _require_inputs(task: Task, platform: Platform, partition: PartitionKey) -> PartitionInputs:
    inputs = build_inputs(task, platform, partition)
    if inputs is None:
        raise ConfigError(
            f"{task.name}: batch {partition.batch} is not frozen: materialize source_records for it first"
        )
    return inputs


def report_outcome(platform: Platform, outcome: PartitionOutcome, model: ModelEntry) -> MadePartition:
    """Return a finished partition with its figures and what its checks found."""
    inputs, tally = outcome.inputs, outcome.tally
    if outcome.state is None:
        raise BatchAssetsError(f"{inputs} was not finished")
    report = compute_report(platform, inputs, model)
    with platform.database.read() as connection:
        failures = load_failures(connection, inputs.key, inputs.batch, SHOWN_FAILURES)
    subject = CheckedOutput(platform=platform, inputs=inputs, report=report)
    return MadePartition(
        asset=LLM_OUTPUTS,
        partition=str(inputs),
        data_version=outcome.state.data_version,
        figures={
            "summary": f"{tally.sent} sent, {tally.already_done} already done, {tally.reused} reused",
            "sent": tally.sent,
            "already_done": tally.already_done,
            "records": report.total,
            **{name: value for name, value in report.numbers().items() if name in PLOTTED},
            "first_failures": tabulate_failures(failures),
        },
        checks=[check.examine(subject) for check in list_checks(inputs.task, LLM_OUTPUTS)],
    )


def compute_report(platform: Platform, inputs: PartitionInputs, model: ModelEntry) -> RunReport:
    """Compute the run report of a partition from the store."""
    with platform.database.read() as connection:
        raw = load_figures(connection, inputs.key, inputs.batch)
    return make_report(
        ok=raw.ok,
        invalid=raw.invalid,
        error=raw.error,
        reused=raw.reused,
        superseded=raw.superseded,
        error_kinds=dict(raw.error_kinds),
        attempts=raw.attempts,
        asked_records=raw.asked_records,
        prompt_tokens=raw.prompt_tokens,
        completion_tokens=raw.completion_tokens,
        cached_tokens=raw.cached_tokens,
        unknown_usage=raw.unknown_usage,
        engine_s=raw.engine_s,
        latencies_s=raw.latencies_s,
        price_per_gpu_hour=model.price_per_gpu_hour,
    )


def tabulate_failures(failures: Sequence[tuple[str, str, str, str]]) -> Table:
    """Return failures (item_id, status, reason, error) as a table."""
    return Table(columns=("item_id", "status", "reason", "error"), rows=failures)


def _count_records(platform: Platform, task: Task, partitions: Sequence[PartitionKey]) -> int:
    """Return how many records partitions have, those that need nothing among them."""
    with platform.database.read() as connection:
        frozen = load_batches(connection, task.name)
    return sum(frozen[p.batch].records for p in partitions if p.batch in frozen)


def watch(platform: Platform, log: Log, *, counts_all: bool) -> Observer:
    """Return an observer that writes into the run's log, and passes on to the platform's observer if there is one."""
    lines = ProgressLog(log)

    def observe(progress: Progress) -> None:
        found = count_all(progress) if counts_all else progress
        lines.observe(found)
        if platform.observer is not None:
            platform.observer(found)

    return observe
