"""The outbox of alerts: one row per key, claims, deliveries to each receiver, later tries. On SQLite and PostgreSQL."""

import datetime as dt
from functools import partial

import pytest
import sqlalchemy as sa
from factories import run_at_once

from batch_assets.store.alerts import (
    CLAIM_S,
    KEEP_DAYS,
    LONGEST_WAIT_S,
    Alert,
    AlertKind,
    ClaimedAlert,
    add_alerts,
    claim_due,
    count_unsent,
    postpone,
    purge_alerts,
    record_delivery,
)
from batch_assets.store.database import Database, now
from batch_assets.store.tables import alerts

A, B = "receiver-a", "receiver-b"


def make_alert(
    key: str = "run-1|t/llm_outputs|error_share|b1|v1--m1", kind: AlertKind = AlertKind.CHECK_FAILED
) -> Alert:
    return Alert(
        key=key, kind=kind, subject="t", body=f"{key} failed: 0.5.", link="http://ui/runs/run-1", run_id="run-1"
    )


def add(database: Database, *keys: str) -> int:
    with database.write() as connection:
        return add_alerts(connection, [make_alert(key) for key in keys])


def claim(database: Database) -> list[ClaimedAlert]:
    with database.write() as connection:
        return claim_due(connection)


def claim_keys(database: Database) -> list[str]:
    return [a.key for a in claim(database)]


def deliver(database: Database, key: str, receiver: str, *receivers: str) -> None:
    with database.write() as connection:
        record_delivery(connection, [key], receiver, receivers or [receiver])


def fail(database: Database, key: str, error: str = "down") -> None:
    with database.write() as connection:
        postpone(connection, {key: error})


def load(database: Database, key: str) -> sa.RowMapping:
    with database.read() as connection:
        return connection.execute(sa.select(alerts).where(alerts.c.alert_key == key)).mappings().one()


def set_row(database: Database, key: str, **values: object) -> None:
    with database.write() as connection:
        connection.execute(sa.update(alerts).where(alerts.c.alert_key == key).values(**values))


def ago(**words: float) -> dt.datetime:
    return now() - dt.timedelta(**words)


def test_an_alert_is_due_at_once_and_comes_back_as_it_was_put_in(database: Database) -> None:
    told = make_alert("run-1|t/a|c|ö|\u2028", AlertKind.CHECK_WARNED)
    with database.write() as connection:
        assert add_alerts(connection, [told]) == 1
    [found] = claim(database)
    assert found == ClaimedAlert(
        key=told.key, kind=told.kind, subject=told.subject, body=told.body, link=told.link, run_id=told.run_id,
        delivered_to=frozenset(),
    )  # fmt: skip


def test_a_key_is_put_in_once_whatever_became_of_it(database: Database) -> None:
    assert add(database, "k1", "k1", "k2") == 2
    assert add(database, "k1", "k3") == 1
    assert sorted(claim_keys(database)) == ["k1", "k2", "k3"]
    deliver(database, "k1", A)
    fail(database, "k2")
    assert add(database, "k1", "k2", "k3") == 0
    assert load(database, "k1")["sent_at"] is not None
    assert load(database, "k2")["error"] == "down"


def test_what_one_has_claimed_nobody_else_gets_until_the_claim_runs_out(database: Database) -> None:
    add(database, "k1")
    assert claim_keys(database) == ["k1"]
    assert claim_keys(database) == []
    assert load(database, "k1")["claimed_until"] > now() + dt.timedelta(seconds=CLAIM_S - 30)
    set_row(database, "k1", claimed_until=ago(seconds=1))  # its claimer was killed
    assert claim_keys(database) == ["k1"]


def test_of_claimers_at_the_same_moment_one_gets_each_alert(database: Database) -> None:
    keys = [f"k{n}" for n in range(20)]
    add(database, *keys)
    claimed: list[str] = []
    assert run_at_once(*[lambda: claimed.extend(claim_keys(database)) for _ in range(4)]) == []
    assert sorted(claimed) == sorted(keys)


def test_adders_at_the_same_moment_put_a_key_in_once(database: Database) -> None:
    assert run_at_once(*[partial(add, database, "k1", "k2") for _ in range(4)]) == []
    assert sorted(claim_keys(database)) == ["k1", "k2"]


