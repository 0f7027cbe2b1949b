"""Alerts: who hears of them, and what waits to be delivered. Nothing is sent."""

from collections.abc import Iterator

import sqlalchemy as sa

from batch_assets.cli.probes.findings import Finding, Level, count
from batch_assets.dagster.sensors.alert_receivers import VARIABLE, check_alert_urls
from batch_assets.settings import Settings
from batch_assets.store.tables import alerts


def probe_alerts(settings: Settings) -> Iterator[Finding]:
    """Yield who hears of failed checks and runs. ConfigError for an address that can't be one."""
    receivers = check_alert_urls(settings.alert_receivers)
    if receivers:
        yield Finding(about="alerts", says=f"to {', '.join(r.name for r in receivers)}")
    else:
        yield Finding(
            about="alerts",
            says="to nobody: a failed check or run is seen in the web UI alone",
            level=Level.WARN,
            mend=f"export {VARIABLE}=…  # see https://appriseit.com/services/",
        )


def probe_outbox(connection: sa.Connection | None) -> Iterator[Finding]:
    """Yield what failed to be delivered, as the store tells, if it can be read."""
    if connection is None or not sa.inspect(connection).has_table(alerts.name):
        return
    late = sa.select(sa.func.count(), sa.func.max(alerts.c.tries)).where(alerts.c.sent_at.is_(None), alerts.c.tries > 0)
    waiting, tries = connection.execute(late).one()
    if waiting:
        yield Finding(
            about="alerts",
            says=f"{waiting} could not be delivered yet, after up to {count(tries, 'try', 'tries')}",
            level=Level.WARN,
            mend=f"look at {alerts.name}.error, and correct {VARIABLE}",
        )
