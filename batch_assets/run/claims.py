"""Claims: what the store is told of a request before it leaves, so that a crash leaves a trace of it."""

import secrets
import time
from collections.abc import Callable

from batch_assets.run.partition_run import Ask
from batch_assets.store.database import now
from batch_assets.store.results import Claim


class AttemptIds:
    """Makes the ids of attempts. They sort by time, within a process and between processes."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._number = 0

    def make(self) -> str:
        """Return the next id: microseconds, a number, and 40 random bits that keep two processes apart."""
        self._number += 1
        return f"{self._clock_ns() // 1000:014x}{self._number % 0x100000:05x}{secrets.token_hex(5)}"


def build_claim(ask: Ask, run_id: str) -> Claim:
    """Build the claim of an ask's present attempt, which has been started."""
    inputs = ask.partition.inputs
    return Claim(
        attempt_id=ask.attempt_id,
        key=inputs.key,
        item_id=ask.item_id,
        batch=inputs.batch,
        request_key=ask.request.request_key,
        base_key=ask.base.request_key,
        ladder_step=ask.request.step,
        attempt=ask.attempt,
        is_alone=ask.is_suspect,
        parameters=ask.request.sampling.model_dump(mode="json", exclude_defaults=True),
        run_id=run_id,
        started_at=now(),
    )
