"""The settings of a task in groups, as a person writes them: what is accepted, how it is asked, how it is run."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ConfigDict

from batch_assets.core.attempts import Ladder, RetryPolicy
from batch_assets.core.entries import Entry
from batch_assets.core.tasks import Nightly


class Acceptance(Entry):
    """What an answer must be beside its pydantic model.

    `rules` are functions: they take the validated answer and return what is wrong with it, or None. Change
    `rules_version` if a rule changes in a way that its code doesn't show. `checks` are the task's own asset checks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: Sequence[Callable[[Any], str | None]] = ()
    rules_version: str = ""
    checks: Sequence[Any] = ()


class Asking(Entry):
    """How records are asked.

    A record counts as empty if one of `required_fields` is blank; by default all that the prompt uses must be.
    `retry` is for failures that pass, `ladder` for answers that are refused. `fallback` names the model that is asked
    for what is quarantined in the end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    required_fields: Sequence[str] = ()
    retry: RetryPolicy = RetryPolicy()
    ladder: Ladder = Ladder()
    fallback: str = ""


class Operations(Entry):
    """What people see of the task, and when it runs by itself. `qa_sample_size` is the records a person looks at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    owners: Sequence[str] = ()
    nightly: Nightly = Nightly()
    qa_sample_size: int = 50
