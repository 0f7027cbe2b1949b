"""The loop: a rolling window of requests in flight, claims before they leave, groups of rows committed together."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import RetryMode, Status
from batch_assets.core.completions import Completion
from batch_assets.core.errors import EngineDead, PartitionLeased, RequestFailed
from batch_assets.core.ladder import Refused, climb
from batch_assets.engines.base import Engine
from batch_assets.run.circuit_breaker import MAX_TRIES, CircuitBreaker, fail
from batch_assets.run.engine_time import EngineTimeMeter
from batch_assets.run.error_limit import ErrorLimit
from batch_assets.run.partition_run import Ask, OpenPartition, PartitionInputs, PartitionOutcome, Progress, Tally
from batch_assets.run.retry_budget import RetryBudget
from batch_assets.run.send_queue import SendQueue
from batch_assets.run.triage import Triage, Triaged
from batch_assets.run.writer import Writer
from batch_assets.store.database import Database
from batch_assets.store.leases import HEARTBEAT_S
from batch_assets.store.results import Result

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

READ_AHEAD_CHUNKS = 4
PROBE_POOL = 256
"""Records that are read, if there are so many, for a probe to be one of: a cluster of bad ones is few of them."""

MOST_DELAYED = 256
"""Failed requests that wait to be retried, or four windows if that is more, beyond which nothing more is read."""

Observer = Callable[[Progress], None]
Arrival = tuple[Ask, Completion | BaseException, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How the loop runs. A group is committed when it has `group_rows` rows or `group_s` have passed."""

    max_in_flight: int
    group_rows: int = 256
    group_s: float = 0.02
    outage_s: float = 60.0
    """Seconds without any answer, while requests fail one after another, after which the run stops."""
    probe_s: float = 1.0
    """Seconds that a run pauses before it probes a sick engine for the first time; each failed probe doubles them."""


