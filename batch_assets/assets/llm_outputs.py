"""llm_outputs [batch × variant]: every record of a batch asked of a variant, each with one row in the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from batch_assets.asset_keys import LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS, asset_key
from batch_assets.assets.backfills import make_for_backfill
from batch_assets.assets.events import Finding, Stamp
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError, ConfigError, EngineDead, PartitionLeased
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.engines.factory import build_engine
from batch_assets.launches import PLAN_JOB
from batch_assets.partitions import (
    BATCH,
    VARIANT,
    PartitionKey,
    output_partitions,
    to_single_dimension,
)
from batch_assets.reports.run_report import RunReport, make_report
from batch_assets.resources import PLATFORM, Platform
from batch_assets.runner.progress import ProgressLog, count_all
from batch_assets.runner.restart import drive_with_restarts
from batch_assets.runner.run import Observer, Runner, RunnerOptions
from batch_assets.runner.work import PartitionOutcome, PartitionWork, Progress
from batch_assets.store.batches import load_batches
from batch_assets.store.figures import load_failures, load_figures
from batch_assets.works import build_work

OutputCheck = Callable[[Platform, PartitionWork, RunReport], Finding]
SHOWN_FAILURES = 10
PLOTTED = frozenset(
    {
        "ok", "invalid", "error", "error_share", "invalid_share", "reused", "superseded", "prompt_tokens",
        "completion_tokens", "seconds", "records_per_s", "tokens_per_s", "latency_p95_s", "cost",
    }
)  # fmt: skip
"""Figures of the run report that stand on a partition of llm_outputs too, where the web UI plots them."""


class OutputsConfig(dg.Config):
    """What to ask again beside the missing and the stale: none, errors, failed (errors and invalid) or all."""

    retry: str = "none"

    def retry_mode(self) -> RetryMode:
        """Return the mode. ConfigError for a word that is none."""
        return parse_retry(self.retry)


def parse_retry(word: str) -> RetryMode:
    """Read a retry mode. ConfigError names the ones there are."""
    try:
        return RetryMode(word)
    except ValueError as e:
        raise ConfigError(f"retry: {word!r}: use one of {', '.join(m.value for m in RetryMode)}") from e


def build_llm_outputs(
    task: Task, specs: Sequence[dg.AssetCheckSpec], checks: Sequence[OutputCheck]
) -> dg.AssetsDefinition:
    """Build the asset of one task."""
    engines = sorted({model.engine for model in task.models.values()})[:2]  # Dagster shows three kinds at most

    @dg.asset(
        key=asset_key(task, LLM_OUTPUTS),
        partitions_def=output_partitions(task.name),
        deps=[
            dg.AssetDep(asset_key(task, SOURCE_RECORDS), partition_mapping=to_single_dimension(BATCH)),
            dg.AssetDep(asset_key(task, VARIANT_SPECS), partition_mapping=to_single_dimension(VARIANT)),
        ],
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=specs,
        output_required=False,
        pool=next(iter(task.models.values())).pool,
        op_tags={k: v for model in task.models.values() for k, v in model.op_tags.items()},
        group_name=task.name,
        owners=list(task.owners),
        kinds={*engines, "sql"},
        description=_describe(task),
        required_resource_keys={PLATFORM},
    )
    def llm_outputs(context: dg.AssetExecutionContext, config: OutputsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with outlast_lost_store(context, platform):

            def make(own: Sequence[PartitionKey], theirs: Sequence[PartitionKey]) -> Iterator[Stamp]:
                return produce(
                    task, platform, own, checks,
                    run_id=context.run.run_id, retry=config.retry_mode(), total=0, log=context.log.info,
                    taken_over=theirs,
                )  # fmt: skip

            yield from make_for_backfill(context, task, make)

    return llm_outputs


def _describe(task: Task) -> str:
    about = f"\n\nThe task: {task.description}" if task.description else ""
    return (
        "One row per record and variant, in `llm_batch_results`: the model's answer, or the reason why there is none. "
        f"Models: {', '.join(f'`{m}`' for m in task.models)}.{about}\n\n"
        f"The job `{PLAN_JOB}` makes whatever is missing or stale; so do the sensors `{task.name}__new_data` and "
        f"`{task.name}__missing_and_stale` and the schedule `{task.name}__nightly`, once they are turned on."
    )


def produce(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    checks: Sequence[OutputCheck],
    *,
    run_id: str,
    retry: RetryMode,
    total: int,
    log: Callable[[str], object],
    taken_over: Sequence[PartitionKey] = (),
) -> Iterator[Stamp]:
    """Bring output partitions up to date, model by model, one engine start for each; yield each as it is finished.

    Raises ConfigError where a batch was never frozen, and PartitionLeased at the end where another run held some. Those
    taken over from another run are passed over instead: that run will tell.
    """
    unknown = [str(p) for p in partitions if p.variant not in task.variants]
    if unknown:
        raise ConfigError(f"task {task.name}: no variant for {', '.join(unknown)}; it has {', '.join(task.variants)}")
    leased: list[str] = []
    ready = [p for p in taken_over if p.variant in task.variants and build_work(task, platform, p) is not None]
    for model in task.models.values():
        mine = [p for p in (*partitions, *ready) if task.variants[p.variant].model.model_id == model.model_id]
        if not mine:
            continue
        outcomes = ask(
            platform, model, (_find_work(task, platform, p) for p in mine),
            run_id=run_id, retry=retry, total=total or _count_records(platform, task, mine),
            observer=watch(platform, log, counts_all=not total), log=log,
        )  # fmt: skip
        for outcome in outcomes:
            if outcome.leased_by is not None:
                if PartitionKey(outcome.work.batch, outcome.work.variant.key) not in ready:
                    leased.append(outcome.leased_by)
            else:
                yield stamp_outcome(platform, outcome, model, checks)
    if leased:
        raise PartitionLeased("; ".join(leased))


def ask(
    platform: Platform,
    model: ModelEntry,
    works: Iterable[PartitionWork],
    *,
    run_id: str,
    retry: RetryMode,
    total: int,
    observer: Observer,
    log: Callable[[str], object],
) -> Iterator[PartitionOutcome]:
    """Bring partitions of one model up to date with one engine start; yield each when it is finished.

    Raises EngineDead with the model's name.
    """
    engine = build_engine(model, platform.settings.cache_dir)
    options = RunnerOptions(max_in_flight=model.max_in_flight, outage_s=model.outage_s)

    def make_runner(observe: Observer) -> Runner:
        return Runner(platform.database, engine, options, run_id=run_id, retry=retry, total=total, observer=observe)

    try:
        yield from drive_with_restarts(
            make_runner, works, is_restartable=engine.is_restartable, observer=observer, log=log
        )
    except EngineDead as e:  # a task has several models, its fallback among them
        raise EngineDead(f"model {model.model_id}: {e}", took_requests_down=e.took_requests_down) from e


def _find_work(task: Task, platform: Platform, partition: PartitionKey) -> PartitionWork:
    work = build_work(task, platform, partition)
    if work is None:
        raise ConfigError(
            f"{task.name}: batch {partition.batch} is not frozen: materialize source_records for it first"
        )
    return work


def stamp_outcome(
    platform: Platform, outcome: PartitionOutcome, model: ModelEntry, checks: Sequence[OutputCheck]
) -> Stamp:
    """Return a finished partition with its figures and what its checks found."""
    work, tally = outcome.work, outcome.tally
    if outcome.state is None:
        raise BatchAssetsError(f"{work.batch}|{work.variant.key} was not finished")
    report = report_on(platform, work, model)
    with platform.database.read() as connection:
        failures = load_failures(connection, work.key, work.batch, SHOWN_FAILURES)
    return Stamp(
        asset=LLM_OUTPUTS,
        partition=str(PartitionKey(work.batch, work.variant.key)),
        data_version=outcome.state.data_version,
        metadata={
            "summary": f"{tally.sent} sent, {tally.already_done} already done, {tally.reused} reused",
            "sent": tally.sent,
            "already_done": tally.already_done,
            "records": report.total,
            **{name: value for name, value in report.numbers().items() if name in PLOTTED},
            "first_failures": tabulate_failures(failures),
        },
        findings=[check(platform, work, report) for check in checks],
    )


def report_on(platform: Platform, work: PartitionWork, model: ModelEntry) -> RunReport:
    """Compute the run report of a partition from the store."""
    with platform.database.read() as connection:
        raw = load_figures(connection, work.key, work.batch)
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


def tabulate_failures(failures: Sequence[tuple[str, str, str, str]]) -> dg.TableMetadataValue:
    """Return failures (item_id, status, reason, error) as a table; the web UI shows its cells as plain text."""
    columns = ("item_id", "status", "reason", "error")
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, failure, strict=True))) for failure in failures],
        schema=dg.TableSchema(columns=[dg.TableColumn(name) for name in columns]),
    )


def _count_records(platform: Platform, task: Task, partitions: Sequence[PartitionKey]) -> int:
    """Return how many records partitions have, those that need nothing among them."""
    with platform.database.read() as connection:
        frozen = load_batches(connection, task.name)
    return sum(frozen[p.batch].records for p in partitions if p.batch in frozen)


def watch(platform: Platform, log: Callable[[str], object], *, counts_all: bool) -> Observer:
    """Return an observer that writes into the run's log, and tells the platform's observer if there is one."""
    lines = ProgressLog(log)

    def observe(progress: Progress) -> None:
        found = count_all(progress) if counts_all else progress
        lines.observe(found)
        if platform.observer is not None:
            platform.observer(found)

    return observe
