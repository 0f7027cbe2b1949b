"""A sensor, on by default, that tells of failed checks and failed runs, each once, through an outbox in the store.

Dagster's event ids are no cursor for checks: on SQLite each run counts anew. So the cursor goes by the runs' ends; an
ended run's checks are read in full, those of a run at work ahead. What is found twice has one key, and is told once.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import dagster as dg
from dagster import DagsterInstance
from pydantic import BaseModel, ValidationError

from batch_assets.dagster.sensors.alert_messages import compose, format_check, format_failed_run
from batch_assets.dagster.sensors.alert_receivers import VARIABLE, Receiver, check_alert_urls
from batch_assets.settings import Settings
from batch_assets.store.alerts import (
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
from batch_assets.store.database import Database, open_database

EVERY_S = 15
LOOK_BACK_S = 600
"""How far the first tick looks back: over a kill before any cursor was saved, and not over history."""
COLLECT_S = 15.0
RUNS_PER_TICK, LIVE_RUNS, PAGE = 50, 50, 500
OVERLAP = 1000
"""Event ids behind the newest that are looked at again: on PostgreSQL a smaller id may be committed later."""
_ENDS = (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_CANCELED)
_LIVE = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


class Position(BaseModel):
    """How far the ends of one kind are done: all ids up to `after`, and those in `seen`."""

    after: int
    seen: list[int] = []


class Cursor(BaseModel):
    """What is read. `ending` is the place in a long run that the last tick didn't finish."""

    ends: dict[str, Position]
    live: dict[str, str] = {}
    ending: dict[str, str] = {}


@dataclass(kw_only=True)
class Collector:
    """Reads Dagster's events from the cursor on and hands what failed to `keep`, page by page, until time is up."""

    instance: DagsterInstance
    cursor: Cursor
    ui_url: str
    keep: Callable[[list[Alert]], None]
    _give_up_at: float = field(default_factory=lambda: time.monotonic() + COLLECT_S)

    def collect(self) -> bool:
        """Move the cursor on; return False if more is left for the next tick."""
        parts = [*(self._read_ends(kind) for kind in _ENDS), self._read_live()]
        return all(parts)

    def _read_ends(self, kind: dg.DagsterEventType) -> bool:
        position = self.cursor.ends[kind.value]
        ends = dg.RunStatusChangeRecordsFilter(event_type=kind, after_storage_id=position.after)  # pyright: ignore[reportArgumentType]
        limit = RUNS_PER_TICK + len(position.seen)
        page = self.instance.fetch_run_status_changes(ends, limit=limit, ascending=True)
        for record in page.records:
            if record.storage_id in position.seen:
                continue
            if not self._read_end(record):
                return False
            position.seen.append(record.storage_id)
            position.after = max(position.after, max(position.seen) - OVERLAP)
            position.seen = [n for n in position.seen if n > position.after]
        return not page.has_more

    def _read_end(self, record: dg.EventLogRecord) -> bool:
        run_id, event = record.run_id, record.event_log_entry.dagster_event
        is_read = self._read_checks(run_id, self.cursor.ending)
        if is_read:
            self.cursor.ending.pop(run_id, None)
            run = self.instance.get_run_by_id(run_id)
            if run and event and event.event_type is dg.DagsterEventType.RUN_FAILURE:
                self.keep([format_failed_run(run, event, self.ui_url)])
        return is_read

    def _read_live(self) -> bool:
        """Read ahead in runs at work: one of thousands of partitions may take the night."""
        runs = [r.run_id for r in self.instance.get_runs(dg.RunsFilter(statuses=_LIVE), limit=LIVE_RUNS)]
        self.cursor.live = {run_id: place for run_id, place in self.cursor.live.items() if run_id in runs}
        return all(self._read_checks(run_id, self.cursor.live) for run_id in runs)

    def _read_checks(self, run_id: str, places: dict[str, str]) -> bool:
        """Read a run's checks from its place on; leave the place reached, and return whether that is the end."""
        while time.monotonic() < self._give_up_at:
            page = self.instance.get_records_for_run(
                run_id, cursor=places.get(run_id), of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION, limit=PAGE
            )
            found = (r.event_log_entry.asset_check_evaluation for r in page.records)
            self.keep([format_check(e, run_id, self.ui_url) for e in found if e and not e.passed])
            places[run_id] = page.cursor
            if not page.has_more:
                return True
        return False


