"""Leases: one live run at a time works on a partition, and a dead one holds nobody up."""

import datetime as dt
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from factories import run_at_once

from batch_assets.core.errors import PartitionLeased
from batch_assets.store.database import Database, now
from batch_assets.store.leases import Holder, LeaseBook, find_start, load_holders, load_live, this_process
from batch_assets.store.tables import leases

P = ("t", "b1", "v1--m1")


def set_holder(database: Database, **fields: Any) -> None:
    """Make the lease of P look as if somebody else held it."""
    with database.write() as connection:
        connection.execute(sa.update(leases).values(**fields))


def find_live(database: Database, clock: Callable[[], dt.datetime] = now) -> dict[tuple[str, str], str]:
    with database.read() as connection:
        return {key: live.run_id for key, live in load_live(connection, "t", clock).items()}


def find_expiry(database: Database) -> dt.datetime:
    with database.read() as connection:
        return connection.scalars(sa.select(leases.c.expires_at)).one()


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lease_is_live_from_acquire_to_release(database: Database) -> None:
    book = LeaseBook(database, "run-1")
    assert find_live(database) == {}
    book.acquire(*P)
    assert find_live(database) == {("b1", "v1--m1"): "run-1"}
    book.release(*P)
    assert find_live(database) == {}


def test_a_second_live_run_is_refused_and_told_who_holds_it(database: Database) -> None:
    LeaseBook(database, "run-1").acquire(*P)
    words = re.escape(f"t b1|v1--m1: run run-1 works on it (pid {os.getpid()} on {socket.gethostname()}, lease until ")
    with pytest.raises(PartitionLeased, match=words):
        LeaseBook(database, "run-2").acquire(*P)
    assert find_live(database) == {("b1", "v1--m1"): "run-1"}


def test_other_partitions_of_the_same_batch_are_free(database: Database) -> None:
    LeaseBook(database, "run-1").acquire(*P)
    other = LeaseBook(database, "run-2")
    other.acquire("t", "b1", "v2--m1")
    other.acquire("t", "b2", "v1--m1")
    other.acquire("t2", "b1", "v1--m1")
    assert find_live(database) == {
        ("b1", "v1--m1"): "run-1", ("b1", "v2--m1"): "run-2", ("b2", "v1--m1"): "run-2",
    }  # fmt: skip


def test_a_run_may_take_its_own_lease_again(database: Database) -> None:
    book = LeaseBook(database, "run-1", lease_s=30)
    book.acquire(*P)
    set_holder(database, expires_at=now())
    book.acquire(*P)
    assert find_expiry(database) > now() + dt.timedelta(seconds=20)


def test_a_dead_process_on_this_host_is_taken_over_at_once(database: Database, dead_pid: int) -> None:
    LeaseBook(database, "killed").acquire(*P)
    set_holder(database, pid=dead_pid)
    assert find_live(database) == {}
    LeaseBook(database, "next").acquire(*P)
    assert find_live(database) == {("b1", "v1--m1"): "next"}


def test_a_process_that_was_killed_is_dead_although_nobody_has_reaped_it(database: Database) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        holder = Holder(
            host=socket.gethostname(), pid=process.pid, process_started=psutil.Process(process.pid).create_time()
        )
        assert not holder.is_dead()
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert holder.is_dead()
    finally:
        process.kill()
        process.communicate()


def test_a_later_process_with_the_same_pid_is_another(database: Database) -> None:
    LeaseBook(database, "killed").acquire(*P)
    set_holder(database, process_started=this_process().process_started - 60)
    assert find_live(database) == {}
    LeaseBook(database, "next").acquire(*P)
    assert find_live(database) == {("b1", "v1--m1"): "next"}


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_takes_no_lease_from_a_live_process_here(database: Database, hours: int) -> None:
    LeaseBook(database, "mine").acquire(*P)

    def clock() -> dt.datetime:
        return now() + dt.timedelta(hours=hours)

    assert find_live(database, clock) == {("b1", "v1--m1"): "mine"}
    with pytest.raises(PartitionLeased, match="run mine works on it"):
        LeaseBook(database, "next", clock=clock).acquire(*P)
    mine = LeaseBook(database, "mine", clock=clock)
    assert mine.renew() == {("b1", "v1--m1")}
    mine.release(*P)
    LeaseBook(database, "next", clock=clock).acquire(*P)


