"""The error tree."""

from typing import cast

import pytest

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.errors import BatchAssetsError, ConfigError, RequestFailed, SourceError, find_cause


def chain(*errors: Exception) -> Exception:
    """Return the last error, each raised from the one before."""
    for cause, error in zip(errors, errors[1:], strict=False):
        error.__cause__ = cause
    return errors[-1]


def test_our_own_error_is_found_under_what_others_wrapped_around_it() -> None:
    ours = SourceError("line 3")
    assert find_cause(chain(ValueError(), ours, KeyError(), RuntimeError())) is ours
    assert find_cause(ours) is ours


def test_the_outermost_of_our_errors_is_the_one_to_tell() -> None:
    outer = ConfigError("outer")
    assert find_cause(chain(SourceError("inner"), outer, RuntimeError())) is outer


def test_an_error_raised_while_ours_was_handled_leads_to_it() -> None:
    error = RuntimeError()
    error.__context__ = SourceError("line 3")
    assert find_cause(error) is error.__context__


def test_others_errors_have_no_cause_of_ours() -> None:
    assert find_cause(chain(ValueError(), RuntimeError())) is None
    assert find_cause(None) is None


def test_a_failed_request_says_whether_a_retry_makes_sense() -> None:
    failed = RequestFailed(ErrorKind.TIMEOUT, "no answer in 3 s", is_passing=True, retry_after_s=2.0)
    assert (failed.kind, str(failed), failed.is_passing, failed.retry_after_s) == (
        "timeout",
        "no answer in 3 s",
        True,
        2,
    )
    assert isinstance(failed, BatchAssetsError)


def test_a_kind_of_failure_that_there_is_not_is_refused_where_it_is_written() -> None:
    for kind in ErrorKind:
        assert RequestFailed(kind, "x", is_passing=True).kind is kind
    for misspelt in ("tmieout", "", "TIMEOUT", None):
        with pytest.raises(ValueError, match="is not a valid ErrorKind"):
            RequestFailed(cast("ErrorKind", misspelt), "x", is_passing=True)


def test_the_tree_has_at_most_ten_classes() -> None:
    def count(cls: type) -> int:
        return 1 + sum(count(sub) for sub in cls.__subclasses__() if sub.__module__ == BatchAssetsError.__module__)

    assert count(BatchAssetsError) <= 10