class Runner:
    """One run over many partitions with one engine, which opens at the first request and not at all without one."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        options: RunnerOptions,
        *,
        run_id: str,
        retry: RetryMode = RetryMode.NONE,
        total: int = 0,
        observer: Observer | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._writer = Writer(database, run_id)
        self._engine = engine
        self._options = options
        self._run_id = run_id
        self._triage = Triage(database, run_id, retry)
        self._observer = observer
        self._rng = rng or random.Random()
        self._tally = Tally()
        self._total = total
        self._done = 0
        self._is_open = False
        self._budget = RetryBudget()
        self._queue = SendQueue(self._budget, self._rng)
        self._live: dict[Ask, asyncio.Task[None]] = {}
        self._climbing: list[Ask] = []
        """Asks at a step of the ladder that somebody may have answered before."""
        self._claimed: list[Ask] = []
        """Asks whose claims are being written."""
        self._arrived: asyncio.Queue[Arrival] = asyncio.Queue()
        self._open: list[OpenPartition] = []
        self._deferred: PartitionInputs | None = None
        """The next, while one with the same rows is open: what two models quarantine, their fallback is asked once."""
        self._passed_over: list[PartitionOutcome] = []
        self._engine_time = EngineTimeMeter()
        self._circuit_breaker = CircuitBreaker(options.outage_s, options.probe_s)
        self._error_limit = ErrorLimit()
        self.is_stopping = False
        """Whether what has arrived is being committed and the rest given back: not to be cancelled meanwhile."""

    async def run(self, all_inputs: Iterable[PartitionInputs]) -> AsyncGenerator[PartitionOutcome, None]:
        """Bring partitions up to date, in order; yield each when it is finished and committed.

        When it is stopped in the middle (cancelled, closed, or by an error) it commits what has arrived, gives back
        what was in flight, releases its leases, and then passes the error on.
        """
        source = iter(all_inputs)
        heartbeat = asyncio.create_task(self._renew_leases())
        try:
            while True:
                await self._look_up_steps()
                is_exhausted = await self._refill(source)
                reason = self._error_limit.find_reason() if self._queue else None  # with nothing left to ask, finish
                is_end = is_exhausted and self._deferred is None
                self._circuit_breaker.check(len(self._queue) + len(self._live) if is_end else None)
                free = 0 if reason else self._circuit_breaker.free(self._options.max_in_flight, len(self._live))
                asks = self._queue.choose(
                    free, list(self._live), is_last=is_exhausted, is_probe=self._circuit_breaker.is_open
                )
                if asks and not self._is_open:
                    await self._open_engine()
                await self._commit(asks)
                for outcome in await self._finish():
                    yield outcome
                self._observe()
                if reason:
                    raise reason
                if is_end and not (self._live or self._queue or not self._writer.is_clean):
                    break
                if heartbeat.done():
                    heartbeat.result()
                await self._wait(can_read=not is_exhausted and self._can_read)
        except EngineDead as e:
            await self._stop(e, is_death=e.took_requests_down)
            raise
        except BaseException as e:
            await self._stop(e, is_death=False)
            raise
        finally:
            heartbeat.cancel()
            await self._engine.close()
            self._writer.close()

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            before = list(self._open)
            held = await self._writer.call(self._writer.leases.renew)
            lost = [str(p) for p in before if p in self._open and (p.inputs.batch, p.inputs.owner.key) not in held]
            if lost:
                raise PartitionLeased(f"another run took {', '.join(lost)} over: the lease had expired")

    async def _open_engine(self) -> None:
        self._observe(is_starting=True)
        await self._engine.open()
        self._is_open = True

    @property
    def _can_read(self) -> bool:
        """Whether there is room for more records to wait."""
        window = self._options.max_in_flight
        wanted = max(window, PROBE_POOL) if self._circuit_breaker.is_open else window
        return self._queue.ready < wanted and self._queue.delayed < max(MOST_DELAYED, 4 * window)

    async def _refill(self, source: Iterator[PartitionInputs]) -> bool:
        """Read and sort records until there is something to send or to commit; say whether nothing is left to read now.

        That is at the end of all partitions, or where the next waits for one under way.
        """
        chunks = 0
        while self._can_read and self._writer.rows < self._options.group_rows:
            partition = next((p for p in self._open if not p.is_read), None) or await self._open_next(source)
            if partition is None:
                return True
            records = next(partition.chunks, None)
            if records is None:
                partition.is_read = True
                continue
            triaged = await self._writer.call(lambda p=partition, r=records: self._triage.sort(p, r))
            self._take_in(partition, triaged)
            await self._look_up_steps()
            chunks += 1
            free = self._options.max_in_flight - len(self._live)
            if self._queue.ready >= free or (chunks >= READ_AHEAD_CHUNKS and (self._live or self._queue.ready)):
                break  # what can be sent, and what has arrived, is not kept waiting
        return False

    async def _open_next(self, source: Iterator[PartitionInputs]) -> OpenPartition | None:
        while (inputs := self._deferred or next(source, None)) is not None:
            self._deferred = inputs if any(p.inputs.shares_rows(inputs) for p in self._open) else None
            if self._deferred is not None:
                return None
            try:
                await self._writer.start(inputs)
            except PartitionLeased as e:
                self._passed_over.append(PartitionOutcome(inputs=inputs, tally=Tally(), leased_by=str(e)))
                continue
            partition = OpenPartition(inputs=inputs, chunks=inputs.read())
            self._open.append(partition)
            return partition
        return None

    def _take_in(self, partition: OpenPartition, triaged: Triaged) -> None:
        partition.waiting += len(triaged.results) + len(triaged.asks)
        partition.tally.add(triaged.tally)
        self._tally.add(triaged.tally)
        for result in triaged.results:
            self._add_result(partition, result)
        for ask in triaged.asks:
            if ask.request.step:
                self._climbing.append(ask)
            else:
                self._add_ask(ask)

    def _add_ask(self, ask: Ask) -> None:
        """Queue an ask, unless this run had the answer a moment ago."""
        answered = self._writer.recall(ask.request.request_key)
        if answered is None:
            self._queue.add(ask)
        else:
            self._share_answer(ask, *answered)

    async def _look_up_steps(self) -> None:
        """Give steps of the ladder that have an accepted answer, whoever's, that one; queue the others."""
        climbing, self._climbing = self._climbing, []
        if not climbing:
            return
        found = await self._writer.call(lambda: self._triage.find_step_answers(climbing))
        for ask in climbing:
            if ask.request.request_key in found:
                self._share_answer(ask, *found[ask.request.request_key])
            else:
                self._add_ask(ask)

    async def _commit(self, asks: Sequence[Ask]) -> None:
        """Write ends, rows and the claims of `asks` in one transaction; then send `asks`."""
        self._claimed = list(asks)
        await self._writer.commit(asks)
        for ask in asks:
            ask.partition.tally.sent += 1
            self._tally.sent += 1
            self._error_limit.record_sent(ask)
            self._circuit_breaker.record_sent(ask)
            ask.engine_time_at_start = self._engine_time.enter()
            self._live[ask] = asyncio.create_task(self._ask(ask))
        self._claimed = []

    async def _ask(self, ask: Ask) -> None:
        try:
            answer: Completion | BaseException = await self._engine.complete(ask.request)
        except asyncio.CancelledError:
            raise
        except BaseException as e:  # noqa: BLE001 - the engine's edge: the loop raises what it doesn't know
            answer = e
        self._arrived.put_nowait((ask, answer, self._engine_time.leave()))

    async def _wait(self, *, can_read: bool) -> None:
        """Wait for an arrival or the end of a backoff; then a moment more, so that a group is worth its commit."""
        if can_read:
            await asyncio.sleep(0)
        elif self._live:
            try:
                # Not wait_for(): Python 3.11's loses a cancellation that comes together with a result.
                async with asyncio.timeout(self._wait_s()):
                    arrival = await self._arrived.get()
                self._handle(arrival)
            except TimeoutError:
                return
            if self._arrived.qsize() + 1 < min(self._options.group_rows, len(self._live) + 1):
                await asyncio.sleep(self._options.group_s)
        else:
            await asyncio.sleep(self._idle_s() or 0.0)
        while not self._arrived.empty():
            self._handle(self._arrived.get_nowait())

    def _wait_s(self) -> float:
        """Return how long to wait for an arrival: until something can be sent, if there is room, and 5 s at most."""
        idle_s = self._idle_s() if len(self._live) < self._options.max_in_flight else None
        return min(5.0, 5.0 if idle_s is None else max(idle_s, 0.001))

    def _idle_s(self) -> float | None:
        """Return the seconds until a backoff or the breaker's pause ends; None where only an arrival can change things.

        A second at most of a pause, so that whoever watches sees it pass.
        """
        pause_s, due_s = self._circuit_breaker.pause_s(), self._queue.next_due_s()
        if pause_s is None:
            return due_s
        if self._queue.ready:
            due_s = 0.0
        if self._circuit_breaker.is_probing or (due_s is None and self._live):
            return None
        return min(1.0, max(pause_s, due_s or 0.0))

    def _handle(self, arrival: Arrival) -> None:
        ask, answer, share = arrival
        if not isinstance(answer, Completion | RequestFailed):
            raise answer  # the engine's death or a fault of ours; the record stays in flight, for _stop to settle
        engine_s = share - ask.engine_time_at_start
        if isinstance(answer, RequestFailed):
            self._handle_failure(ask, answer, engine_s)
            return
        self._circuit_breaker.record_answer(ask)
        self._budget.record_answer()
        del self._live[ask]
        try:
            verdict = accept(answer, ask.partition.inputs.task)
        except BaseException:  # a rule that breaks stops the run; the answer is kept, for a mended one
            self._writer.release(ask, answer)
            raise
        self._writer.end(ask, verdict, engine_s, completion=answer)
        if verdict.status is Status.INVALID and self._climb(ask, answer, verdict):
            return
        self._settle(ask, verdict, is_shared=verdict.status is Status.OK)

    def _climb(self, ask: Ask, answer: Completion, verdict: Verdict) -> bool:
        """Queue the ladder's next step for a refused answer; False where the ladder ends."""
        inputs = ask.partition.inputs
        refused = Refused(request=ask.request, completion=answer, verdict=verdict)
        following = climb(inputs.task.ladder, ask.base, (*ask.refused, refused), inputs.spec)
        if following is None:
            return False
        self._queue.settle(ask, is_shared=False)
        ask.climb(refused, following)
        self._climbing.append(ask)
        return True

    def _handle_failure(self, ask: Ask, failure: RequestFailed, engine_s: float) -> None:
        del self._live[ask]
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
                attempt_id=ask.refused_attempt_id, step=last.request.step,
            )  # fmt: skip
            return
        self._settle(ask, verdict, is_shared=not failure.is_passing)

    def _settle(
        self, ask: Ask, verdict: Verdict, *, is_shared: bool, attempt_id: str = "", step: int | None = None
    ) -> None:
        """Give a record its row; its followers take the answer, or one of them asks next.

        Attempt and step are the present ones, unless an earlier one gave the verdict.
        """
        self._error_limit.record_settled(ask, verdict)
        row = self._row(ask, verdict, attempts=ask.attempt, attempt_id=attempt_id or ask.attempt_id)
        self._add_result(ask.partition, row if step is None else replace(row, ladder_step=step))
        if verdict.status is Status.OK:
            self._writer.remember(ask.request.request_key, verdict, ask.attempt_id)
        for follower in self._queue.settle(ask, is_shared=is_shared):
            self._share_answer(follower, verdict, ask.attempt_id)

    def _share_answer(self, ask: Ask, verdict: Verdict, attempt_id: str) -> None:
        row = self._row(ask, verdict, attempts=ask.attempt - 1, attempt_id=attempt_id)
        self._add_result(ask.partition, replace(row, reused_from=attempt_id))
        ask.partition.tally.reused += 1
        self._tally.reused += 1

    def _row(self, ask: Ask, verdict: Verdict, *, attempts: int, attempt_id: str) -> Result:
        return self._triage.row(
            ask.partition.inputs,
            ask.item_id,
            ask.input_hash,
            verdict,
            request_key=ask.base.request_key,
            attempts=attempts,
            attempt_id=attempt_id,
            ladder_step=ask.request.step,
        )

    def _add_result(self, partition: OpenPartition, result: Result) -> None:
        self._writer.add(result)
        partition.waiting -= 1
        self._done += 1
        for tally in (partition.tally, self._tally):
            setattr(tally, result.status, getattr(tally, result.status) + 1)

    async def _finish(self) -> list[PartitionOutcome]:
        """Finish each partition whose records all have committed rows."""
        outcomes, self._passed_over = self._passed_over, []
        if not self._writer.is_clean:
            return outcomes  # rows that aren't committed yet: next time round
        for partition in [p for p in self._open if p.is_read and not p.waiting]:
            outcomes.append(await self._writer.finish(partition))
            self._open.remove(partition)
        return outcomes

    async def _stop(self, error: BaseException, *, is_death: bool) -> None:
        """Commit what has arrived, release what hasn't (unless it may have killed the engine), free leases."""
        self.is_stopping = True
        for task in self._live.values():
            task.cancel()
        await asyncio.gather(*self._live.values(), return_exceptions=True)
        try:
            while not self._arrived.empty():
                ask, answer, share = self._arrived.get_nowait()
                if isinstance(answer, Completion):
                    try:
                        self._handle((ask, answer, share))
                    except Exception:  # noqa: BLE001 - the same rule breaks again: the first error is the one to tell
                        _log.debug("an answer could not be judged; it is kept")
                elif isinstance(answer, RequestFailed):
                    del self._live[ask]
                    self._writer.end(ask, fail(answer), share - ask.engine_time_at_start)
            if not is_death:
                for ask in [*self._live, *self._claimed]:
                    self._writer.release(ask)
            await self._writer.commit([])
            await self._writer.give_up(error)
            self._observe()
        except Exception:  # noqa: BLE001 - the first error is the one to tell; what isn't committed is asked again
            _log.exception("what had arrived could not be committed; the next run asks for it again")

    def _observe(self, *, is_starting: bool = False) -> None:
        if self._observer is not None:
            self._observer(
                Progress(
                    total=max(self._total, self._done),
                    done=self._done,
                    tally=replace(self._tally),
                    in_flight=len(self._live),
                    is_starting=is_starting,
                    pause_s=self._circuit_breaker.pause_s(),
                    failure=self._circuit_breaker.last_failure(),
                )
            )
