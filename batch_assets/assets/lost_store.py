"""A database that is away for a while fails no run: its step begins again, and goes on from what is committed."""

from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg

from batch_assets.core.errors import StoreError
from batch_assets.store.database import is_connection_lost

MAX_RETRIES = 5
WAIT_S = 5.0


@contextmanager
def outlast_lost_store(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> Generator[None, None, None]:
    """Have Dagster begin the step again where the database went away inside: store, instance, or both.

    Else that would be a failed step, and those are not retried. Where the database stays away, Dagster can't even
    write this down: then the process ends, and the run is retried as any whose process died. Raises StoreError when
    it was lost more than MAX_RETRIES times.
    """
    try:
        yield
    except Exception as e:
        if not is_connection_lost(e):
            raise
        if context.retry_number >= MAX_RETRIES:
            raise StoreError(f"the database was lost {MAX_RETRIES + 1} times; the last time: {type(e).__name__}") from e
        raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=WAIT_S) from e
