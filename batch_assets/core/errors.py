"""The one error tree. A third party's error is translated where it enters, with `raise … from`."""

from collections.abc import Iterator

from pydantic import ValidationError

from batch_assets.core.attempts import ErrorKind


class BatchAssetsError(Exception):
    """The root: everything that this package raises on purpose."""


class ConfigError(BatchAssetsError):
    """A task, prompt, model entry or setting that can't work; the message names the file and the field."""


class SourceError(BatchAssetsError):
    """Source data that can't be used as it is; the message names the file, the line and the field."""


class RequestFailed(BatchAssetsError):
    """One request failed and the engine lives: a value for one record, never a reason to stop the run.

    `is_passing` says whether the same request may succeed later. Raises ValueError if `kind` is no ErrorKind.
    """

    def __init__(self, kind: ErrorKind, message: str, *, is_passing: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = ErrorKind(kind)
        self.is_passing = is_passing
        self.retry_after_s = retry_after_s


class EngineDead(BatchAssetsError):
    """The engine answers no more: the run stops, what is unanswered stays pending.

    `took_requests_down` says that a request in flight may be the cause: its claim then counts as a death.
    """

    def __init__(self, message: str, *, took_requests_down: bool = False) -> None:
        super().__init__(message)
        self.took_requests_down = took_requests_down


class TooManyErrors(BatchAssetsError):
    """A variant's errors passed their limit during a run: it stopped, what is unanswered stays pending."""


class PartitionLeased(BatchAssetsError):
    """Another live run works on the partition."""


class NotReadyError(BatchAssetsError):
    """Some partitions have no finished output to follow, or one that a blocking check holds back."""


class StoreError(BatchAssetsError):
    """The store can't be opened, or holds something that this version can't read."""


class StoreGone(StoreError):
    """The store's file was removed or replaced while it was in use: what was committed is with the old one."""


def format_problems(error: ValidationError) -> str:
    """Return what pydantic found wrong, field by field, in one line; never the values."""
    return "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in error.errors(include_input=False))


def find_cause(error: BaseException | None) -> BatchAssetsError | None:
    """Return our own error that others wrap, or None."""
    return next((e for e in unwrap(error) if isinstance(e, BatchAssetsError)), None)


def unwrap(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all that it wraps. Chains may be circular: Dagster's component loader makes such."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop(0)
        if found is None or id(found) in seen:
            continue
        yield found
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
