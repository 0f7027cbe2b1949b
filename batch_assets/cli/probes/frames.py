"""Frames: whether all hosts of a store have them in one folder."""

import datetime as dt
from collections.abc import Iterator

from batch_assets.cli.probes.findings import Finding, Level
from batch_assets.settings import Settings
from batch_assets.store.database import now
from batch_assets.store.frame_folders import FrameFolder, find_marker, find_others
from batch_assets.store.inspection import StoreInspection

ABOUT = "frames"
REMEMBERED = dt.timedelta(days=30)
"""A host that opened its folder longer ago may be gone."""


def probe_frames(settings: Settings, store: StoreInspection | None) -> Iterator[Finding]:
    """Yield a warning if hosts of this store have their frames in different folders."""
    if store is None:
        return
    folders = store.load_frame_folders()
    yield from judge_folders(folders, str(settings.frames_dir), find_marker(settings.frames_dir), now())


def judge_folders(folders: list[FrameFolder], here: str, marker: str, at: dt.datetime) -> Iterator[Finding]:
    """Yield how the folder here, with its marker, stands to those that hosts of the store have opened."""
    others = find_others(folders, marker, at - REMEMBERED)
    if others:
        there = ", ".join(f"{f.host} has them in {f.folder} (opened {f.seen_at:%Y-%m-%d})" for f in others)
        yield Finding(
            about=ABOUT,
            says=f"this store's frames lie in more than one folder: here {here}, and {there}; what one host makes, "
            "another doesn't find",
            level=Level.WARN,
            mend="share one folder `frames` of BATCH_ASSETS_HOME among the hosts, by NFS or the like; one that nobody "
            f"opens any more is forgotten after {REMEMBERED.days} days",
        )
    elif any(f.marker == marker for f in folders):
        hosts = sorted({f.host for f in folders if f.marker == marker})
        yield Finding(about=ABOUT, says=f"in {here}, the one folder of {', '.join(hosts)}")
