"""From a plan to what is done next: what is in flight, what has failed, and the next steps of a task.

The command line, sensors, schedules and the planner's job all go through here, and only carry out what it says. It
decides by level, as the planner does: nothing is remembered between two looks but what the store and Dagster hold.
"""

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batch_assets.core.attempts import RetryMode
from batch_assets.core.errors import BatchAssetsError
from batch_assets.core.partition_keys import PartitionKey
from batch_assets.core.steps import Step
from batch_assets.pipeline.plan import PartitionNeed, Plan
from batch_assets.sources.base import BatchRef
from batch_assets.store import database
from batch_assets.store.failures import Failing

FAILURE_BUDGET = 3
RESULTS_BUDGET = 1
"""A gate that refused an output's results refuses them until the output changes."""
FIRST_WAIT_S, MAX_WAIT_S = 30.0, 3600.0
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """What unfinished runs of a task's jobs are to do, begun or still in the queue: keys of partitions by step."""

    partitions: Mapping[Step, frozenset[str]] = field(default_factory=dict[Step, frozenset[str]])
    is_planning: bool = False
    is_asking: bool = False
    """Whether some run makes outputs, the asset's own runs included."""

    def has(self, step: Step, partition: str) -> bool:
        """Say whether some run has it on its list."""
        return partition in self.partitions.get(step, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a plan is worth launching now, and what is passed over with its reason.

    `over_budget`: failed as often as the budget allows. `waiting`: failed, and to be tried again later. `busy`: leased
    by a live run or on the list of one. `unsettled`: batches that somebody may still be writing.
    """

    unfrozen: tuple[BatchRef, ...] = ()
    needs: tuple[PartitionNeed, ...] = ()
    fallbacks: tuple[PartitionKey, ...] = ()
    outdated: tuple[PartitionKey, ...] = ()
    over_budget: tuple[Failing, ...] = ()
    waiting: tuple[Failing, ...] = ()
    busy: int = 0
    unsettled: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to launch."""
        return not (self.unfrozen or self.needs or self.fallbacks or self.outdated)

    def format_summary(self) -> str:
        """Say in a line what is left and why."""
        words = [
            f"{self.busy} partitions are at work or in the queue" if self.busy else "",
            f"waiting for {', '.join(self.unsettled[:SHOWN])} to be written" if self.unsettled else "",
            f"{len(self.waiting)} failed and are tried again later" if self.waiting else "",
            _format_names(self.over_budget, (Step.SOURCES, Step.OUTPUTS, Step.FALLBACKS), "failed too often"),
            _format_names(self.over_budget, (Step.RESULTS,), "have results that a check holds back"),
        ]
        return "; ".join(w for w in words if w) or "nothing is missing or stale"


def _format_names(failing: Sequence[Failing], steps: Sequence[Step], words: str) -> str:
    names = [f.partition for f in failing if f.step in steps]
    more = ", …" if len(names) > SHOWN else ""
    return f"{len(names)} {words}: {', '.join(names[:SHOWN])}{more}" if names else ""


def choose(
    plan: Plan,
    failing: Mapping[tuple[Step, str], Failing],
    in_flight: InFlight,
    now: dt.datetime,
    *,
    budget: int = FAILURE_BUDGET,
    is_patient: bool = True,
) -> Choice:
    """Pass over what is busy, what has just failed, what failed too often, and (patient) files that are being written.

    Output partitions of a batch that is to be frozen first are not among the needs: they come with the next look. The
    fallback comes when no run makes outputs any more: the first model's engine has closed then.
    A partition's failures count for what was being made of it: a changed record, prompt or model starts anew. Those
    that failed least go first, so that one that takes its run down doesn't hold up the others.
    """
    look = _Look(failing, in_flight, now)
    unsettled = [r.batch for r in plan.unfrozen if is_patient and not r.is_settled(now.timestamp())]
    unfrozen = [
        r
        for r in plan.unfrozen
        if r.batch not in unsettled and look.admits(Step.SOURCES, r.batch, r.change_token, budget)
    ]
    fallbacks = [
        p
        for p in plan.fallbacks
        if not in_flight.is_asking and look.admits(Step.FALLBACKS, str(p), plan.fallback_fingerprints[p], budget)
    ]
    outdated = [p for p in plan.outdated if look.admits(Step.RESULTS, str(p), plan.versions[p], RESULTS_BUDGET)]
    to_freeze = {r.batch for r in plan.unfrozen}
    needs = [
        n
        for n in plan.needs
        if n.partition.batch not in to_freeze
        and look.admits(Step.OUTPUTS, str(n.partition), n.fingerprint, budget, is_leased=n.leased_by is not None)
    ]
    needs.sort(key=lambda n: look.count(Step.OUTPUTS, str(n.partition)))
    return Choice(
        unfrozen=tuple(unfrozen),
        needs=tuple(needs),
        fallbacks=tuple(fallbacks),
        outdated=tuple(outdated),
        over_budget=tuple(look.over_budget),
        waiting=tuple(look.waiting),
        busy=look.busy,
        unsettled=tuple(unsettled),
    )


class _Look:
    """Sorts partitions into those to launch and those to pass over."""

    def __init__(self, failing: Mapping[tuple[Step, str], Failing], in_flight: InFlight, now: dt.datetime) -> None:
        self._failing = failing
        self._in_flight = in_flight
        self._now = now
        self.over_budget: list[Failing] = []
        self.waiting: list[Failing] = []
        self.busy = 0

    def count(self, step: Step, partition: str) -> int:
        found = self._failing.get((step, partition))
        return found.failures if found else 0

    def admits(self, step: Step, partition: str, wanted: str, budget: int, *, is_leased: bool = False) -> bool:
        if is_leased or self._in_flight.has(step, partition):
            self.busy += 1
            return False
        found = self._failing.get((step, partition))
        if found is None or found.wanted != wanted:
            return True
        if found.failures >= budget:
            self.over_budget.append(found)
            return False
        if self._now < found.failed_at + wait_after(found.failures):
            self.waiting.append(found)
            return False
        return True


def wait_after(failures: int) -> dt.timedelta:
    """Return how long to wait after so many failures in a row: 30 s, doubled each time, an hour at most."""
    return dt.timedelta(seconds=min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (max(failures, 1) - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One step of a task that can be carried out now, in one run with one engine at most.

    SOURCES freezes `batches` and describes `variants`; the others make `partitions`. OUTPUTS and FALLBACKS ask
    `model_id`. `records` are those to do, 0 if they weren't counted.
    """

    step: Step
    model_id: str = ""
    batches: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    partitions: tuple[PartitionKey, ...] = ()
    records: int = 0

    @property
    def keys(self) -> set[tuple[Step, str]]:
        """What it makes, by step and partition."""
        return {(self.step, str(key)) for key in (*self.batches, *self.variants, *self.partitions)}

    def without(self, attempted: Collection[tuple[Step, str]]) -> "NextStep | None":
        """Return the step without what was attempted before; None if nothing is left."""
        left = replace(
            self,
            batches=tuple(b for b in self.batches if (self.step, b) not in attempted),
            variants=tuple(v for v in self.variants if (self.step, v) not in attempted),
            partitions=tuple(p for p in self.partitions if (self.step, str(p)) not in attempted),
        )
        return left if left.keys else None


def list_next_steps(
    plan: Plan,
    choice: Choice,
    *,
    asked: Collection[PartitionKey] = (),
    attempted: Collection[tuple[Step, str]] = (),
    max_batches: int = 0,
    max_partitions: int = 0,
) -> list[NextStep]:
    """Return the steps that can be carried out now, in the order of the data; 0 means no limit.

    Each step changes what comes next, so whoever carries them out one after another looks again when the first kind is
    done. `asked` are partitions whose results are made anew although their version didn't change: their figures may
    have. What was `attempted` is left out.
    """
    task = plan.task
    batches = tuple(ref.batch for ref in choice.unfrozen[: max_batches or None])
    needs = choice.needs[: max_partitions or None]
    found = [NextStep(step=Step.SOURCES, batches=batches, variants=plan.undescribed)]
    for model_id in task.models:
        mine = [n for n in needs if task.variants[n.partition.variant].model.model_id == model_id]
        found.append(
            NextStep(
                step=Step.OUTPUTS,
                model_id=model_id,
                partitions=tuple(n.partition for n in mine),
                records=sum(n.to_ask + n.rejudged for n in mine),
            )
        )
    if task.fallback is not None:
        fallbacks = choice.fallbacks[: max_partitions or None]
        found.append(NextStep(step=Step.FALLBACKS, model_id=task.fallback.model_id, partitions=fallbacks))
    results = sorted({*choice.outdated, *({*asked} & {*plan.done})})[: max_partitions or None]
    found.append(NextStep(step=Step.RESULTS, partitions=tuple(results)))
    return [left for step in found if (left := step.without(attempted)) is not None]


Look = Callable[[RetryMode, RetryMode, bool], Plan]
"""Makes a plan by the retry modes for outputs and fallback, and whether records are to be counted."""


def bring_up_to_date(look: Look, carry_out: Callable[[NextStep], None], retry: RetryMode) -> list[Plan]:
    """Carry out a task's steps one after another, until nothing is left; return the plans, in their order.

    What others lease is passed over, and nothing is attempted twice. If the fallback can't be asked, the results are
    made without it, and its error is raised at the end; any other error stops everything.
    """
    plans: list[Plan] = []
    attempted: set[tuple[Step, str]] = set()
    failure: BatchAssetsError | None = None
    is_asked = False
    while True:
        plan = look(RetryMode.NONE if is_asked else retry, retry, not is_asked)
        plans.append(plan)
        choice = choose(plan, {}, InFlight(), database.now(), is_patient=False)
        asked = [p for p in plan.done if (Step.OUTPUTS, str(p)) in attempted]
        steps = list_next_steps(plan, choice, asked=asked, attempted=attempted)
        if not steps:
            break
        for step in [s for s in steps if s.step is steps[0].step]:
            attempted |= step.keys
            is_asked = is_asked or step.step is not Step.SOURCES
            try:
                carry_out(step)
            except BatchAssetsError as e:
                if step.step is not Step.FALLBACKS:
                    raise
                failure = e
    if failure is not None:
        raise failure
    return plans
