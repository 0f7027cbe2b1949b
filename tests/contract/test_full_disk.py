"""A disk that takes no more: what was done is kept, files are whole or not there, and the next run goes on."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import psycopg2
import pytest
import sqlalchemy as sa
from factories import (
    ScriptedEngine,
    load_rows,
    load_statuses,
    make_ids,
    make_inputs,
    make_records,
    make_task,
    run_partitions,
)
from sqlalchemy.exc import OperationalError

from batch_assets.core.errors import StoreError
from batch_assets.store.database import Database, is_connection_lost, open_database
from batch_assets.store.frames import FrameStore


class PostgresqlFull(psycopg2.OperationalError):
    """What the server says, with its code, which can't be set on an error made by hand."""

    pgcode = "53100"


@contextmanager
def full_disk(database: Database, free_pages: int) -> Iterator[None]:
    """Let a SQLite store grow by so many pages and no more."""

    def limit(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={limit_pages}")

    with database.read() as connection:
        limit_pages = int(connection.exec_driver_sql("PRAGMA page_count").scalar_one()) + free_pages
    sa.event.listen(database.engine, "begin", limit)
    try:
        yield
    finally:
        sa.event.remove(database.engine, "begin", limit)
        with database.read() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={2**30}")


def test_a_full_disk_stops_the_run_in_plain_words_and_the_next_run_goes_on(
    sqlite_database: Database, tmp_path: Path
) -> None:
    database = sqlite_database
    inputs = make_inputs(make_task(tmp_path), "b1", make_records(make_ids(200)))
    engine = ScriptedEngine()
    with full_disk(database, 20), pytest.raises(StoreError, match="the store's disk is full: make room") as told:
        run_partitions(database, engine, inputs, max_in_flight=4, group_rows=4)
    assert "what was committed before is kept" in str(told.value)
    committed = load_rows(database)
    assert 0 < len(committed) < 200
    again = ScriptedEngine()
    run_partitions(database, again, inputs)
    assert {f"text of {i}" for i in committed}.isdisjoint(again.asked)
    assert set(load_statuses(database).values()) == {"ok"}
    assert len(load_rows(database)) == 200


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PostgresqlFull(), "the disk of the store's PostgreSQL is full"),
        ("SQLITE_FULL", "the store's disk is full"),
        ("SQLITE_IOERR_WRITE", "the store's disk can't be read or written"),
        ("SQLITE_READONLY_DBMOVED", "the store's file can't be written"),
        ("SQLITE_CORRUPT", "the store's file is damaged"),
        ("SQLITE_BUSY", "another process has kept the store locked"),
    ],
)
def test_what_ails_a_store_is_told_by_its_code_and_counts_as_no_lost_connection(
    sqlite_database: Database, error: str | Exception, words: str
) -> None:
    if isinstance(error, str):
        code = error
        error = sqlite3.OperationalError("words that nobody reads")
        error.sqlite_errorcode = getattr(sqlite3, code)
    with pytest.raises(StoreError, match=words) as told, sqlite_database.write():
        raise OperationalError("COMMIT", {}, error)
    assert not is_connection_lost(told.value)


def test_an_error_of_another_kind_is_passed_on_as_it_is(sqlite_database: Database) -> None:
    with pytest.raises(OperationalError), sqlite_database.write() as connection:
        connection.execute(sa.text("SELECT * FROM nowhere"))


FILL = """
import resource, signal, sys
from pathlib import Path
import polars as pl
from batch_assets.cli.export_output import write_output
from batch_assets.core.errors import BatchAssetsError
from batch_assets.store.frames import FrameStore

frame = pl.DataFrame({"a": [f"{n} of them" * 10 for n in range(50_000)]})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
what, folder = sys.argv[1], Path(sys.argv[2])
try:
    if what == "frame":
        FrameStore(folder).write(frame, "t", "kind", "b1")
    elif what in ("one block", "many blocks"):
        blocks = [frame] if what == "one block" else frame.iter_slices(50)
        with FrameStore(folder).stage(blocks, frame.schema, "t", "kind", "b1") as staged:
            staged.put()
    else:
        write_output(str(folder / "out"), getattr(frame.lazy(), what))
except BatchAssetsError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.parametrize("what", ["frame", "one block", "many blocks", "sink_parquet", "sink_csv", "sink_ndjson"])
def test_a_file_that_finds_no_room_is_not_there_and_the_one_before_is(tmp_path: Path, what: str) -> None:
    is_frame = not what.startswith("sink")
    path = FrameStore(tmp_path).path("t", "kind", "b1") if is_frame else tmp_path / "out"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"the one before")
    command = [sys.executable, "-c", FILL, what, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    kind = "StoreError" if is_frame else "ConfigError"
    assert done.stdout.startswith(f"{kind} {path} can't be written: "), done.stdout + done.stderr
    assert "File too large" in done.stdout
    assert path.read_bytes() == b"the one before"
    assert list(path.parent.iterdir()) == [path]


DIE = """
import os, signal, sys
from pathlib import Path
from batch_assets.store.frames import write_whole

def write(file):
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_whole(Path(sys.argv[1]), write)
"""


@pytest.mark.parametrize("before", [None, b"the one before"])
def test_a_write_killed_in_the_middle_leaves_what_was_there(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "frame.parquet"
    if before is not None:
        path.write_bytes(before)
    done = subprocess.run([sys.executable, "-c", DIE, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_file_has_its_name_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FrameStore(tmp_path).path("t", "kind", "b1")
    seen: list[tuple[bool, bool]] = []

    def look(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").resolve()
        seen.append((target.is_dir(), path.exists()))

    monkeypatch.setattr("os.fsync", look)
    FrameStore(tmp_path).write(pl.DataFrame({"n": [1]}), "t", "kind", "b1")
    assert seen == [(False, False), (True, True)], "the file, then its name, then the folder that has the name"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_whose_file_is_gone_takes_nothing_in(tmp_path: Path, is_replaced: bool) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    (tmp_path / "store.db").rename(tmp_path / "moved.db")
    if is_replaced:
        (tmp_path / "store.db").touch()
    with pytest.raises(StoreError, match="store.db is gone, or another has taken its place"), database.write():
        raise AssertionError
    database.close()
