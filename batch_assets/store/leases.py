"""Leases: who works on a partition now.

A lease ends by release. On this host it also ends with its process, and with nothing else: whatever a clock says, a
process that lives keeps its leases. Of another host's process only time tells.
"""

import datetime as dt
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

import psutil
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from batch_assets.core.errors import PartitionLeased
from batch_assets.store.database import Database, now
from batch_assets.store.tables import leases

LEASE_S = 90.0
HEARTBEAT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process, told apart from a later one with the same pid by when it started: see `find_start`."""

    host: str
    pid: int
    process_started: float

    @classmethod
    def of(cls, row: sa.RowMapping) -> Self:
        """Return the holder of a lease's row."""
        return cls(host=row["host"], pid=row["pid"], process_started=row["process_started"])

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, one of this host."""
        return self.host == socket.gethostname()

    def is_dead(self) -> bool:
        """Say whether the process is known to be gone; False if it can't be known, as on another host.

        A zombie is gone: it only waits to be reaped, for ever if it is the child of a container's first process.
        """
        if not self.is_here:
            return False
        try:
            process = psutil.Process(self.pid)
            return not self._is(process) or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _is(self, process: psutil.Process) -> bool:
        """Say whether a process is this one. Versions before wrote the time of its start: by that it may be, too."""
        return find_start(process) == self.process_started or abs(process.create_time() - self.process_started) <= 1


def find_start(process: psutil.Process) -> float:
    """Return a number for when a process started that no setting of the clock changes.

    A whole number below 2**53: the boot, 20 bits, and in clock ticks how long after it. psutil's time of creation
    moves with the clock, and a live process then looks like another one. If there is no /proc it has to do.
    """
    try:
        ticks = int(Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:5], 16)
    except OSError:
        return process.create_time()  # raises NoSuchProcess for one that has ended meanwhile
    return float(boot << 33 | ticks)


@lru_cache(maxsize=1)
def _started(pid: int) -> float:
    return find_start(psutil.Process(pid))


def this_process() -> Holder:
    """Return the holder that this process is."""
    pid = os.getpid()
    return Holder(host=socket.gethostname(), pid=pid, process_started=_started(pid))


def _is_held(row: sa.RowMapping, at: dt.datetime) -> bool:
    holder = Holder.of(row)
    return not holder.is_dead() if holder.is_here else row["expires_at"] > at


class LeaseBook:
    """The leases of one run. Times come from this host's clock; hosts that share a store should agree to seconds."""

    def __init__(
        self, database: Database, run_id: str, lease_s: float = LEASE_S, clock: Callable[[], dt.datetime] = now
    ) -> None:
        self._clock = clock
        self._database = database
        self._run_id = run_id
        self._lease_s = lease_s
        self._taken: set[tuple[str, str, str]] = set()

    def acquire(self, task: str, batch: str, variant: str) -> None:
        """Take the lease of a partition. Raises PartitionLeased, naming the run that holds it."""
        where = (leases.c.task == task, leases.c.batch == batch, leases.c.variant == variant)
        me = this_process()
        try:
            with self._database.write() as connection:
                row = connection.execute(sa.select(leases).where(*where).with_for_update()).mappings().first()
                if row is not None:
                    if row["run_id"] != self._run_id and _is_held(row, self._clock()):
                        raise PartitionLeased(
                            f"{task} {batch}|{variant}: run {row['run_id']} works on it (pid {row['pid']} on "
                            f"{row['host']}, lease until {row['expires_at']:%H:%M:%S} UTC)"
                        )
                    connection.execute(sa.delete(leases).where(*where))
                connection.execute(
                    sa.insert(leases).values(
                        task=task, batch=batch, variant=variant, run_id=self._run_id, host=me.host, pid=me.pid,
                        process_started=me.process_started, expires_at=self._expiry(),
                    )
                )  # fmt: skip
        except IntegrityError as e:
            raise PartitionLeased(f"{task} {batch}|{variant}: another run took it at this moment") from e
        self._taken.add((task, batch, variant))

    def find_lost_in(self, connection: sa.Connection) -> set[tuple[str, str, str]]:
        """Return the (task, batch, variant) that this run took, hasn't released, and holds no more.

        What is written in the same transaction then belongs to partitions that nobody else works on.
        """
        c = leases.c
        held = connection.execute(sa.select(c.task, c.batch, c.variant).where(c.run_id == self._run_id)).tuples()
        return self._taken - set(held)

    def renew(self) -> set[tuple[str, str]]:
        """Move the expiry of all leases of this run; return the (batch, variant) that it still holds."""
        mine = leases.c.run_id == self._run_id
        with self._database.write() as connection:
            connection.execute(sa.update(leases).where(mine).values(expires_at=self._expiry()))
            return set(connection.execute(sa.select(leases.c.batch, leases.c.variant).where(mine)).tuples())

    def release_all(self) -> None:
        """Give back whatever this run still holds."""
        with self._database.write() as connection:
            connection.execute(sa.delete(leases).where(leases.c.run_id == self._run_id))

    def release(self, task: str, batch: str, variant: str) -> None:
        """Give a partition's lease back, if it is still this run's."""
        with self._database.write() as connection:
            self.release_in(connection, task, batch, variant)

    def release_in(self, connection: sa.Connection, task: str, batch: str, variant: str) -> None:
        """Give a lease back inside the caller's transaction."""
        c = leases.c
        where = (c.task == task, c.batch == batch, c.variant == variant, c.run_id == self._run_id)
        connection.execute(sa.delete(leases).where(*where))
        self._taken.discard((task, batch, variant))

    def _expiry(self) -> dt.datetime:
        return self._clock() + dt.timedelta(seconds=self._lease_s)


class Live(NamedTuple):
    """A live run that works on a partition, and where its process is: `pid 12 on host`."""

    run_id: str
    place: str


def load_live(
    connection: sa.Connection, task: str, clock: Callable[[], dt.datetime] = now
) -> dict[tuple[str, str], Live]:
    """Return the partitions that live runs work on, by (batch, variant). Those that can be taken over are absent."""
    rows = connection.execute(sa.select(leases).where(leases.c.task == task)).mappings()
    at = clock()
    held = (r for r in rows if _is_held(r, at))
    return {(r["batch"], r["variant"]): Live(r["run_id"], f"pid {r['pid']} on {r['host']}") for r in held}


def load_holders(connection: sa.Connection) -> set[str]:
    """Return the runs that hold a lease, of any task, which has not run out."""
    return set(connection.scalars(sa.select(leases.c.run_id).where(leases.c.expires_at > now()).distinct()))
