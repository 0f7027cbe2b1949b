"""The store: whether it opens, which schema it has, what is in it. Opened for reading alone, and never made."""

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

from batch_assets.cli.probes.findings import Finding, Level, count, find_existing, format_size
from batch_assets.core.errors import StoreError
from batch_assets.settings import Settings
from batch_assets.store.database import describe_url, now, parse_url
from batch_assets.store.inspection import StoreInspection, list_revisions, open_for_reading

CLOCK_WARN_S, CLOCK_WRONG_S = 2.0, 30.0
"""Between us and PostgreSQL: leases of 90 s go by the clocks of their hosts."""


def probe_store(settings: Settings) -> Iterator[Finding]:
    """Yield where the store is, and the state of its schema, content and clock."""
    place = describe_url(settings.store_url)
    try:
        with open_for_reading(settings.store_url) as store:
            if store is None:
                yield _probe_new(settings, place)
                return
            yield Finding(about="store", says=place + _measure(settings))
            revision = store.find_revision()
            yield probe_revision(revision)
            if revision is not None:
                yield _count(store)
            if store.is_postgresql:
                there = store.ask_clock()
                yield probe_clocks(now(), there)
    except StoreError as e:
        mend = (
            "start the server, or correct BATCH_ASSETS_DB_URL and BATCH_ASSETS_DB_PASSWORD"
            if settings.is_postgresql
            else "correct BATCH_ASSETS_DB_URL, or give yourself the right to read that file"
        )
        yield Finding(about="store", says=str(e), level=Level.WRONG, mend=mend)


def probe_revision(revision: str | None) -> Finding:
    """Return how a schema stands to the one that this version writes."""
    known = list_revisions()
    head = known[0]
    if revision is None:
        return Finding(about="store", says="no schema yet: made at the first run")
    if revision == head:
        return Finding(about="store", says=f"schema {revision}, current")
    if revision in known:
        return Finding(about="store", says=f"schema {revision}: the next run brings it to {head}")
    return Finding(
        about="store",
        says=f"schema {revision} is newer than this version of batch_assets knows: {head}",
        level=Level.WRONG,
        mend="pip install --upgrade batch-assets",
    )


def probe_clocks(here: dt.datetime, there: dt.datetime | None) -> Finding:
    """Return whether this host's clock and the server's agree."""
    apart_s = 0.0 if there is None else abs((here - there).total_seconds())
    level = Level.WRONG if apart_s > CLOCK_WRONG_S else Level.WARN if apart_s > CLOCK_WARN_S else Level.OK
    mend = "" if level is Level.OK else "timedatectl set-ntp true, on both hosts"
    return Finding(about="store", says=f"its clock is {apart_s:.1f} s from ours", level=level, mend=mend)


def _probe_new(settings: Settings, place: str) -> Finding:
    path = Path(parse_url(settings.store_url).database or "")
    folder = find_existing(path.parent)
    if os.access(folder, os.W_OK):
        return Finding(about="store", says=f"{place}: made at the first run")
    return Finding(
        about="store",
        says=f"{place}: not there, and {folder} can't be written",
        level=Level.WRONG,
        mend="name another folder by BATCH_ASSETS_HOME",
    )


def _measure(settings: Settings) -> str:
    if settings.is_postgresql:
        return ""
    return f", {format_size(Path(parse_url(settings.store_url).database or '').stat().st_size)}"


def _count(store: StoreInspection) -> Finding:
    size = store.measure()
    words = [
        count(size.results, "result", "results"),
        count(size.batches, "batch", "batches"),
        count(size.partitions, "finished partition", "finished partitions"),
    ]
    return Finding(about="store", says=", ".join(words))
