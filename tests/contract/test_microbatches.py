"""Microbatches from a stream's rows to a task's batches: nothing lost, nothing twice, whoever is killed."""

import datetime as dt
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from factories import make_platform, make_source, make_task, run_at_once
from streams import ListStream, add_rows, count_batched, execute, load_batches, make_sql_source, make_table

from batch_assets.core.errors import SourceError, find_cause
from batch_assets.dagster.asset_keys import load_recorded
from batch_assets.dagster.partitions import sync_partitions
from batch_assets.dagster.sensors.microbatches import build_microbatch_sensor
from batch_assets.pipeline.freeze import freeze_batches
from batch_assets.pipeline.plan import make_plan
from batch_assets.pipeline.stored_batches import StoredBatches, bind_source
from batch_assets.sources.base import StreamSource
from batch_assets.sources.stream import FormReport, Microbatched, form_batches
from batch_assets.store.database import Database, open_database
from batch_assets.store.microbatches import MicrobatchLog

NOON = dt.datetime(2026, 11, 1, 12, 0, tzinfo=dt.UTC)
FORMER = """
import datetime as dt, sys
from streams import make_sql_source
from batch_assets.sources.stream import form_batches
from batch_assets.store.database import open_database
from batch_assets.store.microbatches import MicrobatchLog

log = MicrobatchLog(open_database(sys.argv[1]), "t")
stream = make_sql_source(sys.argv[2], max_records=7, max_age_s=0, lookback=50)
print("ready", flush=True)
while True:
    form_batches(stream, log, now=dt.datetime.now(dt.UTC), max_batches=3)
"""


def form(
    stream: StreamSource, database: Database, *, at_s: float = 0, max_batches: int = 20, task: str = "t"
) -> FormReport:
    now = NOON + dt.timedelta(seconds=at_s)
    return form_batches(stream, MicrobatchLog(database, task), now=now, max_batches=max_batches)


def form_all(stream: StreamSource, database: Database) -> None:
    while form(stream, database).formed:
        pass


# By count and by age


def test_full_batches_form_at_once_and_the_rest_waits_its_time(sqlite_database: Database) -> None:
    stream = ListStream(*[(f"r{n}", n) for n in range(8)])
    report = form(stream, sqlite_database)
    assert report == FormReport(formed=("20261101-000001", "20261101-000002"), waiting=2)
    assert form(stream, sqlite_database, at_s=59) == FormReport(waiting=2, oldest_wait_s=59)
    stream.add(("r8", 8))
    assert form(stream, sqlite_database, at_s=59.5).formed == ("20261101-000003",)
    stream.add(("r9", 9))
    assert form(stream, sqlite_database, at_s=100) == FormReport(waiting=1)
    assert form(stream, sqlite_database, at_s=160).formed == ("20261101-000004",)
    assert form(stream, sqlite_database, at_s=220) == FormReport()
    assert list(load_batches(sqlite_database).values()) == [
        ["r0", "r1", "r2"],
        ["r3", "r4", "r5"],
        ["r6", "r7", "r8"],
        ["r9"],
    ]


def test_one_call_forms_no_more_than_its_cap_and_the_next_goes_on(sqlite_database: Database) -> None:
    stream = ListStream(*[(f"r{n:02d}", n) for n in range(20)], chunk=20)
    report = form(stream, sqlite_database, max_batches=2)
    assert (len(report.formed), report.is_capped) == (2, True)
    assert report.waiting >= 1
    report = form(stream, sqlite_database, max_batches=20)
    assert (len(report.formed), report.waiting, report.is_capped) == (4, 2, False)
    assert max(count_batched(sqlite_database).values()) == 1
    assert len(count_batched(sqlite_database)) == 18


def test_a_call_reads_no_further_than_its_cap(sqlite_database: Database) -> None:
    read: list[int] = []

    class Watched(ListStream):
        def scan(self, after: Any, until: Any = None) -> Any:
            for chunk in super().scan(after, until):
                read.append(len(chunk))
                yield chunk

    form(Watched(*[(f"r{n:04d}", n) for n in range(1000)]), sqlite_database, max_batches=2)
    assert sum(read) <= 2 * 3 + 2


