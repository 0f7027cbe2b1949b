"""fallback_outputs [batch × variant]: the task's fallback model, asked for the records that llm_outputs quarantined.

Only in tasks that name a fallback. Planned work of its own: the first model's engine has closed by then.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg

from batch_assets.asset_keys import FALLBACK_OUTPUTS, LLM_OUTPUTS, asset_key
from batch_assets.assets.backfills import make_for_backfill
from batch_assets.assets.events import Stamp
from batch_assets.assets.llm_outputs import OutputsConfig, ask, watch
from batch_assets.assets.lost_store import outlast_lost_store
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.errors import BatchAssetsError, NotReadyError, PartitionLeased
from batch_assets.core.models import ModelEntry
from batch_assets.core.tasks import Task
from batch_assets.partitions import PartitionKey, output_partitions
from batch_assets.resources import PLATFORM, Platform
from batch_assets.runner.work import PartitionOutcome, PartitionWork
from batch_assets.store.fallbacks import load_fallback_figures, load_quarantined
from batch_assets.works import build_fallback_work, build_work, is_current


def build_fallback_outputs(task: Task, model: ModelEntry) -> dg.AssetsDefinition:
    """Build the asset of one task, whose fallback is `model`."""

    @dg.asset(
        key=asset_key(task, FALLBACK_OUTPUTS),
        partitions_def=output_partitions(task.name),
        deps=[asset_key(task, LLM_OUTPUTS)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        pool=model.pool,
        op_tags=model.op_tags,
        group_name=task.name,
        owners=list(task.owners),
        kinds={model.engine, "sql"},
        description=(
            f"Asks `{model.model_id}` for the records that are quarantined once their partition of {LLM_OUTPUTS} is "
            "finished, and for no others. What it answers goes into validated_results under its own model_id; shares "
            "and comparisons count a variant's own rows only."
        ),
        required_resource_keys={PLATFORM},
    )
    def fallback_outputs(context: dg.AssetExecutionContext, config: OutputsConfig) -> Iterator[Any]:
        platform: Platform = getattr(context.resources, PLATFORM)
        with outlast_lost_store(context, platform):

            def make(own: Sequence[PartitionKey], theirs: Sequence[PartitionKey]) -> Iterator[Stamp]:
                return fall_back(
                    task, platform, own,
                    run_id=context.run.run_id, retry=config.retry_mode(), log=context.log.info, taken_over=theirs,
                )  # fmt: skip

            yield from make_for_backfill(context, task, make)

    return fallback_outputs


def fall_back(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    *,
    run_id: str,
    log: Callable[[str], object],
    retry: RetryMode = RetryMode.NONE,
    taken_over: Sequence[PartitionKey] = (),
) -> Iterator[Stamp]:
    """Ask the fallback model for the quarantined records of finished output partitions; yield each when it is finished.

    Those of variants whose model is the fallback itself need nothing and are told of as such, so that a run goes on to
    their results. Raises NotReadyError at the end where an output is not up to date, and PartitionLeased where another
    run works on it; of partitions taken over from another run neither.
    """
    if task.fallback is None:
        return
    works: list[PartitionWork] = []
    refused: list[str] = []
    for partition in (*partitions, *taken_over):
        if partition.variant not in task.variants:
            continue
        if partition.variant not in task.fallbacks:
            found = _pass_over(task, platform, partition)
        else:
            found = build_fallback_work(task, platform, partition)
        if isinstance(found, Stamp):
            yield found
        elif found is not None:
            works.append(found)
        elif partition in partitions:
            refused.append(f"{partition}: llm_outputs is not up to date")
    # By variant: those that share rows, one batch of two models, wait for each other, and so should lie far apart.
    works.sort(key=lambda w: list(task.variants).index(w.owner.key))
    own = {str(p) for p in partitions}
    leased: list[str] = []
    total = _count_quarantined(platform, works)
    if works:
        log(f"{len(works)} partitions, {total} quarantined records to ask {task.fallback.model_id}")
    outcomes = ask(
        platform, task.fallback, works, run_id=run_id, retry=retry, total=total,
        observer=watch(platform, log, counts_all=True), log=log,
    )  # fmt: skip
    for outcome in outcomes if works else ():
        if outcome.leased_by is None:
            yield _stamp(platform, task.fallback, outcome)
        elif str(outcome.work) in own:
            leased.append(outcome.leased_by)
    if refused:
        raise NotReadyError("; ".join(refused))
    if leased:
        raise PartitionLeased("; ".join(leased))


def _pass_over(task: Task, platform: Platform, partition: PartitionKey) -> Stamp | None:
    """Return what is told of a partition whose model is the fallback itself; None where it isn't up to date."""
    work = build_work(task, platform, partition)
    state = is_current(platform, work) if work else None
    if state is None:
        return None
    words = "nothing to ask: the variant's model is the fallback itself"
    return Stamp(
        asset=FALLBACK_OUTPUTS,
        partition=str(partition),
        data_version=state.data_version,
        metadata={"summary": words},
    )


def _count_quarantined(platform: Platform, works: Sequence[PartitionWork]) -> int:
    with platform.database.read() as connection:
        keys = [(w.fallback_key, w.batch) for w in works]
        return sum(len(load_quarantined(connection, key.own, batch)) for key, batch in keys if key)


def _stamp(platform: Platform, model: ModelEntry, outcome: PartitionOutcome) -> Stamp:
    state, tally, key = outcome.fallback, outcome.tally, outcome.work.fallback_key
    if state is None or key is None:
        raise BatchAssetsError(f"the fallback of {outcome.work} was not finished")
    with platform.database.read() as connection:
        cost = load_fallback_figures(connection, key)
    return Stamp(
        asset=FALLBACK_OUTPUTS,
        partition=str(outcome.work),
        data_version=state.data_version,
        metadata={
            "summary": f"{tally.sent} sent, {tally.already_done} already done, {tally.reused} reused",
            "model_id": state.model_id,
            "records": sum(state.counts.values()),
            "sent": tally.sent,
            **{status.value: state.counts.get(status, 0) for status in Status},
            "attempts": cost.attempts,
            "unknown_usage": cost.unknown_usage,
            "prompt_tokens": cost.prompt_tokens,
            "completion_tokens": cost.completion_tokens,
            "seconds": round(cost.engine_s, 3),
            "cost": round(cost.engine_s / 3600 * model.price_per_gpu_hour, 6),
        },
    )
