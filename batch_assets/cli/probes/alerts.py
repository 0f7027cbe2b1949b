"""Alerts: who hears of them, and what waits to be delivered. Nothing is sent."""

from collections.abc import Iterator

from batch_assets.cli.probes.findings import Finding, Level, count
from batch_assets.dagster.sensors.alert_receivers import VARIABLE, check_alert_urls
from batch_assets.settings import Settings
from batch_assets.store.inspection import StoreInspection


def probe_alerts(settings: Settings) -> Iterator[Finding]:
    """Yield who hears of failed checks and runs. Raises ConfigError for an address that can't be one."""
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


def probe_outbox(store: StoreInspection | None) -> Iterator[Finding]:
    """Yield what failed to be delivered, as the store tells, if it can be read."""
    late = store.count_late_alerts() if store else None
    if late and late.waiting:
        yield Finding(
            about="alerts",
            says=f"{late.waiting} could not be delivered yet, after up to {count(late.tries, 'try', 'tries')}",
            level=Level.WARN,
            mend=f"look at llm_alerts.error, and correct {VARIABLE}",
        )
