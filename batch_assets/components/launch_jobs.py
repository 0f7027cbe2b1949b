"""Jobs whose config lists partitions: what the planner launches. Holes in a selection cost nothing here.

Dagster itself would cut a selection with holes into a run per contiguous range, and an engine start for each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from batch_assets.asset_keys import RESULT_ASSETS
from batch_assets.assets.events import Stamp, to_events
from batch_assets.assets.fallback_outputs import fall_back
from batch_assets.assets.llm_outputs import OutputCheck, parse_retry, produce
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.assets.results import ResultCheck, follow
from batch_assets.assets.source_records import SourceCheck, freeze
from batch_assets.assets.variant_specs import specify
from batch_assets.core.errors import NotReadyError
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.event_log import keep_event_log_open
from batch_assets.launches import (
    FALLBACKS_JOB,
    OUTPUTS_JOB,
    RESULTS_JOB,
    SOURCES_JOB,
    check_job_names,
    job_name,
    op_name,
)
from batch_assets.partitions import parse_partition_key
from batch_assets.resources import PLATFORM, Platform
from batch_assets.sources.base import Source


class SourcesConfig(dg.Config):
    """Batches to freeze and variants to describe."""

    batches: list[str] = Field([], description="The batches to freeze.")
    variants: list[str] = Field([], description="The variants to describe, <prompt_ver>--<model_id>.")


class OutputsJobConfig(dg.Config):
    """Output partitions of one model, `<batch>|<variant>`; `retry` as on the asset.

    `total` is the number of records to do, for progress; 0: as many as the batches have.
    """

    partitions: list[str] = Field(description="Output partitions, <batch>|<prompt_ver>--<model_id>.")
    retry: str = Field("none", description="Ask again although nothing changed: none, errors, failed or all.")
    total: int = Field(0, ge=0, description="Records to do, for the progress; 0: as many as the batches have.")


class FallbacksConfig(dg.Config):
    """Finished output partitions, `<batch>|<variant>`, whose quarantined records the fallback model is to be asked."""

    partitions: list[str] = Field(description="Finished output partitions, <batch>|<prompt_ver>--<model_id>.")
    retry: str = Field("none", description="Ask again what the fallback was asked before: none, errors, failed or all.")


class ResultsConfig(dg.Config):
    """Finished output partitions, `<batch>|<variant>`, whose results are to follow."""

    partitions: list[str] = Field(description="Finished output partitions, <batch>|<prompt_ver>--<model_id>.")


def build_launch_jobs(
    task: Task,
    source: Source,
    *,
    source_checks: Sequence[SourceCheck],
    output_checks: Sequence[OutputCheck],
    result_checks: Sequence[ResultCheck],
    gates: Sequence[OutputCheck],
) -> list[dg.JobDefinition]:
    """Build a task's jobs: sources, results, and outputs for each of its models."""
    check_job_names(task)

    @dg.op(name=op_name(job_name(task.name, SOURCES_JOB)), out=dg.Out(dg.Nothing), required_resource_keys={PLATFORM})
    def sources_op(context: dg.OpExecutionContext, config: SourcesConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with outlast_lost_store(context, platform):
            yield from report(task, context, specify(task, platform, config.variants))
            stamps = freeze(task, source, platform, config.batches, source_checks, context.run.run_id)
            yield from report(task, context, stamps)
        yield dg.Output(None)

    @dg.op(name=op_name(job_name(task.name, RESULTS_JOB)), out=dg.Out(str), required_resource_keys={PLATFORM})
    def results_op(context: dg.OpExecutionContext, config: ResultsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(p) for p in config.partitions]
        held_back = ""
        try:
            stamps = follow(task, platform, partitions, result_checks, gates, run_id=context.run.run_id)
            with outlast_lost_store(context, platform):
                yield from report(task, context, stamps)
        except NotReadyError as e:  # a gate that holds is doing its work, and its check tells of it
            held_back = str(e)
            context.log.warning(f"held back: {held_back}")
        yield dg.Output(held_back)

    freezes = (
        f"Freezes the listed batches of {task.name} as they are now (source_records), and describes the listed "
        "variants (variant_specs). Asks no model."
    )
    follows = (
        f"Makes what follows the listed output partitions of {task.name}: {', '.join(RESULT_ASSETS)}. Those whose "
        "blocking checks fail are held back, the others go on. Asks no model."
    )
    return [
        _build_job(job_name(task.name, SOURCES_JOB), sources_op, freezes),
        _build_job(job_name(task.name, RESULTS_JOB), results_op, follows),
        *(_build_outputs_job(task, model, output_checks) for model in task.models.values()),
        *([_build_fallbacks_job(task, task.fallback)] if task.fallback else []),
    ]


def _build_outputs_job(task: Task, model: ModelEntry, checks: Sequence[OutputCheck]) -> dg.JobDefinition:
    name = job_name(task.name, OUTPUTS_JOB, model.model_id)

    @dg.op(
        name=op_name(name),
        out=dg.Out(dg.Nothing),
        required_resource_keys={PLATFORM},
        pool=model.pool,
        tags=model.op_tags,
    )
    def outputs_op(context: dg.OpExecutionContext, config: OutputsJobConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(p) for p in config.partitions]
        stamps = produce(
            task, platform, partitions, checks,
            run_id=context.run.run_id, retry=parse_retry(config.retry), total=config.total, log=context.log.info,
        )  # fmt: skip
        with outlast_lost_store(context, platform):
            yield from report(task, context, stamps)
        yield dg.Output(None)

    words = (
        f"Asks {model.model_id} what is missing or stale in the listed output partitions of {task.name}, and only "
        "that, with one engine start for all of them."
    )
    return _build_job(name, outputs_op, words)


def _build_fallbacks_job(task: Task, model: ModelEntry) -> dg.JobDefinition:
    name = job_name(task.name, FALLBACKS_JOB)

    @dg.op(
        name=op_name(name),
        out=dg.Out(dg.Nothing),
        required_resource_keys={PLATFORM},
        pool=model.pool,
        tags=model.op_tags,
    )
    def fallbacks_op(context: dg.OpExecutionContext, config: FallbacksConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(p) for p in config.partitions]
        stamps = fall_back(
            task, platform, partitions,
            run_id=context.run.run_id, retry=parse_retry(config.retry), log=context.log.info,
        )  # fmt: skip
        with outlast_lost_store(context, platform):
            yield from report(task, context, stamps)
        yield dg.Output(None)

    words = (
        f"Asks {model.model_id}, the fallback of {task.name}, for the records that the listed output partitions have "
        "quarantined, and for no others."
    )
    return _build_job(name, fallbacks_op, words)


def _build_job(name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def launched() -> None:
        op()

    return launched


def report(task: Task, context: dg.OpExecutionContext, stamps: Iterable[Stamp]) -> Iterator[Any]:
    """Yield the events of stamps from a job that is not of one partition."""
    with keep_event_log_open(context.instance, context.run.run_id):
        for stamp in stamps:
            yield from to_events(task, stamp, context.run.tags, context.instance)
