"""The store as `doctor` looks at it: opened for reading alone, and never made or migrated."""

import datetime as dt
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from batch_assets.core.errors import StoreError
from batch_assets.store.database import MIGRATIONS, SHARED_VERSION_TABLE, VERSION_TABLE, describe_url, parse_url
from batch_assets.store.frame_folders import FrameFolder, load_frame_folders
from batch_assets.store.tables import alerts, batches, frame_folders, microbatches, partitions, results

STATEMENT_S = 3


class StoreSize(NamedTuple):
    """How many rows a store has of what people count."""

    results: int
    batches: int
    partitions: int


class LateAlerts(NamedTuple):
    """Alerts that could not be delivered yet, and how often the unluckiest was tried."""

    waiting: int
    tries: int


class StoreInspection:
    """Answers to a doctor's questions. The schema may be an earlier one, or not there at all.

    Each method raises StoreError if the database refuses or takes longer than STATEMENT_S.
    """

    def __init__(self, connection: sa.Connection, place: str) -> None:
        self._connection = connection
        self._place = place

    @property
    def is_postgresql(self) -> bool:
        """Whether a server answers, with a clock of its own."""
        return self._connection.dialect.name == "postgresql"

    def find_revision(self) -> str | None:
        """Return the revision of our schema; None if there is none. Stores of old keep it in another table."""
        known, version = set(list_revisions()), sa.column("version_num", sa.String)
        for table in (VERSION_TABLE, SHARED_VERSION_TABLE):
            if self.has_tables([table, results.name]):
                with self._asking():
                    found = list(self._connection.scalars(sa.select(version).select_from(sa.table(table))))
                if found:
                    return next((revision for revision in found if revision in known), found[0])
        return None

    def has_tables(self, names: Iterable[str]) -> bool:
        """Say whether all these tables are there."""
        with self._asking():
            inspector = sa.inspect(self._connection)
            return all(inspector.has_table(name) for name in names)

    def measure(self) -> StoreSize:
        """Return how many rows there are."""
        counts = (sa.select(sa.func.count()).select_from(table) for table in (results, batches, partitions))
        with self._asking():
            return StoreSize(*(self._connection.scalar(query) or 0 for query in counts))

    def ask_clock(self) -> dt.datetime | None:
        """Return the moment by the server's clock; None without a server."""
        with self._asking():
            return self._connection.scalar(sa.select(sa.func.clock_timestamp())) if self.is_postgresql else None

    def count_microbatches(self, task: str) -> int:
        """Return how many microbatches a task has."""
        if not self.has_tables([microbatches.name]):
            return 0
        query = sa.select(sa.func.count()).where(microbatches.c.task == task)
        with self._asking():
            return self._connection.scalar(query) or 0

    def count_late_alerts(self) -> LateAlerts:
        """Return what failed to be delivered and waits for another try."""
        if not self.has_tables([alerts.name]):
            return LateAlerts(0, 0)
        c = alerts.c
        late = sa.select(sa.func.count(), sa.func.max(c.tries)).where(c.sent_at.is_(None), c.tries > 0)
        with self._asking():
            waiting, tries = self._connection.execute(late).one()
        return LateAlerts(waiting, tries or 0)

    def load_frame_folders(self) -> list[FrameFolder]:
        """Return where hosts have their frames."""
        if not self.has_tables([frame_folders.name]):
            return []
        with self._asking():
            return load_frame_folders(self._connection)

    @contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except DBAPIError as e:
            raise StoreError(f"{self._place} can't be read: {str(e.orig).strip()}") from e


@contextmanager
def open_for_reading(url: str) -> Generator[StoreInspection | None]:
    """Yield what answers about a store; None if the store isn't made yet. Raises StoreError if it can't be read.

    A SQLite file that nobody has open is read as one that can't change, so that no file is made beside it.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if not path.exists():
            yield None
            return
        is_quiet = not path.with_name(f"{path.name}-wal").exists()
        place = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_quiet else ''}"
        engine = sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(place, uri=True, timeout=STATEMENT_S), poolclass=sa.NullPool
        )
    else:
        options = f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_S * 1000}"
        engine = sa.create_engine(
            parsed, connect_args={"options": options}, poolclass=sa.NullPool, hide_parameters=True
        )
    try:
        connection = engine.connect()
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")  # the first read opens the file
    except DBAPIError as e:
        raise StoreError(f"{describe_url(url)} can't be opened: {str(e.orig).strip()}") from e
    with connection:
        yield StoreInspection(connection, describe_url(url))


def list_revisions() -> list[str]:
    """Return the revisions of the schema that this version knows, the newest first."""
    return [r.revision for r in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
