"""What is still to be written, and the one thread that talks to the store."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from batch_assets.core.acceptance import Verdict
from batch_assets.core.completions import Completion
from batch_assets.core.errors import EngineDead, PartitionLeased, StoreError
from batch_assets.core.names import variant_key
from batch_assets.core.steps import Step
from batch_assets.run.partition_run import Ask, OpenPartition, PartitionInputs, PartitionOutcome
from batch_assets.store.database import Database, is_connection_lost, now
from batch_assets.store.failures import clear_failures, count_failure, excuse_failures, record_failure_reason
from batch_assets.store.fallbacks import finish_fallback
from batch_assets.store.leases import LeaseBook
from batch_assets.store.partitions import finish_partition
from batch_assets.store.results import Claim, Ending, Group, Result, write_group

_T = TypeVar("_T")
RELEASED = "released"
_EXCUSES = (EngineDead, PartitionLeased, StoreError)
"""Not the partitions' fault, nor is an interruption, which is no Exception, or a database that went away."""


class Writer:
    """Ends and rows since the last commit; claims are written with them. A result is done when it is committed."""

    def __init__(self, database: Database, run_id: str) -> None:
        self.leases = LeaseBook(database, run_id)
        self._database = database
        self._run_id = run_id
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._group = Group()
        self._answers: dict[str, tuple[Verdict, str]] = {}
        self._number = 0

    @property
    def is_clean(self) -> bool:
        """Say whether all is committed."""
        return not self._group

    @property
    def rows(self) -> int:
        """How many rows wait for the next commit."""
        return len(self._group.results)

    async def call(self, call: Callable[[], _T]) -> _T:
        """Run what reads or writes the store in its thread, so that the loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def end(self, ask: Ask, verdict: Verdict, engine_s: float, completion: Completion | None = None) -> None:
        """Note the end of an attempt."""
        self._group.endings.append(
            Ending(
                attempt_id=ask.attempt_id,
                outcome=verdict.status,
                ended_at=now(),
                completion=completion,
                engine_s=engine_s,
                error_kind=verdict.error_kind,
                error=verdict.error,
            )
        )

    def release(self, ask: Ask, completion: Completion | None = None) -> None:
        """Note that an attempt was given back without a verdict; its answer, if there is one, is kept."""
        self._group.endings.append(
            Ending(attempt_id=ask.attempt_id, outcome=RELEASED, ended_at=now(), completion=completion)
        )

    def add(self, result: Result) -> None:
        """Note a row."""
        self._group.results.append(result)

    def remember(self, request_key: str, verdict: Verdict, attempt_id: str) -> None:
        """Know an answer until the store does."""
        self._answers[request_key] = (verdict, attempt_id)

    def recall(self, request_key: str) -> tuple[Verdict, str] | None:
        """Return an answer since the last commit, with its attempt; None where there was none."""
        return self._answers.get(request_key)

    async def commit(self, asks: Sequence[Ask]) -> None:
        """Write ends, rows and the claims of `asks` in one transaction. What fails to be written is kept.

        Rows of a partition that another run has taken over are left out, since they are that run's to write; asks are
        then not to be sent: PartitionLeased.
        """
        group, self._group, self._answers = self._group, Group(), {}
        group.claims = [self._claim(ask) for ask in asks]
        if not group:
            return
        try:
            lost = await self.call(lambda: self._write(group))
        except BaseException:
            self._group.results = group.results + self._group.results
            self._group.endings = group.endings + self._group.endings
            raise
        if asks:
            _refuse(lost)

    async def start(self, inputs: PartitionInputs) -> None:
        """Take the lease of a partition, and count a start that has yet to come to its end. Raises PartitionLeased."""
        await self.call(lambda: self._start(inputs))

    async def give_up(self, error: BaseException) -> None:
        """Free all leases. What was started and isn't finished has failed, or is excused: see `_EXCUSES`."""
        await self.call(lambda: self._give_up(error))

    async def finish(self, partition: OpenPartition) -> PartitionOutcome:
        """Finish a partition and give its lease back, in one transaction."""
        return await self.call(lambda: self._finish(partition))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _write(self, group: Group) -> set[tuple[str, str, str]]:
        """Write a group, but for what belongs to a run that took a partition over; return what is lost."""
        with self._database.write() as connection:
            lost = self.leases.find_lost_in(connection)
            if lost:
                group.claims = []  # of asks that will not be sent: the run stops
                group.results = [r for r in group.results if not _is_lost(r, lost)]
            write_group(connection, group)
        return lost

    def _start(self, inputs: PartitionInputs) -> None:
        self.leases.acquire(inputs.task.name, inputs.batch, inputs.owner.key)
        with self._database.write() as connection:
            count_failure(
                connection, inputs.task.name, _step(inputs), str(inputs), inputs.fingerprint, self._run_id, None
            )

    def _give_up(self, error: BaseException) -> None:
        self.leases.release_all()
        with self._database.write() as connection:
            is_excused = isinstance(error, _EXCUSES) or not isinstance(error, Exception)
            for step in (Step.OUTPUTS, Step.FALLBACKS):
                if is_excused or is_connection_lost(error):
                    excuse_failures(connection, step, self._run_id)
                else:
                    record_failure_reason(connection, step, self._run_id, f"{type(error).__name__}: {error}")

    def _finish(self, partition: OpenPartition) -> PartitionOutcome:
        inputs = partition.inputs
        state, fallback = None, None
        with self._database.write() as connection:
            lost = self.leases.find_lost_in(connection)
            _refuse(lost & {(inputs.task.name, inputs.batch, inputs.owner.key)})
            if inputs.fallback_key is not None:
                fallback = finish_fallback(
                    connection,
                    inputs.fallback_key,
                    inputs.owner.key,
                    fingerprint=inputs.fingerprint,
                    run_id=self._run_id,
                )
            else:
                state = finish_partition(
                    connection,
                    inputs.key,
                    inputs.batch,
                    inputs.variant.key,
                    fingerprint=inputs.fingerprint,
                    parts=inputs.parts,
                    run_id=self._run_id,
                )
            self.leases.release_in(connection, inputs.task.name, inputs.batch, inputs.owner.key)
            clear_failures(connection, inputs.task.name, _step(inputs), [str(inputs)])
        return PartitionOutcome(inputs=inputs, tally=partition.tally, state=state, fallback=fallback)

    def _claim(self, ask: Ask) -> Claim:
        self._number += 1
        # Sorts by time within a process and between them; 40 random bits keep two processes apart.
        ask.attempt_id = f"{time.time_ns() // 1000:014x}{self._number % 0x100000:05x}{secrets.token_hex(5)}"
        inputs = ask.partition.inputs
        return Claim(
            attempt_id=ask.attempt_id,
            key=inputs.key,
            item_id=ask.item_id,
            batch=inputs.batch,
            request_key=ask.request.request_key,
            base_key=ask.base.request_key,
            ladder_step=ask.request.step,
            attempt=ask.attempt,
            is_alone=ask.is_suspect,
            parameters=ask.request.sampling.model_dump(mode="json", exclude_defaults=True),
            run_id=self._run_id,
            started_at=now(),
        )


def _step(inputs: PartitionInputs) -> Step:
    return Step.OUTPUTS if inputs.fallback_for is None else Step.FALLBACKS


def _is_lost(row: Result, lost: set[tuple[str, str, str]]) -> bool:
    """Say whether a row was made for a partition that another run has taken over."""
    return (row.key.task, row.batch, row.owner or variant_key(row.key.prompt_ver, row.key.model_id)) in lost


def _refuse(lost: set[tuple[str, str, str]]) -> None:
    if lost:
        names = ", ".join(f"{batch}|{variant}" for _, batch, variant in sorted(lost))
        raise PartitionLeased(f"another run took {names} over: the lease had expired")
