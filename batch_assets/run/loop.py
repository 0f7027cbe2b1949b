"""The loop: a rolling window of requests in flight, claims before they leave, groups of rows committed together."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from batch_assets.core.attempts import RetryMode
from batch_assets.core.completions import Completion
from batch_assets.core.errors import EngineDead, PartitionLeased, RequestFailed
from batch_assets.engines.base import Engine
from batch_assets.run.circuit_breaker import CircuitBreaker, fail
from batch_assets.run.claims import AttemptIds, build_claim
from batch_assets.run.engine_time import EngineTimeMeter
from batch_assets.run.error_limit import ErrorLimit
from batch_assets.run.partition_run import Ask, PartitionInputs, PartitionOutcome, Progress, Tally
from batch_assets.run.reader import PartitionReader
from batch_assets.run.retry_budget import RetryBudget
from batch_assets.run.send_queue import SendQueue
from batch_assets.run.settling import Settler
from batch_assets.run.triage import Triage
from batch_assets.run.writer import Writer
from batch_assets.store.database import Database
from batch_assets.store.leases import HEARTBEAT_S

_log = logging.getLogger(__name__)

READ_AHEAD_CHUNKS = 4
PROBE_POOL = 256
"""Records to choose a probe from, while the engine is sick: a cluster of bad records is only few of so many."""

Observer = Callable[[Progress], None]
Arrival = tuple[Ask, Completion | BaseException, float]
"""An ask, what came of it, and the engine time's reading at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How the loop runs. A group is committed when it has `group_rows` rows or `group_s` have passed."""

    max_in_flight: int
    group_rows: int = 256
    group_s: float = 0.02
    outage_s: float = 60.0
    """Seconds without any answer, while requests fail one after another, after which the run stops."""
    probe_s: float = 1.0
    """Seconds until the first probe of a sick engine; each failed probe doubles them."""
    most_delayed: int = 256
    """While so many failed requests wait to be retried, or four windows if that is more, nothing more is read."""
    patience_s: float = 0.02
    """Seconds that the loop waits for a step of reading before it goes on without it."""
    heartbeat_s: float = HEARTBEAT_S
    """Seconds between two renewals of the leases."""
    longest_wait_s: float = 5.0
    """Seconds after which the loop looks around although nothing has arrived."""