def test_an_alert_is_done_when_all_receivers_have_it(database: Database) -> None:
    add(database, "k1")
    claim(database)
    deliver(database, "k1", A, A, B)
    assert (load(database, "k1")["sent_at"], load(database, "k1")["delivered_to"]) == (None, [A])
    set_row(database, "k1", claimed_until=None)
    [again] = claim(database)
    assert again.delivered_to == {A}
    deliver(database, "k1", B, A, B)
    row = load(database, "k1")
    assert row["sent_at"] is not None
    assert row["delivered_to"] == sorted([A, B])
    assert row["claimed_until"] is None
    assert claim_keys(database) == []


def test_a_receiver_that_was_taken_out_is_not_waited_for(database: Database) -> None:
    add(database, "k1")
    claim(database)
    deliver(database, "k1", "old", "old", A)
    deliver(database, "k1", A, A)
    assert load(database, "k1")["sent_at"] is not None


def test_each_failed_try_waits_twice_as_long_up_to_an_hour(database: Database) -> None:
    add(database, "k1")
    waits: list[float] = []
    for _ in range(12):
        before = now()
        fail(database, "k1", "no answer")
        waits.append(round((load(database, "k1")["next_try_at"] - before).total_seconds(), -1))
    assert waits == [30, 60, 120, 240, 480, 960, 1920, *[LONGEST_WAIT_S] * 5]
    assert (load(database, "k1")["tries"], load(database, "k1")["error"]) == (12, "no answer")


@pytest.mark.parametrize("tries", [100, 10_000])
def test_an_alert_that_failed_for_months_is_still_tried(database: Database, tries: int) -> None:
    add(database, "k1")
    set_row(database, "k1", tries=tries)
    fail(database, "k1")
    assert load(database, "k1")["next_try_at"] <= now() + dt.timedelta(seconds=LONGEST_WAIT_S)


def test_what_failed_is_due_again_when_its_time_has_come(database: Database) -> None:
    add(database, "k1")
    claim(database)
    fail(database, "k1")
    assert claim_keys(database) == []
    set_row(database, "k1", next_try_at=ago(seconds=1))
    assert claim_keys(database) == ["k1"]


def test_a_receiver_that_answers_again_gets_what_waits_and_nothing_that_is_being_sent(database: Database) -> None:
    add(database, "waits", "in_flight", "new")
    claim(database)
    fail(database, "waits")
    set_row(database, "in_flight", next_try_at=now() + dt.timedelta(hours=1))
    deliver(database, "new", A)
    assert claim_keys(database) == ["waits"]


def test_a_delivery_clears_the_error_of_the_try_before(database: Database) -> None:
    add(database, "k1")
    fail(database, "k1")
    deliver(database, "k1", A)
    assert load(database, "k1")["error"] is None


def test_a_delivery_belongs_to_the_callers_transaction(database: Database) -> None:
    add(database, "k1")
    with pytest.raises(RuntimeError), database.write() as connection:
        record_delivery(connection, ["k1"], A, [A])
        raise RuntimeError
    assert load(database, "k1")["sent_at"] is None


def test_only_what_was_delivered_long_ago_is_forgotten(database: Database) -> None:
    add(database, "old", "young", "never")
    set_row(database, "old", sent_at=ago(days=KEEP_DAYS, minutes=1))
    set_row(database, "young", sent_at=ago(days=KEEP_DAYS - 1))
    set_row(database, "never", created_at=ago(days=400))
    with database.write() as connection:
        assert purge_alerts(connection) == 1
        assert count_unsent(connection) == 1
        assert set(connection.scalars(sa.select(alerts.c.alert_key))) == {"young", "never"}


def test_no_keys_at_all_change_nothing(database: Database) -> None:
    add(database, "k1")
    with database.write() as connection:
        postpone(connection, {})
        record_delivery(connection, [], A, [A])
    assert claim_keys(database) == ["k1"]


def test_the_oldest_alerts_come_first(database: Database) -> None:
    add(database, "a", "b", "c")
    set_row(database, "c", created_at=ago(hours=2))
    set_row(database, "b", created_at=ago(hours=1))
    assert claim_keys(database) == ["c", "b", "a"]
