"""Reads partitions and their records in a thread of its own, so that a slow disk or store doesn't stop the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from batch_assets.core.errors import PartitionLeased
from batch_assets.core.records import Record
from batch_assets.run.partition_run import OpenPartition, PartitionInputs, PartitionOutcome, Tally
from batch_assets.run.writer import Writer

Chunk = tuple[OpenPartition, Sequence[Record]]


class PartitionReader:
    """Opens partitions in order, takes their leases, and reads their records chunk by chunk.

    One step is under way at a time. `read()` may give up waiting for it; the next call goes on with the same step.
    """

    def __init__(self, source: Iterator[PartitionInputs], writer: Writer, on_step: Callable[[], None]) -> None:
        self.open: list[OpenPartition] = []
        """Partitions that are opened and not finished."""
        self._source = source
        self._writer = writer
        self._on_step = on_step
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._step: asyncio.Future[PartitionInputs | Sequence[Record] | None] | None = None
        self._deferred: PartitionInputs | None = None
        """The next partition, if one with the same rows is open: so a fallback is asked once for both."""
        self._passed_over: deque[PartitionOutcome] = deque()

    @property
    def is_reading(self) -> bool:
        """Whether a step is under way."""
        return self._step is not None and not self._step.done()

    @property
    def is_deferring(self) -> bool:
        """Whether the next partition waits for an open one."""
        return self._deferred is not None

    async def read(self, patience_s: float) -> Chunk | None:
        """Return the next chunk. None if it takes longer than `patience_s`, or if nothing is left to read now."""
        while True:
            partition = next((p for p in self.open if not p.is_read), None)
            if partition is None:
                if not await self._open_next(patience_s):
                    return None
                continue
            if not await self._wait_for(partition.chunks, patience_s):
                return None
            records = self._take()
            if isinstance(records, Sequence):
                return partition, records
            partition.is_read = True

    def take_passed_over(self) -> list[PartitionOutcome]:
        """Return the partitions that other runs work on, each once."""
        passed_over = list(self._passed_over)
        self._passed_over.clear()
        return passed_over

    async def close(self) -> None:
        """Wait for the step under way, since nobody else may advance the same iterators before it has ended."""
        if self._step is not None:
            await asyncio.gather(self._step, return_exceptions=True)
        self._thread.shutdown()

    async def _open_next(self, patience_s: float) -> bool:
        """Open the next partition that no other run works on; say whether there is one and it is open now."""
        while True:
            inputs = self._deferred
            if inputs is None:
                if not await self._wait_for(self._source, patience_s):
                    return False
                inputs = self._take()
            if not isinstance(inputs, PartitionInputs):
                return False
            self._deferred = inputs if any(p.inputs.shares_rows(inputs) for p in self.open) else None
            if self._deferred is not None:
                return False
            try:
                await self._writer.start(inputs)
            except PartitionLeased as e:
                self._passed_over.append(PartitionOutcome(inputs=inputs, tally=Tally(), leased_by=str(e)))
                continue
            self.open.append(OpenPartition(inputs=inputs, chunks=_read_chunks(inputs)))
            return True

    async def _wait_for(
        self, values: Iterator[PartitionInputs] | Iterator[Sequence[Record]], patience_s: float
    ) -> bool:
        """Begin to take the next of `values`, unless that is under way already; say whether it is there in time."""
        if self._step is None:
            self._step = asyncio.get_running_loop().run_in_executor(self._thread, lambda: next(values, None))
            self._step.add_done_callback(lambda _step: self._on_step())
        await asyncio.wait({self._step}, timeout=patience_s)
        return self._step.done()

    def _take(self) -> PartitionInputs | Sequence[Record] | None:
        """Return what the step that has ended brought, or raise its error."""
        step, self._step = self._step, None
        return step.result() if step is not None else None


def _read_chunks(inputs: PartitionInputs) -> Iterator[Sequence[Record]]:
    """Yield a partition's chunks; the first step, in the reader's thread, opens them."""
    yield from inputs.read()
