"""Partitions that keep failing: how often since the last success, so that nobody asks for them for ever."""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from batch_assets.core.steps import Step
from batch_assets.store.database import now
from batch_assets.store.tables import failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A partition that failed `failures` times since it last succeeded, always while `wanted` was being made."""

    step: Step
    partition: str
    wanted: str
    failures: int
    error: str | None
    run_id: str
    failed_at: dt.datetime


def load_failing(connection: sa.Connection, task: str) -> dict[tuple[Step, str], Failing]:
    """Return the failing partitions of a task by step and partition."""
    rows = connection.execute(sa.select(failures).where(failures.c.task == task)).mappings()
    names = ("partition", "wanted", "failures", "error", "run_id", "failed_at")
    found = (Failing(step=Step(r["step"]), **{n: r[n] for n in names}) for r in rows)
    return {(f.step, f.partition): f for f in found}


def count_failure(
    connection: sa.Connection, task: str, step: Step, partition: str, wanted: str, run_id: str, error: str | None
) -> None:
    """Count one more failure of a partition, from 1 again if something else is wanted now.

    A start counts as a failure until `clear_failures` says that it came to its end: what is killed can't report.
    """
    where = _where(task, step, [partition])
    row = connection.execute(sa.select(failures.c.wanted, failures.c.failures).where(*where)).first()
    count = row.failures + 1 if row is not None and row.wanted == wanted else 1
    connection.execute(sa.delete(failures).where(*where))
    connection.execute(
        sa.insert(failures).values(
            task=task, step=step.value, partition=partition, wanted=wanted, failures=count, error=error,
            run_id=run_id, failed_at=now(),
        )
    )  # fmt: skip


def record_failure_reason(connection: sa.Connection, step: Step, run_id: str, error: str) -> None:
    """Write down why the starts of a run failed."""
    c = failures.c
    mine = (c.step == step.value, c.run_id == run_id)
    connection.execute(sa.update(failures).where(*mine).values(error=error, failed_at=now()))


def excuse_failures(connection: sa.Connection, step: Step, run_id: str) -> None:
    """Take back the starts of a run that failed for no fault of its partitions, such as a server that is down."""
    c = failures.c
    mine = (c.step == step.value, c.run_id == run_id)
    connection.execute(sa.delete(failures).where(*mine, c.failures <= 1))
    connection.execute(sa.update(failures).where(*mine).values(failures=c.failures - 1))


def clear_failures(connection: sa.Connection, task: str, step: Step, partitions: Iterable[str]) -> None:
    """Forget the failures of partitions: they succeeded, or a person wants them to be tried again."""
    connection.execute(sa.delete(failures).where(*_where(task, step, list(partitions))))


def reset_failures(connection: sa.Connection, task: str, partitions: Iterable[str] | None = None) -> int:
    """Forget the failures of a task's partitions (all, unless some are named), at every step; return how many."""
    where = [failures.c.task == task]
    if partitions is not None:
        where.append(failures.c.partition.in_(list(partitions)))
    return connection.execute(sa.delete(failures).where(*where)).rowcount


def _where(task: str, step: Step, partitions: list[str]) -> tuple[sa.ColumnElement[bool], ...]:
    c = failures.c
    return (c.task == task, c.step == step.value, c.partition.in_(partitions))
