"""Which folder each host has its frames in: hosts that share a store need one and the same.

A folder holds a marker, a file with a name of its own: two paths with one marker are one folder, wherever it is
mounted.
"""

import contextlib
import datetime as dt
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from batch_assets.store.database import Database, now
from batch_assets.store.tables import frame_folders

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
    """Remember that this host has its frames in a folder. Does nothing if the folder can't be marked.

    To write frames there fails by itself then, and in plain words.
    """
    marker = find_marker(folder) or _mark(folder)
    if not marker:
        return
    host, name, at, c = socket.gethostname(), str(folder), now(), frame_folders.c
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
    """Put a marker into a folder; return it. If another process is just doing it, it is read the next time."""
    marker = uuid.uuid4().hex
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / MARKER).open("x", encoding="ascii") as file:
            file.write(marker + "\n")
    except OSError:
        return find_marker(folder)
    return marker
