"""The task's fallback model, asked for the records that llm_outputs quarantined. Makes fallback_outputs.

Only in tasks that name a fallback. It is planned work of its own: the first model's engine has closed by then.
"""

from collections.abc import Iterator, Sequence

from batch_assets.core.asset_names import FALLBACK_OUTPUTS
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.errors import BatchAssetsError, NotReadyError, PartitionLeased
from batch_assets.core.models import ModelEntry
from batch_assets.core.outcomes import MadePartition
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.tasks import Task
from batch_assets.pipeline.ask_partitions import Log, ask_model, watch
from batch_assets.pipeline.partition_inputs import build_fallback_inputs, build_inputs, is_current
from batch_assets.pipeline.platform import Platform
from batch_assets.run.partition_run import PartitionInputs, PartitionOutcome
from batch_assets.store.fallbacks import load_fallback_figures, load_quarantined


def ask_fallback(
    task: Task,
    platform: Platform,
    partitions: Sequence[PartitionKey],
    *,
    run_id: str,
    log: Log,
    retry: RetryMode = RetryMode.NONE,
    taken_over: Sequence[PartitionKey] = (),
) -> Iterator[MadePartition]:
    """Ask the fallback model for the quarantined records of finished output partitions; yield each when it is finished.

    Partitions whose model is the fallback itself need nothing. They are yielded as such, so that a run goes on to their
    results. Raises NotReadyError at the end if an output is not up to date, and PartitionLeased if another run works on
    it; of partitions that are taken over from another run neither.
    """
    if task.fallback is None:
        return
    all_inputs: list[PartitionInputs] = []
    refused: list[str] = []
    for partition in (*partitions, *taken_over):
        if partition.variant not in task.variants:
            continue
        if partition.variant not in task.fallbacks:
            found = _pass_over(task, platform, partition)
        else:
            found = build_fallback_inputs(task, platform, partition)
        if isinstance(found, MadePartition):
            yield found
        elif found is not None:
            all_inputs.append(found)
        elif partition in partitions:
            refused.append(f"{partition}: llm_outputs is not up to date")
    # By variant: those that share rows, one batch of two models, wait for each other, and so should lie far apart.
    all_inputs.sort(key=lambda inputs: list(task.variants).index(inputs.owner.key))
    own = {str(p) for p in partitions}
    leased: list[str] = []
    total = _count_quarantined(platform, all_inputs)
    if all_inputs:
        log(f"{len(all_inputs)} partitions, {total} quarantined records to ask {task.fallback.model_id}")
    outcomes = ask_model(
        platform, task.fallback, all_inputs, run_id=run_id, retry=retry, total=total,
        observer=watch(platform, log, counts_all=True), log=log,
    )  # fmt: skip
    for outcome in outcomes if all_inputs else ():
        if outcome.leased_by is None:
            yield _report_outcome(platform, task.fallback, outcome)
        elif str(outcome.inputs) in own:
            leased.append(outcome.leased_by)
    if refused:
        raise NotReadyError("; ".join(refused))
    if leased:
        raise PartitionLeased("; ".join(leased))


def _pass_over(task: Task, platform: Platform, partition: PartitionKey) -> MadePartition | None:
    """Return what is reported of a partition whose model is the fallback itself; None if it isn't up to date."""
    inputs = build_inputs(task, platform, partition)
    state = is_current(platform, inputs) if inputs else None
    if state is None:
        return None
    return MadePartition(
        asset=FALLBACK_OUTPUTS,
        partition=str(partition),
        data_version=state.data_version,
        figures={"summary": "nothing to ask: the variant's model is the fallback itself"},
    )


def _count_quarantined(platform: Platform, all_inputs: Sequence[PartitionInputs]) -> int:
    with platform.database.read() as connection:
        keys = [(inputs.fallback_key, inputs.batch) for inputs in all_inputs]
        return sum(len(load_quarantined(connection, key.own, batch)) for key, batch in keys if key)


def _report_outcome(platform: Platform, model: ModelEntry, outcome: PartitionOutcome) -> MadePartition:
    state, tally, key = outcome.fallback, outcome.tally, outcome.inputs.fallback_key
    if state is None or key is None:
        raise BatchAssetsError(f"the fallback of {outcome.inputs} was not finished")
    with platform.database.read() as connection:
        cost = load_fallback_figures(connection, key)
    return MadePartition(
        asset=FALLBACK_OUTPUTS,
        partition=str(outcome.inputs),
        data_version=state.data_version,
        figures={
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
