"""Which folder each host has its frames in, as the store knows it. On SQLite and PostgreSQL."""

import datetime as dt
import socket
from pathlib import Path

import sqlalchemy as sa
from factories import HookedDatabase, run_at_once

from batch_assets.core.errors import StoreError
from batch_assets.store.database import Database, now
from batch_assets.store.frame_folders import (
    MARKER,
    FrameFolder,
    find_marker,
    find_others,
    load_frame_folders,
    record_frame_folder,
)
from batch_assets.store.tables import frame_folders


def load(database: Database) -> list[FrameFolder]:
    with database.read() as connection:
        return load_frame_folders(connection)


def test_one_folder_under_two_paths_has_one_marker_and_another_folder_has_its_own(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "frames")
    for name in ("frames", "mounted", "other/frames"):
        record_frame_folder(database, tmp_path / name)
    found = {f.folder: f for f in load(database)}
    assert {f.host for f in found.values()} == {socket.gethostname()}
    frames, mounted, other = (found[str(tmp_path / name)] for name in ("frames", "mounted", "other/frames"))
    assert frames.marker == mounted.marker == find_marker(tmp_path / "frames")
    assert find_others(list(found.values()), frames.marker, now() - dt.timedelta(days=1)) == [other]
    assert find_others(list(found.values()), frames.marker, now() + dt.timedelta(days=1)) == []


def test_a_folder_that_is_known_is_written_once_a_day(database: Database, tmp_path: Path) -> None:
    hooked = HookedDatabase(database, lambda _number: None)
    for _ in range(3):
        record_frame_folder(hooked, tmp_path)
    assert hooked.writes == 1
    with database.write() as connection:
        connection.execute(sa.update(frame_folders).values(seen_at=now() - dt.timedelta(days=2)))
    record_frame_folder(hooked, tmp_path)
    assert hooked.writes == 2
    assert now() - load(database)[0].seen_at < dt.timedelta(hours=1)


def test_a_folder_that_was_made_anew_is_another_one(database: Database, tmp_path: Path) -> None:
    record_frame_folder(database, tmp_path)
    before = load(database)[0].marker
    (tmp_path / MARKER).unlink()
    record_frame_folder(database, tmp_path)
    (after,) = load(database)
    assert after.marker == find_marker(tmp_path) != before


def test_a_folder_that_cant_be_marked_is_not_recorded_and_stops_nobody(database: Database, tmp_path: Path) -> None:
    (tmp_path / "frames").write_text("a file")
    record_frame_folder(database, tmp_path / "frames")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / MARKER).write_bytes(b"")  # of whoever copied it badly
    record_frame_folder(database, tmp_path / "half")
    assert load(database) == []


def test_a_store_that_takes_nothing_in_is_opened_all_the_same(database: Database, tmp_path: Path) -> None:
    def refuse(_number: int) -> None:
        raise StoreError("the store's disk is full")

    record_frame_folder(HookedDatabase(database, refuse), tmp_path)
    assert load(database) == []
    record_frame_folder(database, tmp_path)
    assert [f.marker for f in load(database)] == [find_marker(tmp_path)]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(MARKER)] == [MARKER]


def test_many_that_open_a_new_folder_at_once_agree_on_its_marker(database: Database, tmp_path: Path) -> None:
    assert run_at_once(*[lambda: record_frame_folder(database, tmp_path / "frames")] * 4) == []
    record_frame_folder(database, tmp_path / "frames")
    assert [f.marker for f in load(database)] == [find_marker(tmp_path / "frames")] != [""]
