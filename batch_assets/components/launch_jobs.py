"""Jobs whose config lists partitions: what the planner launches. Holes in a selection cost nothing here.

Dagster itself would cut a selection with holes into a run per contiguous range, and an engine start for each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from batch_assets.assets.events import Stamp, to_events
from batch_assets.assets.llm_outputs import POOL, OutputCheck, parse_retry, produce
from batch_assets.assets.results import ResultCheck, follow
from batch_assets.assets.source_records import SourceCheck, freeze
from batch_assets.assets.variant_specs import specify
from batch_assets.core.tasks import Task
from batch_assets.partitions import parse_partition_key
from batch_assets.resources import PLATFORM, Platform, process_tags
from batch_assets.sources.base import Source

SOURCES_JOB, OUTPUTS_JOB, RESULTS_JOB = "sources", "outputs", "results"


class SourcesConfig(dg.Config):
    """Batches to freeze and variants to describe."""

    batches: list[str] = []
    variants: list[str] = []


class OutputsJobConfig(dg.Config):
    """Output partitions, `<batch>|<variant>`, of one model if one engine start is to do; `retry` as on the asset.

    `total` is the number of records to do, for progress.
    """

    partitions: list[str]
    retry: str = "none"
    total: int = 0


class ResultsConfig(dg.Config):
    """Finished output partitions, `<batch>|<variant>`, whose results are to follow."""

    partitions: list[str]


def job_name(task: str, job: str) -> str:
    """Return the name of a task's job."""
    return f"{task}__launch_{job}"


def op_name(task: str, job: str) -> str:
    """Return the name of a job's only op, under which its config goes."""
    return f"{job_name(task, job)}_op"


def build_launch_jobs(
    task: Task,
    source: Source,
    *,
    source_checks: Sequence[SourceCheck],
    output_checks: Sequence[OutputCheck],
    result_checks: Sequence[ResultCheck],
    gates: Sequence[OutputCheck],
) -> list[dg.JobDefinition]:
    """Build a task's three jobs."""

    @dg.op(name=op_name(task.name, SOURCES_JOB), required_resource_keys={PLATFORM})
    def sources_op(context: dg.OpExecutionContext, config: SourcesConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        yield from _report(task, context, specify(task, platform, config.variants))
        yield from _report(task, context, freeze(task, source, platform, config.batches, source_checks))
        yield dg.Output(None)

    tags = {k: v for model in task.models.values() for k, v in model.op_tags.items()}

    @dg.op(name=op_name(task.name, OUTPUTS_JOB), required_resource_keys={PLATFORM}, pool=POOL, tags=tags)
    def outputs_op(context: dg.OpExecutionContext, config: OutputsJobConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        context.instance.add_run_tags(context.run.run_id, process_tags(context.run.run_id))
        partitions = [parse_partition_key(p) for p in config.partitions]
        stamps = produce(
            task, platform, partitions, output_checks,
            run_id=context.run.run_id, retry=parse_retry(config.retry), total=config.total, log=context.log.info,
        )  # fmt: skip
        yield from _report(task, context, stamps)
        yield dg.Output(None)

    @dg.op(name=op_name(task.name, RESULTS_JOB), required_resource_keys={PLATFORM})
    def results_op(context: dg.OpExecutionContext, config: ResultsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        partitions = [parse_partition_key(p) for p in config.partitions]
        yield from _report(task, context, follow(task, platform, partitions, result_checks, gates))
        yield dg.Output(None)

    words = {
        SOURCES_JOB: "Freezes batches and describes variants.",
        OUTPUTS_JOB: "Brings the listed output partitions up to date, with one engine start per model.",
        RESULTS_JOB: "Makes the results of the listed output partitions.",
    }
    ops = {SOURCES_JOB: sources_op, OUTPUTS_JOB: outputs_op, RESULTS_JOB: results_op}
    return [_build_job(task, name, op, words[name]) for name, op in ops.items()]


def _build_job(task: Task, name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    @dg.job(name=job_name(task.name, name), description=description, executor_def=dg.in_process_executor)
    def launched() -> None:
        op()

    return launched


def _report(task: Task, context: dg.OpExecutionContext, stamps: Iterable[Stamp]) -> Iterator[Any]:
    for stamp in stamps:
        yield from to_events(task, stamp, context.run.tags)