def build_alerts_sensor(settings: Settings) -> dg.SensorDefinition:
    """Build the sensor of a code location. Raises ConfigError if a receiver's URL can't be used."""
    receivers = check_alert_urls(settings.alert_receivers)

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=min(EVERY_S, settings.sensor_interval_s),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Tells of each failed check and each failed run once, with its figures and a link, through the services "
            f"in {VARIABLE}. Many at once come as one message. If that is empty, nobody gets one."
        ),
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if not receivers:
            nobody = f"nobody is told: {VARIABLE} is empty"
            return _result(nobody, _start(context.instance, time.time()))
        cursor = _load_cursor(context)
        database = open_database(settings.store_url)
        try:
            added = 0

            def keep(found: list[Alert]) -> None:
                nonlocal added
                if found:
                    with database.write() as connection:
                        added += add_alerts(connection, found)

            collector = Collector(instance=context.instance, cursor=cursor, ui_url=settings.ui_url, keep=keep)
            more = "" if collector.collect() else "; more runs to read in the next tick"
            sent, problems = deliver(database, receivers)
            for problem in problems:
                context.log.warning(f"alerts not delivered to {problem}")
            with database.write() as connection:
                purge_alerts(connection)
                unsent = count_unsent(connection)
        finally:
            database.close()
        waiting = f"; {unsent} wait for a later try: {'; '.join(problems)}" if unsent else ""
        return _result(f"{added} new alerts, {sent} messages sent{waiting}{more}", cursor)

    return alerts


def deliver(database: Database, receivers: Sequence[Receiver]) -> tuple[int, list[str]]:
    """Send what is due, one message for each kind and receiver; return how many went out, and what went wrong.

    A receiver that has an alert doesn't get it again because another failed.
    """
    with database.write() as connection:
        claimed = claim_due(connection)
    if not claimed:
        return 0, []
    sent, errors = 0, dict[str, list[str]]()
    digests = {r.digest for r in receivers}
    done = [a.key for a in claimed if digests <= a.delivered_to]
    if done:  # since a receiver that failed was taken out of the setting
        with database.write() as connection:
            record_delivery(connection, done, min(digests), digests)
    with ThreadPoolExecutor(max_workers=len(receivers)) as pool:
        for kind, group in _group(claimed):
            jobs = {
                pool.submit(r.send, kind, *compose(kind, todo)): (r, todo) for r, todo in _share_out(receivers, group)
            }
            for job in as_completed(jobs):
                receiver, told = jobs[job]
                error = job.result()
                if error is None:
                    sent += 1
                    with database.write() as connection:
                        record_delivery(connection, [a.key for a in told], receiver.digest, digests)
                else:
                    for alert in told:
                        errors.setdefault(alert.key, []).append(error)
    with database.write() as connection:
        postpone(connection, {key: "; ".join(sorted(found)) for key, found in errors.items()})
    return sent, sorted({e for found in errors.values() for e in found})


def _group(claimed: Sequence[ClaimedAlert]) -> Iterator[tuple[AlertKind, list[ClaimedAlert]]]:
    groups: defaultdict[AlertKind, list[ClaimedAlert]] = defaultdict(list)
    for alert in claimed:
        groups[alert.kind].append(alert)
    yield from groups.items()


def _share_out(
    receivers: Sequence[Receiver], group: Sequence[ClaimedAlert]
) -> Iterator[tuple[Receiver, list[ClaimedAlert]]]:
    for receiver in receivers:
        todo = [a for a in group if receiver.digest not in a.delivered_to]
        if todo:
            yield receiver, todo


def _load_cursor(context: dg.SensorEvaluationContext) -> Cursor:
    if context.cursor:
        try:
            return Cursor.model_validate_json(context.cursor)
        except ValidationError:
            context.log.warning("the cursor can't be read: starting anew")
    return _start(context.instance, time.time() - LOOK_BACK_S)


def _start(instance: DagsterInstance, moment: float) -> Cursor:
    """Return the cursor of who has read all that ended before a moment, in seconds since 1970."""
    ends: dict[str, Position] = {}
    for kind in _ENDS:
        before = dg.RunStatusChangeRecordsFilter(event_type=kind, before_timestamp=moment)
        newest = instance.fetch_run_status_changes(before, limit=1).records
        ends[kind.value] = Position(after=newest[0].storage_id if newest else 0)
    return Cursor(ends=ends)


def _result(words: str, cursor: Cursor) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=words, cursor=cursor.model_dump_json())
