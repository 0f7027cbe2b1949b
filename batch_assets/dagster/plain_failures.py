"""Has a run's page say in words why a step ended, what is kept, and how it goes on, before any stack."""

import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError

from batch_assets.core.errors import BatchAssetsError, unwrap
from batch_assets.dagster.kept import describe_kept
from batch_assets.dagster.lost_store import outlast_lost_store
from batch_assets.pipeline.platform import Platform
from batch_assets.store.kept import Kept, count_kept


@contextmanager
def plain_failures(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, platform: Platform
) -> Generator[None, None, None]:
    """Raise an error of ours as Dagster's Failure, whose cause it stays; outlast a lost store.

    The stack goes to the run's log at debug level. A run that is to end logs what is kept, and raises what ended it
    with these words. Other errors go through as they are.
    """
    try:
        with outlast_lost_store(context, platform):
            yield
    except BatchAssetsError as e:
        context.log.debug("".join(traceback.format_exception(e)))
        for error in unwrap(e):
            error.__traceback__ = None  # else the page shows each one's stack below the words
        kept = count_kept(platform.database, context.run.run_id)
        raise dg.Failure(description=str(e), metadata=_to_metadata(e, kept)) from e
    except DagsterExecutionInterruptedError as e:
        words = describe_kept(platform.database, context.run)
        context.log.info(words)
        raise type(e)(words) from None


def _to_metadata(error: BatchAssetsError, kept: Kept | None) -> Mapping[str, Any]:
    counts = {} if kept is None else {"records_kept": kept.records, "partitions_kept": kept.partitions}
    return {"error": type(error).__name__, **counts}
