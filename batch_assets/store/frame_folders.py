"""Which folder each host has its frames in: hosts that share a store need one and the same.

A folder holds a marker, a file with a name of its own: two paths with one marker are one folder, wherever it is
mounted.
"""

import contextlib
import datetime as dt
import logging
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from batch_assets.core.errors import StoreError
from batch_assets.store.database import Database, now
from batch_assets.store.tables import frame_folders

_log = logging.getLogger(__name__)

MARKER = ".folder_id"
SEEN_EVERY = dt.timedelta(days=1)
"""How exactly the store knows when a folder was last opened: a write a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFolder:
    """A folder of frames as a host names it. Equal markers mean the same folder."""

    host: str
    folder: str
    marker: str
    seen_at: dt.datetime


def record_frame_folder(database: Database, folder: Path) -> None:
    """Remember that this host has its frames in a folder, if folder and store take that in.

    If one doesn't, whoever writes frames or rows is told in plain words; to look at a store needs neither.
    """
    marker = find_marker(folder) or _mark(folder)
    if marker:
        try:
            _record(database, socket.gethostname(), str(folder), marker)
        except (SQLAlchemyError, StoreError) as e:
            _log.info("the store took no note of the folder of frames: %s", e)


def _record(database: Database, host: str, name: str, marker: str) -> None:
    at, c = now(), frame_folders.c
    with database.read() as connection:
        where = (c.host == host, c.folder == name)
        known = connection.execute(sa.select(c.marker, c.seen_at).where(*where)).first()
    if known is not None and known.marker == marker and at - known.seen_at < SEEN_EVERY:
        return
    with database.write() as connection:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        row = insert(frame_folders).values(host=host, folder=name, marker=marker, seen_at=at)
        connection.execute(
            row.on_conflict_do_update(index_elements=[c.host, c.folder], set_={"marker": marker, "seen_at": at})
        )


def find_marker(folder: Path) -> str:
    """Return the marker in a folder of frames; empty if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return (folder / MARKER).read_text(encoding="ascii").strip()[:32]
    return ""


def load_frame_folders(connection: sa.Connection) -> list[FrameFolder]:
    """Return the folders that hosts have opened, by host and name."""
    rows = connection.execute(sa.select(frame_folders).order_by(frame_folders.c.host, frame_folders.c.folder))
    return [FrameFolder(**row) for row in rows.mappings()]


def find_others(folders: Sequence[FrameFolder], marker: str, since: dt.datetime) -> list[FrameFolder]:
    """Return the folders opened `since` then that are not the one with this marker."""
    return [f for f in folders if f.marker != marker and f.seen_at >= since]


def _mark(folder: Path) -> str:
    """Put a marker into a folder, whole or not at all; return the one that is there then."""
    marker = uuid.uuid4().hex
    temporary, path = folder / f"{MARKER}.{marker}", folder / MARKER
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(marker + "\n", encoding="ascii")
            _put(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return find_marker(folder)


def _put(temporary: Path, path: Path) -> None:
    """Give a file its name, unless another has it."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    except OSError:  # a disk without hard links; of two that do this at once, the later one's marker stays
        temporary.rename(path)
