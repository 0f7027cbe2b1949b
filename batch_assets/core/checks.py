"""A check: what Dagster is told of it before a run, and what it finds in one partition. One object for both.

The checks of every task are in pipeline/checks, one file per asset. A task adds its own by `Acceptance(checks=[…])`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from batch_assets.core.asset_names import LLM_OUTPUTS, SOURCE_RECORDS, VALIDATED_RESULTS
from batch_assets.core.errors import ConfigError
from batch_assets.core.outcomes import CheckOutcome, Figure, Severity

CHECKED_ASSETS = (SOURCE_RECORDS, LLM_OUTPUTS, VALIDATED_RESULTS)
"""The assets that can have checks."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")

SubjectT = TypeVar("SubjectT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check's function returns: whether the partition passed, and the figures that say why."""

    passed: bool
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[SubjectT]):
    """A check of one asset, held for each partition.

    `run` gets what the asset's file in pipeline/checks names as its subject: `SourceBatch` for source_records,
    `CheckedOutput` for llm_outputs, `CheckedResults` for validated_results. It reports on data; if it can't work, it
    raises, and the run stops.

    If a blocking check of llm_outputs or validated_results fails, the partition's results are held back. A blocking
    check of source_records marks the batch in Dagster.
    """

    asset: str
    name: str
    description: str
    run: Callable[[SubjectT], Finding]
    is_blocking: bool = False
    severity: Severity = Severity.ERROR

    def examine(self, subject: SubjectT) -> CheckOutcome:
        """Return what the check found in one partition."""
        found = self.run(subject)
        return CheckOutcome(
            name=self.name,
            passed=found.passed,
            figures=found.figures,
            severity=self.severity,
            is_blocking=self.is_blocking,
        )


def refuse_unusable_checks(task: str, own: Iterable[object], shipped: Iterable[Check[Any]]) -> None:
    """Raise ConfigError if a task's own check is no check, has a bad name, or takes the name of another one."""
    taken = {(c.asset, c.name) for c in shipped}
    for given in own:
        if not isinstance(given, Check):  # Python takes whatever it is given
            raise ConfigError(f"task {task}: checks: {given!r} is no Check(asset=…, name=…, description=…, run=…)")
        check = cast("Check[Any]", given)
        where = f"task {task}: checks: {check.name!r}"
        if not _NAME.fullmatch(str(check.name)):
            raise ConfigError(f"{where}: use letters, digits and _ for the name of a check")
        if check.asset not in CHECKED_ASSETS:
            raise ConfigError(f"{where}: asset: {check.asset!r}: use one of {', '.join(CHECKED_ASSETS)}")
        if (check.asset, check.name) in taken:
            raise ConfigError(f"{where}: {check.asset} has a check of that name already")
        taken.add((check.asset, check.name))
