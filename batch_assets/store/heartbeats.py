"""Heartbeats: which runs have a live process. One per run, whatever the run does: ask, freeze, make results, report.

Of a run on another host nothing else tells. All moments here are the database's, so no host's clock matters.
"""

import datetime as dt
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from batch_assets.core.errors import StoreError
from batch_assets.store.database import Database, find_moment
from batch_assets.store.leases import HEARTBEAT_S, LEASE_S, this_process
from batch_assets.store.tables import runs

SILENT_S = LEASE_S
"""So long without a sign of life, and a run is doubted."""
DOUBT_S = 2 * HEARTBEAT_S
"""So long doubted and still silent, and it is dead. While the database was away, nobody could give a sign."""

FORGOTTEN_AFTER = dt.timedelta(days=7)
"""So long silent, and a row is removed: its run was ended by somebody else after its process was killed."""
PATIENCE_S = 10.0
"""How long the end of a run waits for a sign of life that is on its way."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """The sign of life that this process gives for one run."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    def beat(self) -> None:
        """Give a sign of life."""
        me = this_process()
        mine = {"host": me.host, "pid": me.pid, "process_started": me.process_started, "doubted_at": None}
        with self._database.write() as connection:
            at = find_moment(connection)
            values = {**mine, "beat_at": at}
            known = connection.execute(sa.update(runs).where(runs.c.run_id == self._run_id).values(**values))
            if not known.rowcount:
                connection.execute(sa.delete(runs).where(runs.c.beat_at < at - FORGOTTEN_AFTER))
                connection.execute(sa.insert(runs).values(run_id=self._run_id, **values))

    def end(self) -> None:
        """Give no more signs: the run's work is done in this process."""
        me, c = this_process(), runs.c
        mine = (c.run_id == self._run_id, c.host == me.host, c.pid == me.pid, c.process_started == me.process_started)
        with self._database.write() as connection:
            connection.execute(sa.delete(runs).where(*mine))


@contextmanager
def keep_heartbeat(database: Database, run_id: str, every_s: float = HEARTBEAT_S) -> Generator[None, None, None]:
    """Give signs of life for a run, from a thread, until the block ends. A store that takes none in stops no run.

    If the block is interrupted, nothing waits for the store, which may be what hangs. The row that is left then says
    nothing of a run that has ended, and is removed after a week.
    """
    heartbeat, has_ended = Heartbeat(database, run_id), threading.Event()
    _try(heartbeat.beat, run_id)

    def keep() -> None:
        while not has_ended.wait(every_s):
            _try(heartbeat.beat, run_id)

    thread = threading.Thread(target=keep, name=f"heartbeat of {run_id}", daemon=True)
    thread.start()
    is_interrupted = True
    try:
        yield
        is_interrupted = False
    except Exception:
        is_interrupted = False
        raise
    finally:
        has_ended.set()
        if not is_interrupted:
            thread.join(PATIENCE_S)  # else its last sign could come after the end
            _try(heartbeat.end, run_id)


def _try(call: Callable[[], None], run_id: str) -> None:
    try:
        call()
    except (SQLAlchemyError, StoreError) as e:
        _log.info("the store took no sign of life of run %s: %s", run_id, e)


def doubt_silent(database: Database, run_ids: Iterable[str]) -> dict[str, bool]:
    """Say of runs that have a heartbeat whether it has ended, by their id; of other versions' runs there is none.

    A run that has been silent for SILENT_S is doubted, and dead if it is silent for DOUBT_S more: it takes two looks. A
    sign of life takes the doubt away.
    """
    asked = set(run_ids)
    if not asked:
        return {}
    with database.read() as connection:
        at = find_moment(connection)
        rows = connection.execute(sa.select(runs)).mappings()
        found = {row["run_id"]: row for row in rows if row["run_id"] in asked}
    silent = {run_id for run_id, row in found.items() if (at - row["beat_at"]).total_seconds() > SILENT_S}
    new = [run_id for run_id in silent if found[run_id]["doubted_at"] is None]
    if new:
        with database.write() as connection:
            for run_id in new:
                same = (runs.c.run_id == run_id, runs.c.beat_at == found[run_id]["beat_at"])
                connection.execute(sa.update(runs).where(*same).values(doubted_at=find_moment(connection)))
    return {
        run_id: run_id in silent
        and row["doubted_at"] is not None
        and (at - row["doubted_at"]).total_seconds() > DOUBT_S
        for run_id, row in found.items()
    }


def forget_run(connection: sa.Connection, run_id: str) -> None:
    """Remove the heartbeat of a run that has been ended."""
    connection.execute(sa.delete(runs).where(runs.c.run_id == run_id))