def test_late_rows_with_an_equal_cursor_come_and_earlier_ones_do_not(sqlite_database: Database) -> None:
    stream = ListStream(("a", 1), ("b", 2), ("c", 2))
    assert len(form(stream, sqlite_database).formed) == 1
    stream.add(("A-late", 2), ("z-late", 2), ("too-late", 1))
    assert form(stream, sqlite_database).waiting == 2
    assert len(form(stream, sqlite_database, at_s=60).formed) == 1
    assert list(load_batches(sqlite_database).values())[-1] == ["A-late", "z-late"]


def test_rows_within_the_lookback_come_late_and_those_before_it_do_not(sqlite_database: Database) -> None:
    stream = ListStream(("a", 100), max_age_s=0, lookback=10)
    form(stream, sqlite_database)
    stream.add(("in", 90), ("equal", 100), ("out", 89))
    assert form(stream, sqlite_database).formed == ("20261101-000002",)
    assert list(load_batches(sqlite_database).values()) == [["a"], ["equal", "in"]]


def test_late_rows_that_wait_are_found_again_until_they_are_batched(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_assets.sources.stream.SWEEP_ROWS", 2)
    stream = ListStream(*[(f"r{n}", 5) for n in range(9)])
    form(stream, sqlite_database)
    stream.add(("late", 5))
    waits = [form(stream, sqlite_database, at_s=at_s).waiting for at_s in range(20)]
    assert waits[-10:] == [1] * 10
    stream.add(("fresh", 6))
    assert form(stream, sqlite_database, at_s=20).waiting == 2
    assert len(form(stream, sqlite_database, at_s=90).formed) == 1
    assert list(load_batches(sqlite_database).values())[-1] == ["late", "fresh"]


@pytest.mark.parametrize("lookback", [0, 10, 1000])
def test_a_sweep_in_parts_misses_no_late_row_while_the_stream_goes_on(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, lookback: float
) -> None:
    monkeypatch.setattr("batch_assets.sources.stream.SWEEP_ROWS", 6)
    chance = random.Random(7)
    stream = ListStream(max_records=2, max_age_s=0, lookback=lookback)
    greatest = 0
    for step in range(60):
        late = greatest - chance.randint(0, int(min(lookback, greatest)))
        greatest += chance.choice([0, 0, 1, 20])
        stream.add((f"late{chance.random()}", late), *[(f"r{chance.random()}", greatest) for _ in range(3)])
        form(stream, sqlite_database, at_s=step, max_batches=chance.choice([1, 2, 5]))
    for step in range(100):
        form(stream, sqlite_database, at_s=1000 + step)
    assert count_batched(sqlite_database) == {row.identity: 1 for row in stream.rows}


def test_a_forming_looks_at_no_more_old_rows_than_a_part(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_assets.sources.stream.SWEEP_ROWS", 10)
    read: list[str] = []

    class Watched(ListStream):
        def scan(self, after: Any, until: Any = None) -> Any:
            for chunk in super().scan(after, until):
                read.extend(row.item_id for row in chunk)
                yield chunk

    stream = Watched(*[(f"r{n:04d}", 1) for n in range(300)])
    form_all(stream, sqlite_database)
    seen: list[set[str]] = []
    for _ in range(40):
        read.clear()
        form(stream, sqlite_database)
        assert len(read) <= 10
        seen.append(set(read))
    assert len(set.union(*seen)) == 300


def test_a_row_that_comes_twice_does_not_stop_the_stream(sqlite_database: Database) -> None:
    stream = ListStream(*[("a", 1)] * 5, ("b", 1), ("b", 2), max_age_s=0)
    assert len(form(stream, sqlite_database).formed) == 1
    assert count_batched(sqlite_database) == {("a", "1"): 1, ("b", "1"): 1, ("b", "2"): 1}


def test_a_report_is_one_line() -> None:
    assert str(FormReport()) == "0 batches formed; 0 rows wait"
    assert str(FormReport(formed=("b1",), waiting=1, oldest_wait_s=41.4)) == (
        "1 batch formed (b1); 1 row waits, the oldest for 41 s"
    )
    report = FormReport(formed=("b1", "b2"), waiting=37, is_capped=True, unseen={"seen": 2})
    assert str(report) == (
        "2 batches formed (b1, b2); at least 37 rows wait, the oldest for 0 s; "
        "WARNING: 2 rows can't be batched: seen is NULL"
    )


def test_rows_that_can_never_be_batched_are_in_the_report(sqlite_database: Database) -> None:
    stream = ListStream()
    stream.nulls = {"seen": 3, "id": 0}
    assert form(stream, sqlite_database).unseen == {"seen": 3}


# From real tables, on both databases each


@pytest.mark.parametrize("lookback", [0, 1000])
def test_every_row_of_a_table_is_batched_once(database: Database, source_url: str, lookback: float) -> None:
    table = make_table(source_url, [(f"r{n:03d}", "x", n // 10) for n in range(100)])
    stream = make_sql_source(source_url, max_records=7, max_age_s=0, lookback=lookback)
    form_all(stream, database)
    add_rows(source_url, table, [(f"late{n}", "x", 9) for n in range(5)])
    form_all(stream, database)
    with_lookback = [("early", "x", 3)]
    add_rows(source_url, table, with_lookback)
    form_all(stream, database)
    expected = {(f"r{n:03d}", str(n // 10)): 1 for n in range(100)} | {(f"late{n}", "9"): 1 for n in range(5)}
    found = count_batched(database)
    assert found == expected | ({("early", "3"): 1} if lookback else {})


def test_moments_of_the_database_are_batched_once(database: Database, source_url: str) -> None:
    kind = "TIMESTAMPTZ DEFAULT now()" if source_url.startswith("postgresql") else "TIMESTAMP DEFAULT CURRENT_TIMESTAMP"
    execute(source_url, f"CREATE TABLE tickets (item_id TEXT, seen {kind})")
    stream = make_sql_source(source_url, cursor="seen", max_records=2, max_age_s=0)
    for n in range(6):  # SQLite's clock gives most of them the same second
        execute(source_url, f"INSERT INTO tickets (item_id) VALUES ('r{n}')")
        form(stream, database)
        assert Counter(i for i, _ in count_batched(database)) == {f"r{m}": 1 for m in range(n + 1)}


def test_a_changed_row_comes_again_and_is_read_as_it_is(database: Database, source_url: str) -> None:
    make_table(source_url, [("a", "old", 1), ("b", "B", 1)])
    stream = make_sql_source(source_url, max_age_s=0)
    source = Microbatched(stream, MicrobatchLog(database, "t"))
    form(stream, database)
    execute(source_url, "UPDATE tickets SET text = 'new', version = 2 WHERE item_id = 'a'")
    form(stream, database)
    first, second = source.list_batches()
    assert source.read(second, ["text"]).frame.rows() == [("a", 1, "new", "2")]
    assert source.read(first, ["text"]).frame["text"].to_list() == ["new", "B"]


@pytest.mark.slow
def test_a_hundred_thousand_rows_with_one_cursor_are_batched_once(sqlite_database: Database, tmp_path: Path) -> None:
    """Slow for its many rows: a bulk load gives all the same time."""
    url = f"sqlite:///{tmp_path / 'many.db'}"
    execute(url, "CREATE TABLE tickets (item_id TEXT PRIMARY KEY, text TEXT, version INTEGER)")
    execute(
        url,
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) "
        "INSERT INTO tickets SELECT printf('r%06d', i), 'x', 1 FROM n",
    )
    stream = make_sql_source(url, max_records=10_000)
    assert len(form(stream, sqlite_database, max_batches=4).formed) == 4
    assert len(form(stream, sqlite_database, max_batches=20).formed) == 6
    assert form(stream, sqlite_database) == FormReport(unseen={})
    found = count_batched(sqlite_database)
    assert (len(found), sum(found.values())) == (100_000, 100_000)


def test_several_at_once_batch_each_row_once(store_url: str, source_url: str) -> None:
    make_table(source_url, [(f"r{n:03d}", "x", n // 3) for n in range(200)])
    stream = make_sql_source(source_url, max_records=9, max_age_s=0)
    stores = [open_database(store_url) for _ in range(4)]
    try:
        assert run_at_once(*[lambda database=database: form_all(stream, database) for database in stores]) == []
        assert count_batched(stores[0]) == {(f"r{n:03d}", str(n // 3)): 1 for n in range(200)}
    finally:
        for store in stores:
            store.close()


# Killed


@pytest.fixture
def killed_url(tmp_path: Path) -> str:
    """The URL of a source whose readers are killed."""
    return f"sqlite:///{tmp_path / 'killed.db'}"


@pytest.fixture
def formers(store_url: str, killed_url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that form batches at the same time until they are killed."""
    command = [sys.executable, "-c", FORMER, store_url, killed_url]
    folder = Path(__file__).parent.parent
    make_table(killed_url)
    started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_killed_at_any_point_no_row_is_lost_and_none_batched_twice(
    store_url: str, killed_url: str, formers: list[subprocess.Popen[str]]
) -> None:
    """Slow for the starts of two processes, each of which is killed in the middle of its work."""
    database = open_database(store_url)
    table = sa.Table(
        "tickets", sa.MetaData(), sa.Column("item_id"), sa.Column("text"), sa.Column("version", sa.Integer)
    )
    rows: list[tuple[str, str, int]] = []

    def add(count: int) -> None:
        new = [(f"r{n:05d}", "x", n - 40 * (n % 2)) for n in range(len(rows), len(rows) + count)]
        add_rows(killed_url, table, new)
        rows.extend(new)

    def count() -> int:
        return len(MicrobatchLog(database, "t").batches())

    for process in formers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in formers:
        add(1500)
        seen = count()
        give_up_at = time.monotonic() + 60
        while count() < seen + 10:
            assert process.poll() is None
            assert time.monotonic() < give_up_at
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert count() < len(rows) // 7, "it was killed when all was done"
    form_all(make_sql_source(killed_url, max_records=7, max_age_s=0, lookback=50), database)
    assert count_batched(database) == {(i, str(version)): 1 for i, _, version in rows}
    log = MicrobatchLog(database, "t")
    assert [key[-6:] for key, _, _ in log.batches()] == [f"{n + 1:06d}" for n in range(count())]
    assert all(len(log.items(key)) == records for key, records, _ in log.batches())
    database.close()


# As a task's source


class Place:
    """A task on a SQL source, with the store that its settings name."""

    def __init__(self, root: Path, store_url: str, source_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BATCH_ASSETS_HOME", str(root / "home"))
        monkeypatch.setenv("BATCH_ASSETS_DB_URL", store_url)
        self.task = make_task(root / "prompts")
        self.stream = make_sql_source(source_url, max_records=2)
        self.source = bind_source("t", self.stream)
        self.platform = make_platform(root / "home", store_url)
        self.instance = dg.DagsterInstance.ephemeral()

    def tick(self) -> str:
        sensor = build_microbatch_sensor(self.task, self.stream)
        with dg.build_sensor_context(instance=self.instance) as context:
            found = sensor(context)
        assert isinstance(found, dg.SkipReason)
        return found.skip_message or ""

    @property
    def keys(self) -> Sequence[str]:
        return self.instance.get_dynamic_partitions("t__batch")


@pytest.fixture
def place(tmp_path: Path, store_url: str, source_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, store_url, source_url, monkeypatch)
    yield made
    made.platform.database.close()


def test_a_stream_is_bound_to_its_batches_and_a_file_source_stays(tmp_path: Path) -> None:
    files = make_source(tmp_path)
    assert bind_source("t", files) is files
    bound = bind_source("t", make_sql_source("sqlite:///s.db"))
    assert bound == Microbatched(make_sql_source("sqlite:///s.db"), StoredBatches("t"))
    assert bind_source("t", bound) is bound
    assert bound.bind(tmp_path) == Microbatched(make_sql_source("sqlite:///s.db").bind(tmp_path), StoredBatches("t"))


def test_the_sensor_forms_batches_and_registers_them(place: Place, source_url: str) -> None:
    table = make_table(source_url)
    assert place.tick() == "0 batches formed; 0 rows wait"
    add_rows(source_url, table, [(f"r{n}", "x", n) for n in range(5)])
    words = place.tick()
    assert words.startswith("2 batches formed (")
    assert words.endswith("; 1 row waits, the oldest for 0 s")
    assert [key[-7:] for key in place.keys] == ["-000001", "-000002"]
    assert place.tick().startswith("0 batches formed; 1 row waits")
    assert len(place.keys) == 2


def test_the_sensor_is_on_by_default_and_tells_what_it_does(place: Place) -> None:
    sensor = build_microbatch_sensor(place.task, place.stream)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("t__microbatches", 30)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert "2 rows make a full one, and none waits longer than 300 s" in (sensor.description or "")


def test_a_tick_registers_what_a_killed_one_has_formed(place: Place, source_url: str) -> None:
    make_table(source_url, [("a", "x", 1), ("b", "x", 2)])
    form(place.stream, place.platform.database)
    assert place.keys == []
    place.tick()
    assert place.keys == ["20261101-000001"]


def test_a_tick_without_the_table_says_so_and_a_later_one_works(place: Place, source_url: str) -> None:
    with pytest.raises(Exception, match="no table or view 'tickets'") as error:
        place.tick()
    assert isinstance(find_cause(error.value), SourceError)
    make_table(source_url, [("a", "x", 1), ("b", "x", 2)])
    assert place.tick().startswith("1 batch formed")


def test_microbatches_are_planned_frozen_and_then_left_alone(place: Place, source_url: str) -> None:
    make_table(source_url, [("a", "A", 1), ("b", "B", 2), ("c", "C", 3)])
    place.tick()
    [ref] = place.source.list_batches()
    sync_partitions(place.task, place.source, place.instance)
    plan = make_plan(place.task, place.source, place.platform, load_recorded(place.instance, place.task))
    assert [r.batch for r in plan.unfrozen] == [ref.batch]
    execute(source_url, "DELETE FROM tickets WHERE item_id = 'b'")
    [made] = freeze_batches(place.task, place.source, place.platform, [ref.batch], "run")
    assert (made.partition, made.figures["records"], made.figures["malformed_lines"]) == (ref.batch, 1, 1)
    execute(source_url, "UPDATE tickets SET text = 'changed'")
    plan = make_plan(place.task, place.source, place.platform, load_recorded(place.instance, place.task))
    assert (plan.unfrozen, plan.touched) == ((), ())
    assert place.platform.frames.read("t", "source_records", ref.batch)["text"].to_list() == ["A"]


def test_a_batch_that_was_never_formed_is_an_error(place: Place, source_url: str) -> None:
    make_table(source_url, [("a", "A", 1), ("b", "B", 2)])
    place.tick()
    [ref] = place.source.list_batches()
    with pytest.raises(SourceError, match="no microbatch 'nowhere' was formed"):
        place.source.read(type(ref)(batch="nowhere", locator="", change_token=""), [])


def test_an_item_belongs_to_the_batch_of_its_latest_change(place: Place, source_url: str) -> None:
    make_table(source_url, [("a", "old", 1), ("b", "B", 1)])
    place.tick()
    execute(source_url, "UPDATE tickets SET text = 'new', version = 2 WHERE item_id = 'a'")
    add_rows(source_url, sa.table("tickets", *map(sa.column, ("item_id", "text", "version"))), [("c", "C", 2)])  # type: ignore[arg-type]
    place.tick()
    refs = place.source.list_batches()
    made = list(freeze_batches(place.task, place.source, place.platform, [r.batch for r in refs], "run"))
    assert [m.figures["superseded"] for m in made] == [0, 0]
    with place.platform.database.read() as connection:
        owners = connection.exec_driver_sql("SELECT item_id, batch FROM item_owner ORDER BY item_id").all()
    assert [tuple(o) for o in owners] == [("a", refs[1].batch), ("b", refs[0].batch), ("c", refs[1].batch)]
