"""Where an export goes: which names are refused, what a failed or killed write leaves behind."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from batch_assets.cli.export_output import Format, choose_format, choose_output, write_output
from batch_assets.core.errors import ConfigError, NotReadyError


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        (None, None, Format.PARQUET),
        (None, "x.csv", Format.CSV),
        (None, "x.JSONL", Format.JSONL),
        (None, "x.txt", Format.PARQUET),
        (None, "csv", Format.PARQUET),
        ("csv", "x.parquet", Format.CSV),
        ("jsonl", "-", Format.JSONL),
    ],
)
def test_the_format_goes_by_its_name_else_by_the_ending(name: str | None, output: str | None, expected: Format) -> None:
    assert choose_format(name, output) is expected


@pytest.mark.parametrize(
    ("batches", "variants", "expected"),
    [
        ([], [], "t.csv"),
        ([], ["v1--m1"], "t--v1--m1.csv"),
        (["b1"], [], "t--b1.csv"),
        (["b1", "b2-*"], ["v1--m1"], "t--b1--b2---v1--m1.csv"),
    ],
)
def test_a_part_of_a_task_doesnt_get_the_name_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[str], variants: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_output(None, "t", batches, variants, Format.CSV) == expected


def test_places_that_cant_be_a_file_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for output, words in [
        (tmp_path, "a folder"),
        (fifo, "neither a file"),
        (tmp_path / "no" / "x.csv", "no folder"),
        (Path("/dev/null"), "neither a file"),
    ]:
        with pytest.raises(ConfigError, match=words):
            choose_output(str(output), "t", [], [], Format.CSV)
    with pytest.raises(ConfigError, match="Parquet needs a file"):
        choose_output("-", "t", [], [], Format.PARQUET)


@pytest.mark.parametrize("output", ["a" * 300 + ".csv", "a" * 300 + "/a.csv"])
def test_a_name_that_no_file_system_takes_is_refused(output: str) -> None:
    with pytest.raises(ConfigError, match="^--output a.*: File name too long"):
        choose_output(output, "t", [], [], Format.CSV)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise NotReadyError("no")

    with pytest.raises(NotReadyError):
        write_output(str(path), fail)
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]
    assert path.read_text() == "old"


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    def fill(_file: BinaryIO) -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(ConfigError, match=r"x\.csv can't be written: .*No space left"):
        write_output(str(tmp_path / "x.csv"), fill)
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("real.csv")
    assert write_output(str(tmp_path / "link.csv"), lambda f: f.write(b"new")) == 3
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f".x.csv.{ended.pid}.1.tmp"
    alive = tmp_path / f".x.csv.{os.getppid()}.1.tmp"
    reused = tmp_path / f".x.csv.{os.getpid()}.1.tmp"
    others = [tmp_path / name for name in (f".y.csv.{ended.pid}.1.tmp", ".x.csv.notes.tmp", f".x.csv.{ended.pid}.bak")]
    for path in (dead, alive, reused, *others):
        path.write_text("half")
    before_us = time.time() - 10 * 365 * 86400
    os.utime(reused, (before_us, before_us))
    write_output(str(tmp_path / "x.csv"), lambda f: f.write(b"new"))
    assert set(tmp_path.iterdir()) == {tmp_path / "x.csv", alive, *others}