class Runner:
    """One run over many partitions with one engine, which is opened for the first request, and never without one."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        options: RunnerOptions,
        *,
        run_id: str,
        retry: RetryMode = RetryMode.NONE,
        total: int = 0,
        tally: Tally | None = None,
        observer: Observer | None = None,
        budget: RetryBudget | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tally` is counted up while the run goes on; `observer` is called at each turn of the loop."""
        self._engine = engine
        self._options = options
        self._run_id = run_id
        self._observer = observer
        self._total = total
        self._tally = Tally() if tally is None else tally
        self._is_open = False
        self._live: dict[Ask, asyncio.Task[None]] = {}
        self._claimed: list[Ask] = []
        """Asks whose claims are being written."""
        self._arrived: deque[Arrival] = deque()
        self._news = asyncio.Event()
        """Set when an answer has arrived or a step of reading has ended."""
        self._attempt_ids = AttemptIds()
        self._writer = Writer(database, run_id)
        self._triage = Triage(database, run_id, retry)
        self._engine_time = EngineTimeMeter(clock)
        self._circuit_breaker = CircuitBreaker(options.outage_s, options.probe_s, clock)
        self._error_limit = ErrorLimit()
        rng, budget = rng or random.Random(), budget or RetryBudget(clock)
        self._queue = SendQueue(budget, rng, clock)
        self._settler = Settler(
            run_id=run_id, writer=self._writer, queue=self._queue, triage=self._triage, budget=budget,
            circuit_breaker=self._circuit_breaker, error_limit=self._error_limit, tally=self._tally, rng=rng,
        )  # fmt: skip
        self.is_stopping = False
        """Whether the run is committing what has arrived and giving the rest back. It must not be cancelled then."""

    async def run(self, all_inputs: Iterable[PartitionInputs]) -> AsyncGenerator[PartitionOutcome, None]:
        """Bring partitions up to date, in order; yield each when it is finished and committed.

        When it is stopped in the middle (cancelled, closed, or by an error) it commits what has arrived, gives back
        what was in flight, releases its leases, and then passes the error on.
        """
        reader = PartitionReader(iter(all_inputs), self._writer, self._news.set)
        heartbeat = asyncio.create_task(self._renew_leases(reader))
        try:
            while True:
                await self._settler.look_up_steps()
                is_exhausted = await self._refill(reader)
                reason = self._error_limit.find_reason() if self._queue else None  # if nothing is left to ask, finish
                is_end = is_exhausted and not reader.is_deferring
                self._circuit_breaker.check(len(self._queue) + len(self._live) if is_end else None)
                await self._commit([] if reason else self._choose(is_last=is_exhausted))
                for outcome in await self._finish(reader):
                    yield outcome
                self._observe()
                if reason:
                    raise reason
                if is_end and not (self._live or self._queue or not self._writer.is_clean):
                    break
                if heartbeat.done():
                    heartbeat.result()
                await self._wait(reader, can_read=not is_exhausted and self._can_read)
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
            await reader.close()

    async def _renew_leases(self, reader: PartitionReader) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_s)
            before = list(reader.open)
            mine = await self._writer.call(self._writer.leases.renew)
            lost = [str(p) for p in before if p in reader.open and (p.inputs.batch, p.inputs.owner.key) not in mine]
            if lost:
                raise PartitionLeased(f"another run took {', '.join(lost)} over: the lease had expired")

    @property
    def _can_read(self) -> bool:
        """Whether there is room for more records to wait."""
        window = self._options.max_in_flight
        wanted = max(window, PROBE_POOL) if self._circuit_breaker.is_open else window
        return self._queue.ready < wanted and self._queue.delayed < max(self._options.most_delayed, 4 * window)

    async def _refill(self, reader: PartitionReader) -> bool:
        """Read and sort records until there is something to send or to commit; say whether nothing is left to read now.

        Nothing is left at the end of all partitions, and while the next one waits for an open one. A slow read keeps
        nothing waiting: it goes on in its thread, and a later call takes what it brings.
        """
        chunks = 0
        while self._can_read and self._writer.rows < self._options.group_rows:
            chunk = await reader.read(self._options.patience_s)
            if chunk is None:
                return not reader.is_reading
            partition, records = chunk
            triaged = await self._writer.call(lambda p=partition, r=records: self._triage.sort(p, r))
            self._settler.take_in(partition, triaged)
            await self._settler.look_up_steps()
            chunks += 1
            free = self._options.max_in_flight - len(self._live)
            if self._queue.ready >= free or (chunks >= READ_AHEAD_CHUNKS and (self._live or self._queue.ready)):
                break  # what can be sent, and what has arrived, is not kept waiting
        return False

    def _choose(self, *, is_last: bool) -> list[Ask]:
        """Choose the asks to send now; `is_last` says that nothing more will be read before they are answered."""
        free = self._circuit_breaker.free(self._options.max_in_flight, len(self._live))
        return self._queue.choose(free, list(self._live), is_last=is_last, is_probe=self._circuit_breaker.is_open)

    async def _commit(self, asks: Sequence[Ask]) -> None:
        """Write ends, rows and the claims of `asks` in one transaction; then send `asks`."""
        if asks and not self._is_open:
            self._observe(is_starting=True)
            await self._engine.open()
            self._is_open = True
        for ask in asks:
            ask.start_attempt(self._attempt_ids.make())
        self._claimed = list(asks)
        await self._writer.commit([build_claim(ask, self._run_id) for ask in asks])
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
        self._arrived.append((ask, answer, self._engine_time.leave()))
        self._news.set()

    async def _wait(self, reader: PartitionReader, *, can_read: bool) -> None:
        """Wait for an answer, a chunk or the end of a backoff; then a moment more, so that a group is worth its commit.

        Settles all answers that have arrived.
        """
        if can_read and not reader.is_reading:
            await asyncio.sleep(0)
        elif self._live or reader.is_reading:
            if not self._arrived and not await self._wait_for_news():
                return
            if len(self._arrived) < min(self._options.group_rows, len(self._live)):
                await asyncio.sleep(self._options.group_s)
        else:
            await asyncio.sleep(self._idle_s() or 0.0)
        while self._arrived:
            self._settle(self._arrived.popleft())

    async def _wait_for_news(self) -> bool:
        """Wait until something can be done, and say whether an answer has arrived meanwhile."""
        idle_s = self._idle_s() if len(self._live) < self._options.max_in_flight else None
        longest_s = self._options.longest_wait_s
        self._news.clear()
        try:
            # Not wait_for(): Python 3.11's loses a cancellation that comes together with a result.
            async with asyncio.timeout(min(longest_s, longest_s if idle_s is None else max(idle_s, 0.001))):
                await self._news.wait()
        except TimeoutError:
            return False
        return bool(self._arrived)

    def _idle_s(self) -> float | None:
        """Return the seconds until a backoff or the breaker's pause ends; None if only an answer can change things.

        A pause is cut into seconds, so that the observer sees it pass.
        """
        pause_s, due_s = self._circuit_breaker.pause_s(), self._queue.next_due_s()
        if pause_s is None:
            return due_s
        if self._queue.ready:
            due_s = 0.0
        if self._circuit_breaker.is_probing or (due_s is None and self._live):
            return None
        return min(1.0, max(pause_s, due_s or 0.0))

    def _settle(self, arrival: Arrival) -> None:
        ask, answer, engine_time = arrival
        if not isinstance(answer, Completion | RequestFailed):
            raise answer  # the engine's death or a fault of ours; the record stays in flight, for _stop to settle
        del self._live[ask]
        engine_s = engine_time - ask.engine_time_at_start
        if isinstance(answer, Completion):
            self._settler.settle_answer(ask, answer, engine_s)
        else:
            self._settler.settle_failure(ask, answer, engine_s)

    async def _finish(self, reader: PartitionReader) -> list[PartitionOutcome]:
        """Finish each partition whose records all have committed rows."""
        outcomes = reader.take_passed_over()
        if not self._writer.is_clean:
            return outcomes  # there are rows to commit: they are finished at the next turn
        for partition in [p for p in reader.open if p.is_read and not p.waiting]:
            outcomes.append(await self._writer.finish(partition))
            reader.open.remove(partition)
        return outcomes

    async def _stop(self, error: BaseException, *, is_death: bool) -> None:
        """Commit what has arrived, release what hasn't (unless it may have killed the engine), free all leases."""
        self.is_stopping = True
        for task in self._live.values():
            task.cancel()
        await asyncio.gather(*self._live.values(), return_exceptions=True)
        try:
            while self._arrived:
                self._settle_last(self._arrived.popleft())
            if not is_death:
                for ask in [*self._live, *self._claimed]:
                    self._writer.release(ask)
            await self._writer.commit([])
            await self._writer.give_up(error)
            self._observe()
        except Exception:  # noqa: BLE001 - the first error is the one to report; what isn't committed is asked again
            _log.exception("what had arrived could not be committed; the next run asks for it again")

    def _settle_last(self, arrival: Arrival) -> None:
        """Settle what arrived before the run stopped; a failure is recorded, and not tried again."""
        ask, answer, engine_time = arrival
        if isinstance(answer, Completion):
            try:
                self._settle(arrival)
            except Exception:  # noqa: BLE001 - the same rule breaks again: the first error is the one to report
                _log.debug("an answer could not be judged; it is kept")
        elif isinstance(answer, RequestFailed):
            del self._live[ask]
            self._writer.end(ask, fail(answer), engine_time - ask.engine_time_at_start)

    def _observe(self, *, is_starting: bool = False) -> None:
        if self._observer is not None:
            done = self._settler.settled
            self._observer(
                Progress(
                    total=max(self._total, done),
                    done=done,
                    tally=replace(self._tally),
                    in_flight=len(self._live),
                    is_starting=is_starting,
                    pause_s=self._circuit_breaker.pause_s(),
                    failure=self._circuit_breaker.last_failure(),
                )
            )
