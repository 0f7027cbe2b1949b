"""Leases: who works on a partition now. A lease ends by release, by expiry, or with its process on this host."""

import datetime as dt
import os
import socket
from dataclasses import dataclass
from functools import lru_cache

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
    """A process, told apart from a later one with the same pid by when it started."""

    host: str
    pid: int
    process_started: float

    def is_dead(self) -> bool:
        """Say whether the process is known to be gone; False where it can't be known, as on another host.

        A zombie is gone: it only waits to be reaped, for ever where it is the child of a container's first process.
        """
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            is_another = abs(process.create_time() - self.process_started) > 1
            return is_another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


@lru_cache(maxsize=1)
def _started(pid: int) -> float:
    return psutil.Process(pid).create_time()


def this_process() -> Holder:
    """Return the holder that this process is."""
    pid = os.getpid()
    return Holder(host=socket.gethostname(), pid=pid, process_started=_started(pid))


class LeaseBook:
    """The leases of one run. Times come from this host's clock; hosts that share a store should agree to seconds."""

    def __init__(self, database: Database, run_id: str, lease_s: float = LEASE_S) -> None:
        self._database = database
        self._run_id = run_id
        self._lease_s = lease_s

    def acquire(self, task: str, batch: str, variant: str) -> None:
        """Take the lease of a partition. Raises PartitionLeased, naming the run that holds it."""
        where = (leases.c.task == task, leases.c.batch == batch, leases.c.variant == variant)
        me = this_process()
        try:
            with self._database.write() as connection:
                row = connection.execute(sa.select(leases).where(*where).with_for_update()).mappings().first()
                if row is not None:
                    holder = Holder(host=row["host"], pid=row["pid"], process_started=row["process_started"])
                    if row["run_id"] != self._run_id and row["expires_at"] > now() and not holder.is_dead():
                        raise PartitionLeased(
                            f"{task} {batch}|{variant}: run {row['run_id']} works on it (pid {holder.pid} on "
                            f"{holder.host}, lease until {row['expires_at']:%H:%M:%S} UTC)"
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

    def _expiry(self) -> dt.datetime:
        return now() + dt.timedelta(seconds=self._lease_s)


def load_live(connection: sa.Connection, task: str) -> dict[tuple[str, str], str]:
    """Return the partitions that live runs work on: (batch, variant) to run_id. Dead and expired leases don't count."""
    rows = connection.execute(sa.select(leases).where(leases.c.task == task, leases.c.expires_at > now())).mappings()
    return {
        (r["batch"], r["variant"]): r["run_id"]
        for r in rows
        if not Holder(host=r["host"], pid=r["pid"], process_started=r["process_started"]).is_dead()
    }


def load_holders(connection: sa.Connection) -> set[str]:
    """Return the runs that hold a lease, of any task, which has not run out."""
    return set(connection.scalars(sa.select(leases.c.run_id).where(leases.c.expires_at > now()).distinct()))
