"""Carries out one step of a task: the one place that knows which function makes what."""

from collections.abc import Iterator

from batch_assets.core.attempts import RetryMode
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.steps import Step
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_fallback import ask_fallback
from batch_assets.pipeline.ask_partitions import Log, ask_partitions
from batch_assets.pipeline.describe_variants import describe_variants
from batch_assets.pipeline.dispatch import NextStep
from batch_assets.pipeline.freeze import freeze_batches
from batch_assets.pipeline.make_results import make_results
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import Source


def carry_out(
    task: Task,
    source: Source,
    platform: Platform,
    step: NextStep,
    *,
    run_id: str,
    retry: RetryMode = RetryMode.NONE,
    log: Log = lambda _line: None,
) -> Iterator[MadePartition]:
    """Yield what a step makes, each partition when it is finished. Raises what the step's function raises."""
    match step.step:
        case Step.SOURCES:
            yield from describe_variants(task, platform, step.variants)
            yield from freeze_batches(task, source, platform, step.batches, run_id)
        case Step.OUTPUTS:
            yield from ask_partitions(
                task, platform, step.partitions, run_id=run_id, retry=retry, total=step.records, log=log
            )
        case Step.FALLBACKS:
            yield from ask_fallback(task, platform, step.partitions, run_id=run_id, retry=retry, log=log)
        case Step.RESULTS:
            yield from make_results(task, platform, step.partitions, run_id=run_id)