def test_when_a_process_started_is_told_without_the_clock() -> None:
    class Moved(psutil.Process):
        """This process after its clock was set."""

        def create_time(self) -> float:
            return 0.0

    before = find_start(psutil.Process())
    assert find_start(Moved()) == before
    assert before == int(before) < 2**53, "a double holds it"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert find_start(psutil.Process(child.pid)) != before
    finally:
        child.communicate()


def test_another_hosts_lease_is_respected_until_it_expires(database: Database, dead_pid: int) -> None:
    LeaseBook(database, "far away").acquire(*P)
    set_holder(database, host="another.host", pid=dead_pid)
    assert find_live(database) == {("b1", "v1--m1"): "far away"}
    with pytest.raises(PartitionLeased, match="run far away works on it"):
        LeaseBook(database, "near").acquire(*P)
    set_holder(database, expires_at=now() - dt.timedelta(seconds=1))
    LeaseBook(database, "near").acquire(*P)
    assert find_live(database) == {("b1", "v1--m1"): "near"}


def test_a_heartbeat_moves_the_expiry_of_all_leases_of_its_run_and_no_others(database: Database) -> None:
    mine, other = LeaseBook(database, "run-1", lease_s=60), LeaseBook(database, "run-2", lease_s=60)
    mine.acquire(*P)
    mine.acquire("t", "b2", "v1--m1")
    other.acquire("t", "b3", "v1--m1")
    soon = now() + dt.timedelta(seconds=5)
    set_holder(database, expires_at=soon)
    assert mine.renew() == {("b1", "v1--m1"), ("b2", "v1--m1")}
    with database.read() as connection:
        expiries = dict(connection.execute(sa.select(leases.c.batch, leases.c.expires_at)).tuples().all())
    assert expiries["b1"] > soon
    assert expiries["b2"] > soon
    assert expiries["b3"] == soon


def test_a_run_whose_lease_was_taken_over_renews_and_releases_nothing(database: Database) -> None:
    slow = LeaseBook(database, "slow", lease_s=-1)
    slow.acquire(*P)
    set_holder(database, host="another.host")
    LeaseBook(database, "next").acquire(*P)
    assert slow.renew() == set()
    slow.release(*P)
    assert find_live(database) == {("b1", "v1--m1"): "next"}


def test_a_run_can_release_all_that_it_holds_and_nothing_else(database: Database) -> None:
    mine, other = LeaseBook(database, "run-1"), LeaseBook(database, "run-2")
    mine.acquire(*P)
    mine.acquire("t2", "b2", "v1--m1")
    other.acquire("t", "b3", "v1--m1")
    mine.release_all()
    assert find_live(database) == {("b3", "v1--m1"): "run-2"}
    assert mine.renew() == set()


def test_the_holders_are_the_runs_whose_leases_have_not_run_out(database: Database) -> None:
    LeaseBook(database, "run-1").acquire(*P)
    LeaseBook(database, "run-1").acquire("t2", "b1", "v1--m1")
    LeaseBook(database, "run-2").acquire("t", "b2", "v1--m1")
    LeaseBook(database, "stuck", lease_s=-1).acquire("t", "b3", "v1--m1")
    with database.read() as connection:
        assert load_holders(connection) == {"run-1", "run-2"}


def test_a_release_belongs_to_the_callers_transaction(database: Database) -> None:
    book = LeaseBook(database, "run-1")
    book.acquire(*P)
    with pytest.raises(RuntimeError), database.write() as connection:
        book.release_in(connection, *P)
        raise RuntimeError
    assert find_live(database) == {("b1", "v1--m1"): "run-1"}


@pytest.mark.parametrize("before", ["nobody", "expired", "dead"])
def test_of_threads_that_try_at_once_exactly_one_wins(database: Database, dead_pid: int, before: str) -> None:
    for n in range(5):
        partition = ("t", f"b{n}", "v")
        if before != "nobody":
            LeaseBook(database, "before", lease_s=-1 if before == "expired" else 60).acquire(*partition)
            if before == "dead":
                set_holder(database, pid=dead_pid)
            else:
                set_holder(database, host="another.host")
        calls = [partial(LeaseBook(database, f"run-{i}").acquire, *partition) for i in range(4)]
        assert [type(e) for e in run_at_once(*calls)] == [PartitionLeased] * 3
        assert find_live(database)["b" + str(n), "v"].startswith("run-")
