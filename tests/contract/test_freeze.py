"""Freezing a batch: store and frame agree, whoever else freezes it at the same time, and wherever a kill strikes."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from factories import HookedDatabase, Stage

from batch_assets.core.asset_names import SOURCE_RECORDS
from batch_assets.core.tasks import Task
from batch_assets.pipeline.freeze import freeze_batches
from batch_assets.pipeline.platform import Platform
from batch_assets.sources.base import SourceBatch
from batch_assets.store.batches import load_batch, load_owned
from batch_assets.store.database import Database

CONTENTS = {"old": {"1": "one", "2": "two"}, "new": {"2": "two, edited", "3": "three"}}


class PausingDatabase(Database):
    """A store that calls `pause` before each write begins and after it has ended, with `before 1`, `after 1`, …"""

    def __init__(self, database: Database, pause: Callable[[str], object]) -> None:
        super().__init__(database.engine)
        self._pause = pause
        self._writes = 0

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        self._writes += 1
        number = self._writes
        self._pause(f"before {number}")
        with super().write() as connection:
            yield connection
        self._pause(f"after {number}")


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.fixture
def stage(tmp_path: Path, store_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, store_url)
    made.write("b1", CONTENTS["old"])
    yield made
    made.platform.database.close()
    made.instance.dispose()


def freeze(stage: Stage, task: Task, platform: Platform | None = None) -> None:
    list(freeze_batches(task, stage.source, platform or stage.platform, ["b1"], "run"))


def check_agreement(stage: Stage, *, wanted: str | None = None) -> None:
    """See that the frame, the batch's row and the owners of its ids are of one content."""
    with stage.platform.database.read() as connection:
        state = load_batch(connection, "t", "b1")
        owned = load_owned(connection, "t", "b1")
    frame = stage.platform.frames.read("t", SOURCE_RECORDS, "b1")
    assert state is not None
    assert frame is not None
    assert SourceBatch(frame=frame, malformed=state.malformed).source_hash == state.source_hash
    assert set(frame["item_id"]) == owned
    if wanted:
        assert dict(zip(frame["item_id"], frame["text"], strict=True)) == CONTENTS[wanted]
    left = [p.name for p in stage.platform.frames.path("t", SOURCE_RECORDS, "b1").parent.iterdir()]
    assert left == ["b1.parquet"]


@pytest.mark.parametrize("moment", ["before 1", "after 1", "before 2", "after 2"])
@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_batch_that_another_run_freezes_meanwhile_is_of_one_content(
    stage: Stage, moment: str, first: str, second: str, is_frozen: bool
) -> None:
    task = stage.task()
    if is_frozen:
        freeze(stage, task)
    seen: list[str] = []

    def pause(now: str) -> None:
        if now == moment:
            seen.append(now)
            stage.write("b1", CONTENTS[second])
            freeze(stage, task)

    stage.write("b1", CONTENTS[first])
    freeze(stage, task, replace(stage.platform, database=PausingDatabase(stage.platform.database, pause)))
    assert seen == [moment]
    check_agreement(stage, wanted=second if moment == "after 2" else first)
    stage.write("b1", CONTENTS[second])
    os.utime(stage.source.list_batches()[0].locator, ns=(1, 1))
    freeze(stage, task)
    check_agreement(stage, wanted=second)


def test_who_comes_while_a_batch_is_being_put_in_place_waits(stage: Stage) -> None:
    task = stage.task()
    freeze(stage, task)
    raised: list[BaseException] = []

    def freeze_other() -> None:
        try:
            freeze(stage, task)
        except BaseException as e:  # noqa: BLE001 - the test looks at it
            raised.append(e)

    other = threading.Thread(target=freeze_other)

    def start_other(write: int) -> None:
        if write == 2:  # the frame is in its place, and the row isn't committed
            stage.write("b1", CONTENTS["old"])
            other.start()

    stage.write("b1", CONTENTS["new"])
    freeze(stage, task, replace(stage.platform, database=HookedDatabase(stage.platform.database, start_other)))
    other.join()
    assert raised == []
    check_agreement(stage, wanted="old")


@pytest.mark.parametrize("is_reverted", [True, False])
def test_a_freeze_killed_before_its_commit_is_done_again_even_if_the_file_is_as_before(
    stage: Stage, is_reverted: bool
) -> None:
    task = stage.task()
    freeze(stage, task)
    path = Path(stage.source.list_batches()[0].locator)
    before = path.stat().st_mtime_ns

    def kill(write: int) -> None:
        if write == 2:
            raise Killed

    stage.write("b1", CONTENTS["new"])
    with pytest.raises(Killed):
        freeze(stage, task, replace(stage.platform, database=HookedDatabase(stage.platform.database, kill)))
    if is_reverted:
        stage.write("b1", CONTENTS["old"])
        os.utime(path, ns=(before, before))
    for is_counting in (True, False):
        assert [ref.batch for ref in stage.plan(task, is_counting=is_counting).unfrozen] == ["b1"]
    freeze(stage, task)
    check_agreement(stage, wanted="old" if is_reverted else "new")
    assert stage.plan(task).unfrozen == ()
