"""The outbox of alerts: one row for each failed check and run, kept once delivered, so that a replay stays silent."""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from batch_assets.store.database import now
from batch_assets.store.tables import alerts

CLAIM_S = 60
"""How long a claim keeps others from sending the same: longer than all sending of a tick may take."""
MAX_CLAIMED = 2000
FIRST_WAIT_S, LONGEST_WAIT_S = 30, 3600
KEEP_DAYS = 90


class AlertKind(StrEnum):
    """What an alert tells of. Those of one kind go into one message."""

    CHECK_FAILED = "check_failed"
    CHECK_WARNED = "check_warned"
    RUN_FAILED = "run_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to tell: `subject` is the task, `body` one line of plain text. Equal keys are told once."""

    key: str
    kind: AlertKind
    subject: str
    body: str
    link: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAlert(Alert):
    """An alert that the caller alone may send now; `delivered_to` has it already."""

    delivered_to: frozenset[str]


def add_alerts(connection: sa.Connection, found: Iterable[Alert]) -> int:
    """Put alerts into the outbox, to be sent at once; return how many of them were new."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    moment = now()
    added = 0
    for alert in found:
        row = insert(alerts).values(
            alert_key=alert.key, kind=alert.kind, subject=alert.subject, body=alert.body, link=alert.link,
            run_id=alert.run_id, created_at=moment, next_try_at=moment, delivered_to=[],
        )  # fmt: skip
        added += connection.execute(row.on_conflict_do_nothing(index_elements=[alerts.c.alert_key])).rowcount
    return added


def claim_due(connection: sa.Connection) -> list[ClaimedAlert]:
    """Return what is due and claimed by nobody, the oldest first, and claim it; at most MAX_CLAIMED.

    Whoever was killed while sending has a claim that runs out.
    """
    c, moment = alerts.c, now()
    is_free = sa.or_(c.claimed_until.is_(None), c.claimed_until <= moment)
    due = (
        sa.select(alerts)
        .where(c.sent_at.is_(None), c.next_try_at <= moment, is_free)
        .order_by(c.created_at, c.alert_key)
        .limit(MAX_CLAIMED)
        .with_for_update(skip_locked=True)
    )
    rows = connection.execute(due).mappings().all()
    until = moment + dt.timedelta(seconds=CLAIM_S)
    connection.execute(sa.update(alerts).where(_are([r["alert_key"] for r in rows])).values(claimed_until=until))
    return [
        ClaimedAlert(
            key=r["alert_key"], kind=AlertKind(r["kind"]), subject=r["subject"], body=r["body"], link=r["link"],
            run_id=r["run_id"], delivered_to=frozenset(r["delivered_to"]),
        )
        for r in rows
    ]  # fmt: skip


def record_delivery(
    connection: sa.Connection, keys: Collection[str], receiver: str, receivers: Collection[str]
) -> None:
    """Record that a receiver has these alerts; those that all `receivers` now have are done.

    A receiver that answers again soon gets what waits for a later try.
    """
    c, moment = alerts.c, now()
    rows = connection.execute(sa.select(c.alert_key, c.delivered_to).where(_are(keys)).with_for_update()).tuples()
    for key, delivered_to in rows.all():
        values: dict[str, object] = {"delivered_to": sorted({*delivered_to, receiver}), "error": None}
        if set(receivers) <= {*delivered_to, receiver}:
            values |= {"sent_at": moment, "claimed_until": None}
        connection.execute(sa.update(alerts).where(c.alert_key == key).values(values))
    is_waiting = (c.sent_at.is_(None), c.claimed_until.is_(None), c.next_try_at > moment)
    connection.execute(sa.update(alerts).where(*is_waiting).values(next_try_at=moment))


def postpone(connection: sa.Connection, errors: Mapping[str, str]) -> None:
    """Have the alerts, by key, tried again later, each time twice as late up to an hour; the value says what failed."""
    c, moment = alerts.c, now()
    rows = connection.execute(sa.select(c.alert_key, c.tries).where(_are(errors)).with_for_update()).tuples()
    for key, tries in rows.all():
        wait_s = min(FIRST_WAIT_S * 2 ** min(tries, 30), LONGEST_WAIT_S)
        connection.execute(
            sa.update(alerts)
            .where(c.alert_key == key)
            .values(
                tries=tries + 1,
                error=errors[key],
                next_try_at=moment + dt.timedelta(seconds=wait_s),
                claimed_until=None,
            )
        )


def purge_alerts(connection: sa.Connection) -> int:
    """Forget what was delivered more than KEEP_DAYS ago; return how many."""
    oldest = now() - dt.timedelta(days=KEEP_DAYS)
    return connection.execute(sa.delete(alerts).where(alerts.c.sent_at < oldest)).rowcount


def count_unsent(connection: sa.Connection) -> int:
    """Return how many alerts not all receivers have yet."""
    count = sa.select(sa.func.count()).select_from(alerts).where(alerts.c.sent_at.is_(None))
    return connection.scalar(count) or 0


def _are(keys: Iterable[str]) -> sa.ColumnElement[bool]:
    return alerts.c.alert_key.in_(list(keys))
