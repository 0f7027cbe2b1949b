"""llm_outputs [batch × variant]: every record of a batch asked of a variant, each with one row in the store."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg

from batch_assets.assets.events import Finding, Stamp, emit
from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError, ConfigError, PartitionLeased
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.engines.factory import build_engine
from batch_assets.partitions import (
    BATCH,
    VARIANT,
    PartitionKey,
    output_partitions,
    parse_partition_key,
    to_single_dimension,
)
from batch_assets.planner import LLM_OUTPUTS, SOURCE_RECORDS, VARIANT_SPECS, asset_key, build_work
from batch_assets.reports.run_report import RunReport, make_report
from batch_assets.resources import PLATFORM, Platform, process_tags
from batch_assets.runner.drive import drive
from batch_assets.runner.run import Observer, Runner, RunnerOptions
from batch_assets.runner.work import PartitionOutcome, PartitionWork, Progress
from batch_assets.store.figures import load_failures, load_figures

POOL = "gpu"
OutputCheck = Callable[[Platform, PartitionWork, RunReport], Finding]
SHOWN_FAILURES = 10
LOG_EVERY_S = 10.0


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
    models = ", ".join(task.models)

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
        pool=POOL,
        op_tags={k: v for model in task.models.values() for k, v in model.op_tags.items()},
        group_name=task.name,
        owners=list(task.owners),
        kinds={"vllm", "sql"},
        description=f"One row per record and variant, in llm_batch_results: the answer of {models}, or its reason.",
        required_resource_keys={PLATFORM},
    )
    def llm_outputs(context: dg.AssetExecutionContext, config: OutputsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        context.instance.add_run_tags(context.run.run_id, process_tags(context.run.run_id))
        partitions = [parse_partition_key(str(k)) for k in context.partition_keys]
        stamps = produce(
            task, platform, partitions, checks,
            run_id=context.run.run_id, retry=config.retry_mode(), total=0, log=context.log.info,
        )  # fmt: skip
        yield from emit(context, task, stamps)

    return llm_outputs


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
) -> Iterator[Stamp]:
    """Bring output partitions up to date, model by model, one engine start for each; yield each as it is finished.

    Raises ConfigError where a batch was never frozen, and PartitionLeased at the end where another run held some.
    """
    unknown = [str(p) for p in partitions if p.variant not in task.variants]
    if unknown:
        raise ConfigError(f"task {task.name}: no variant for {', '.join(unknown)}; it has {', '.join(task.variants)}")
    leased: list[str] = []
    for model in task.models.values():
        mine = [p for p in partitions if task.variants[p.variant].model.model_id == model.model_id]
        if not mine:
            continue
        runner = Runner(
            platform.database,
            build_engine(model, platform.settings.cache_dir),
            RunnerOptions(max_in_flight=model.max_in_flight, outage_s=model.outage_s),
            run_id=run_id,
            retry=retry,
            total=total,
            observer=platform.observer or _log_progress(log),
        )
        for outcome in drive(runner, (_find_work(task, platform, p) for p in mine)):
            if outcome.leased_by is not None:
                leased.append(outcome.leased_by)
            else:
                yield stamp_outcome(platform, outcome, model, checks)
    if leased:
        raise PartitionLeased("; ".join(leased))


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
            "records": report.total,
            "ok": report.ok,
            "invalid": report.invalid,
            "error": report.error,
            "error_share": report.error_share,
            "invalid_share": report.invalid_share,
            "sent": tally.sent,
            "already_done": tally.already_done,
            "reused": report.reused,
            "superseded": report.superseded,
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.completion_tokens,
            "seconds": report.seconds,
            "records_per_s": report.records_per_s or 0.0,
            "cost": report.cost,
            "first_failures": dg.MetadataValue.table(
                records=[
                    dg.TableRecord({"item_id": i, "status": s, "reason": k, "error": e}) for i, s, k, e in failures
                ],
                schema=dg.TableSchema(columns=[dg.TableColumn(n) for n in ("item_id", "status", "reason", "error")]),
            ),
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


def _log_progress(log: Callable[[str], object]) -> Observer:
    """Return an observer that writes a line into the run's log, one in ten seconds at most."""
    last = time.monotonic()

    def observe(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY_S or progress.is_starting:
            last = time.monotonic()
            t = progress.tally
            words = (
                "starting the engine" if progress.is_starting else f"{t.ok} ok, {t.invalid} invalid, {t.error} error"
            )
            log(f"{progress.done} records done, {progress.in_flight} in flight, {words}")

    return observe
