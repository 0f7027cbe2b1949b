"""Builds the rows of llm_batch_results from verdicts. Nothing here reads, writes or decides."""

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.run.partition_run import Ask, PartitionInputs
from batch_assets.store.database import now
from batch_assets.store.results import Result


def build_row(
    inputs: PartitionInputs,
    item_id: str,
    input_hash: str,
    verdict: Verdict,
    *,
    run_id: str,
    request_key: str | None,
    attempts: int,
    attempt_id: str | None,
    ladder_step: int = 0,
    reused_from: str | None = None,
) -> Result:
    """Build the row that a verdict gives a record. `request_key` is that of the ladder's first step."""
    return Result(
        key=inputs.key,
        item_id=item_id,
        batch=inputs.batch,
        status=verdict.status,
        payload=verdict.payload,
        error_kind=verdict.error_kind,
        error=verdict.error,
        attempts=attempts,
        input_hash=input_hash,
        request_spec=inputs.spec.request_spec,
        accept_spec=inputs.spec.accept_spec,
        request_key=request_key,
        attempt_id=attempt_id,
        ladder_step=ladder_step,
        is_fallback=inputs.fallback_for is not None,
        owner=inputs.owner.key,
        reused_from=reused_from,
        run_id=run_id,
        updated_at=now(),
    )


def build_error_row(
    inputs: PartitionInputs,
    item_id: str,
    input_hash: str,
    kind: ErrorKind,
    words: str,
    *,
    run_id: str,
    request_key: str | None = None,
    attempts: int = 0,
    attempt_id: str | None = None,
) -> Result:
    """Build the row of a record that has no answer."""
    verdict = Verdict(status=Status.ERROR, error_kind=kind, error=words[:500])
    return build_row(
        inputs, item_id, input_hash, verdict,
        run_id=run_id, request_key=request_key, attempts=attempts, attempt_id=attempt_id,
    )  # fmt: skip


def build_asked_row(
    ask: Ask, verdict: Verdict, *, run_id: str, attempt_id: str | None = None, ladder_step: int | None = None
) -> Result:
    """Build the row of a record that was asked. Attempt and step are its present ones if none are named."""
    return build_row(
        ask.partition.inputs,
        ask.item_id,
        ask.input_hash,
        verdict,
        run_id=run_id,
        request_key=ask.base.request_key,
        attempts=ask.attempt,
        attempt_id=attempt_id or ask.attempt_id,
        ladder_step=ask.request.step if ladder_step is None else ladder_step,
    )


def build_reused_row(ask: Ask, verdict: Verdict, *, run_id: str, attempt_id: str) -> Result:
    """Build the row of a record that takes the answer of `attempt_id`, so that its next attempt isn't needed."""
    return build_row(
        ask.partition.inputs,
        ask.item_id,
        ask.input_hash,
        verdict,
        run_id=run_id,
        request_key=ask.base.request_key,
        attempts=ask.attempt - 1,
        attempt_id=attempt_id,
        ladder_step=ask.request.step,
        reused_from=attempt_id,
    )
