"""Keeps what is still to be written, and owns the one thread that writes to the store."""

import asyncio
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
"""Errors that are not the partitions' fault. Neither are an interruption and a lost connection to the database."""


class Writer:
    """Collects the ends and rows since the last commit, and writes them together with the next claims."""

    def __init__(self, database: Database, run_id: str) -> None:
        self.leases = LeaseBook(database, run_id)
        self._database = database
        self._run_id = run_id
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._group = Group()
        self._answers: dict[str, tuple[Verdict, str]] = {}

    @property
    def is_clean(self) -> bool:
        """Whether all is committed."""
        return not self._group

    @property
    def rows(self) -> int:
        """How many rows wait for the next commit."""
        return len(self._group.results)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a call in the store's thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def end(self, ask: Ask, verdict: Verdict, engine_s: float, completion: Completion | None = None) -> None:
        """Record the end of an attempt."""
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
        """Record that an attempt was given back without a verdict; its answer, if there is one, is kept."""
        self._group.endings.append(
            Ending(attempt_id=ask.attempt_id, outcome=RELEASED, ended_at=now(), completion=completion)
        )

    def add(self, result: Result) -> None:
        """Record a row."""
        self._group.results.append(result)

    def remember(self, request_key: str, verdict: Verdict, attempt_id: str) -> None:
        """Keep an answer at hand until it is committed."""
        self._answers[request_key] = (verdict, attempt_id)

    def recall(self, request_key: str) -> tuple[Verdict, str] | None:
        """Return the verdict and attempt id of an answer since the last commit; None if there was none."""
        return self._answers.get(request_key)

    async def commit(self, claims: Sequence[Claim]) -> None:
        """Write ends, rows and `claims` in one transaction. What fails to be written is kept for the next.

        Rows of a partition that another run has taken over are left out: that run writes them. Claims are left out
        then, too, and none of their requests may be sent: raises PartitionLeased if there are any.
        """
        group, self._group, self._answers = self._group, Group(), {}
        group.claims = list(claims)
        if not group:
            return
        try:
            lost = await self.call(lambda: self._write(group))
        except BaseException:
            self._group.results = group.results + self._group.results
            self._group.endings = group.endings + self._group.endings
            raise
        if claims:
            _raise_if_lost(lost)

    async def start(self, inputs: PartitionInputs) -> None:
        """Take the lease of a partition, and count it as failed until it is finished. Raises PartitionLeased."""
        await self.call(lambda: self._start(inputs))

    async def give_up(self, error: BaseException) -> None:
        """Free all leases. Partitions that aren't finished have failed, unless the error excuses them: `_EXCUSES`."""
        await self.call(lambda: self._give_up(error))

    async def finish(self, partition: OpenPartition) -> PartitionOutcome:
        """Finish a partition and give its lease back, in one transaction."""
        return await self.call(lambda: self._finish(partition))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _write(self, group: Group) -> set[tuple[str, str, str]]:
        """Write a group without the rows of lost partitions; return the (task, batch, variant) of these."""
        with self._database.write() as connection:
            lost = self.leases.find_lost_in(connection)
            if lost:
                group.claims = []  # their requests will not be sent: the run stops
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
            _raise_if_lost(lost & {(inputs.task.name, inputs.batch, inputs.owner.key)})
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


def _step(inputs: PartitionInputs) -> Step:
    return Step.OUTPUTS if inputs.fallback_for is None else Step.FALLBACKS


def _is_lost(row: Result, lost: set[tuple[str, str, str]]) -> bool:
    """Say whether a row was made for a partition that another run has taken over."""
    return (row.key.task, row.batch, row.owner or variant_key(row.key.prompt_ver, row.key.model_id)) in lost


def _raise_if_lost(lost: set[tuple[str, str, str]]) -> None:
    if lost:
        names = ", ".join(f"{batch}|{variant}" for _, batch, variant in sorted(lost))
        raise PartitionLeased(f"another run took {names} over: the lease had expired")
