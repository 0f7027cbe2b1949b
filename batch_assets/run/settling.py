"""Turns an answer or a failure into what follows from it: a retry, the ladder's next step, or a row."""

import random
from dataclasses import replace

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import Status
from batch_assets.core.completions import Completion
from batch_assets.core.errors import RequestFailed
from batch_assets.core.ladder import Refused, climb
from batch_assets.run.circuit_breaker import MAX_TRIES, CircuitBreaker, fail
from batch_assets.run.error_limit import ErrorLimit
from batch_assets.run.partition_run import Ask, OpenPartition, Tally
from batch_assets.run.result_rows import build_asked_row, build_reused_row
from batch_assets.run.retry_budget import RetryBudget
from batch_assets.run.send_queue import SendQueue
from batch_assets.run.triage import Triage, Triaged
from batch_assets.run.writer import Writer
from batch_assets.store.results import Result


class Settler:
    """Settles records: each gets one row, which the writer commits. `tally` counts what became of them."""

    def __init__(
        self,
        *,
        run_id: str,
        writer: Writer,
        queue: SendQueue,
        triage: Triage,
        budget: RetryBudget,
        circuit_breaker: CircuitBreaker,
        error_limit: ErrorLimit,
        tally: Tally,
        rng: random.Random,
    ) -> None:
        self.settled = 0
        """Records that have got their row in this run."""
        self._run_id = run_id
        self._writer = writer
        self._queue = queue
        self._triage = triage
        self._budget = budget
        self._circuit_breaker = circuit_breaker
        self._error_limit = error_limit
        self._tally = tally
        self._rng = rng
        self._climbing: list[Ask] = []
        """Asks at a step of the ladder that may have been answered before."""

    def take_in(self, partition: OpenPartition, triaged: Triaged) -> None:
        """Take in a chunk of records: write the rows that there are, queue the asks."""
        partition.waiting += len(triaged.results) + len(triaged.asks)
        partition.tally.add(triaged.tally)
        self._tally.add(triaged.tally)
        for result in triaged.results:
            self._add_row(partition, result)
        for ask in triaged.asks:
            if ask.request.step:
                self._climbing.append(ask)
            else:
                self._queue_or_reuse(ask)

    async def look_up_steps(self) -> None:
        """Give asks on the ladder the accepted answer of an earlier attempt, anyone's; queue those without one."""
        climbing, self._climbing = self._climbing, []
        if not climbing:
            return
        found = await self._writer.call(lambda: self._triage.find_step_answers(climbing))
        for ask in climbing:
            if ask.request.request_key in found:
                self._give_answer(ask, *found[ask.request.request_key])
            else:
                self._queue_or_reuse(ask)

    def settle_answer(self, ask: Ask, answer: Completion, engine_s: float) -> None:
        """Judge an answer. A refused one takes its record up the ladder, if there is a step left."""
        self._circuit_breaker.record_answer(ask)
        self._budget.record_answer()
        try:
            verdict = accept(answer, ask.partition.inputs.task)
        except BaseException:  # a rule that breaks stops the run; the answer is kept, for a mended one
            self._writer.release(ask, answer)
            raise
        self._writer.end(ask, verdict, engine_s, completion=answer)
        if verdict.status is Status.INVALID and self._climb(ask, answer, verdict):
            return
        self._settle(ask, verdict, is_shared=verdict.status is Status.OK)

    def settle_failure(self, ask: Ask, failure: RequestFailed, engine_s: float) -> None:
        """Retry a failed request later, or give its record a row if it may not be tried again."""
        verdict = fail(failure)
        self._writer.end(ask, verdict, engine_s)
        retry = ask.partition.inputs.task.retry
        if failure.is_passing:
            ask.charged += self._circuit_breaker.record_failure(ask, failure)
            if ask.charged < retry.max_attempts and ask.failed + 1 < MAX_TRIES:
                ask.failed += 1
                self._queue.delay(ask, retry.backoff_s(ask.failed, self._rng, failure.retry_after_s))
                return
        else:
            self._circuit_breaker.record_answer(ask)  # a refusal for good is an answer: the server lives
        if ask.refused:  # there is an answer, and it is refused; that no better one could be had changes nothing
            last = ask.refused[-1]
            words = f"{last.verdict.error}; step {ask.request.step} of the ladder failed: {verdict.error}"[:500]
            self._settle(
                ask, replace(last.verdict, error=words), is_shared=False,
                attempt_id=ask.refused_attempt_id, ladder_step=last.request.step,
            )  # fmt: skip
            return
        self._settle(ask, verdict, is_shared=not failure.is_passing)

    def _climb(self, ask: Ask, answer: Completion, verdict: Verdict) -> bool:
        """Take an ask to the ladder's next step after a refused answer; return False if the ladder has ended."""
        inputs = ask.partition.inputs
        refused = Refused(request=ask.request, completion=answer, verdict=verdict)
        following = climb(inputs.task.ladder, ask.base, (*ask.refused, refused), inputs.spec)
        if following is None:
            return False
        self._queue.settle(ask, is_shared=False)
        ask.climb(refused, following)
        self._climbing.append(ask)
        return True

    def _settle(
        self, ask: Ask, verdict: Verdict, *, is_shared: bool, attempt_id: str = "", ladder_step: int | None = None
    ) -> None:
        """Give a record its row. Its followers take the answer if it `is_shared`; else one of them asks next.

        `attempt_id` and `ladder_step` name the attempt that gave the verdict, if it isn't the present one.
        """
        self._error_limit.record_settled(ask, verdict)
        row = build_asked_row(ask, verdict, run_id=self._run_id, attempt_id=attempt_id, ladder_step=ladder_step)
        self._add_row(ask.partition, row)
        if verdict.status is Status.OK:
            self._writer.remember(ask.request.request_key, verdict, ask.attempt_id)
        for follower in self._queue.settle(ask, is_shared=is_shared):
            self._give_answer(follower, verdict, ask.attempt_id)

    def _queue_or_reuse(self, ask: Ask) -> None:
        """Queue an ask, unless this run has just had the answer and has yet to commit it."""
        answered = self._writer.recall(ask.request.request_key)
        if answered is None:
            self._queue.add(ask)
        else:
            self._give_answer(ask, *answered)

    def _give_answer(self, ask: Ask, verdict: Verdict, attempt_id: str) -> None:
        """Give a record the answer of another one's attempt."""
        self._add_row(ask.partition, build_reused_row(ask, verdict, run_id=self._run_id, attempt_id=attempt_id))
        ask.partition.tally.reused += 1
        self._tally.reused += 1

    def _add_row(self, partition: OpenPartition, result: Result) -> None:
        self._writer.add(result)
        partition.waiting -= 1
        self.settled += 1
        for tally in (partition.tally, self._tally):
            setattr(tally, result.status, getattr(tally, result.status) + 1)
