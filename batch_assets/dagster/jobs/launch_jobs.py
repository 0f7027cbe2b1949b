"""Jobs whose config lists partitions: what the planner launches. Holes in a selection cost nothing here.

Dagster itself would cut a selection with holes into a run per contiguous range, and an engine start for each.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from batch_assets.core.errors import NotReadyError
from batch_assets.core.models import ModelEntry
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey, parse_partition_key
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.dagster.event_log import keep_event_log_open
from batch_assets.dagster.events import to_events
from batch_assets.dagster.plain_failures import plain_failures
from batch_assets.dagster.planned import record_planned
from batch_assets.dagster.platform_resource import PLATFORM
from batch_assets.dagster.runs import check_job_names, job_name, op_name
from batch_assets.pipeline.ask_partitions import parse_retry
from batch_assets.pipeline.carry_out import carry_out
from batch_assets.pipeline.dispatch import NextStep
from batch_assets.pipeline.platform import Platform
from batch_assets.pipeline.result_assets import RESULT_NAMES
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


def build_launch_jobs(task: Task, source: Source) -> list[dg.JobDefinition]:
    """Build a task's jobs: sources, outputs for each of its models, the fallback if it has one, and results."""
    check_job_names(task)
    return [
        _build_sources_job(task, source),
        _build_results_job(task, source),
        *(_build_outputs_job(task, source, model) for model in task.models.values()),
        *([_build_fallbacks_job(task, source, task.fallback)] if task.fallback else []),
    ]


def _build_sources_job(task: Task, source: Source) -> dg.JobDefinition:
    name = job_name(task.name, Step.SOURCES)

    @dg.op(name=op_name(name), out=dg.Out(dg.Nothing), required_resource_keys={PLATFORM})
    def sources_op(context: dg.OpExecutionContext, config: SourcesConfig) -> Iterator[Any]:
        def build_step() -> NextStep:
            return NextStep(step=Step.SOURCES, batches=tuple(config.batches), variants=tuple(config.variants))

        yield from _carry_out(task, source, context, build_step)
        yield dg.Output(None)

    words = (
        f"Freezes the listed batches of {task.name} as they are now (source_records), and describes the listed "
        "variants (variant_specs). Asks no model."
    )
    return _build_job(name, sources_op, words)


def _build_results_job(task: Task, source: Source) -> dg.JobDefinition:
    name = job_name(task.name, Step.RESULTS)

    @dg.op(name=op_name(name), out=dg.Out(str), required_resource_keys={PLATFORM})
    def results_op(context: dg.OpExecutionContext, config: ResultsConfig) -> Iterator[Any]:
        def build_step() -> NextStep:
            return NextStep(step=Step.RESULTS, partitions=_parse(config.partitions))

        held_back = yield from _carry_out(task, source, context, build_step)
        yield dg.Output(held_back)

    words = (
        f"Makes what follows the listed output partitions of {task.name}: {', '.join(RESULT_NAMES)}. Those whose "
        "blocking checks fail are held back, the others go on. Asks no model."
    )
    return _build_job(name, results_op, words)


def _build_outputs_job(task: Task, source: Source, model: ModelEntry) -> dg.JobDefinition:
    name = job_name(task.name, Step.OUTPUTS, model.model_id)

    @_build_asking_op(name, model)
    def outputs_op(context: dg.OpExecutionContext, config: OutputsJobConfig) -> Iterator[Any]:
        def build_step() -> NextStep:
            return NextStep(step=Step.OUTPUTS, partitions=_parse(config.partitions), records=config.total)

        yield from _carry_out(task, source, context, build_step, config.retry)
        yield dg.Output(None)

    words = (
        f"Asks {model.model_id} what is missing or stale in the listed output partitions of {task.name}, and only "
        "that, with one engine start for all of them."
    )
    return _build_job(name, outputs_op, words)


def _build_fallbacks_job(task: Task, source: Source, model: ModelEntry) -> dg.JobDefinition:
    name = job_name(task.name, Step.FALLBACKS)

    @_build_asking_op(name, model)
    def fallbacks_op(context: dg.OpExecutionContext, config: FallbacksConfig) -> Iterator[Any]:
        def build_step() -> NextStep:
            return NextStep(step=Step.FALLBACKS, partitions=_parse(config.partitions))

        yield from _carry_out(task, source, context, build_step, config.retry)
        yield dg.Output(None)

    words = (
        f"Asks {model.model_id}, the fallback of {task.name}, for the records that the listed output partitions have "
        "quarantined, and for no others."
    )
    return _build_job(name, fallbacks_op, words)


def _build_asking_op(job: str, model: ModelEntry) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
    """Return the decorator of an op that asks a model, in its pool and with its tags."""
    return dg.op(
        name=op_name(job),
        out=dg.Out(dg.Nothing),
        required_resource_keys={PLATFORM},
        pool=model.pool,
        tags=model.op_tags,
    )


def _build_job(name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def launched() -> None:
        op()

    return launched


def _carry_out(
    task: Task,
    source: Source,
    context: dg.OpExecutionContext,
    build_step: Callable[[], NextStep],
    retry: str = "none",
) -> Generator[Any, None, str]:
    """Yield the events of a step; return which results were held back, and why.

    A gate that holds results back is doing its work, and its check says so: that fails no run.
    """
    platform: Platform = getattr(context.resources, PLATFORM)
    with plain_failures(context, platform):
        step = build_step()
        record_planned(task, platform, context, step)
        made = carry_out(
            task, source, platform, step, run_id=context.run.run_id, retry=parse_retry(retry), log=context.log.info
        )
        try:
            yield from report(task, context, made)
        except NotReadyError as e:
            if step.step is not Step.RESULTS:
                raise
            context.log.warning(f"held back: {e}")
            return str(e)
    return ""


def _parse(partitions: Iterable[str]) -> tuple[PartitionKey, ...]:
    return tuple(parse_partition_key(p) for p in partitions)


def report(task: Task, context: dg.OpExecutionContext, all_made: Iterable[MadePartition]) -> Iterator[Any]:
    """Yield the events of made partitions from a job that is not of one partition."""
    with keep_event_log_open(context.instance, context.run.run_id):
        for made in all_made:
            yield from to_events(task, made, context.run.tags, context.instance)
