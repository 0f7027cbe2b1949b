"""A database that is away for a while fails no run: its step waits, and goes on from what is committed."""

from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg

from batch_assets.core.errors import StoreError
from batch_assets.pipeline.platform import Platform
from batch_assets.store.database import is_connection_lost, wait_for_database

MAX_RETRIES = 5


@contextmanager
def outlast_lost_store(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, platform: Platform
) -> Generator[None, None, None]:
    """Have Dagster begin the step again if the database went away inside: store, instance, or both.

    Else that would be a failed step, and those are not retried. It waits here until the database answers: before that
    Dagster can write nothing down, and would give the run up. Raises StoreError when it was lost more than MAX_RETRIES
    times, or is away for too long.
    """
    try:
        yield
    except Exception as e:
        if not is_connection_lost(e):
            raise
        if context.retry_number >= MAX_RETRIES:
            raise StoreError(f"the database was lost {MAX_RETRIES + 1} times; the last time: {type(e).__name__}") from e
        wait_for_database(platform.settings.store_url)
        raise dg.RetryRequested(max_retries=MAX_RETRIES) from e
