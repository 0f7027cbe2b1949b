"""Assembles, nothing else: what the webserver, the daemon and their runs load."""

import warnings

import dagster as dg

from batch_assets.dagster.project import load_project
from batch_assets.settings import load_settings

# Partitioned checks are "preview" in Dagster 1.13, whose exact version is pinned: no news for who reads the log.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """Load every task folder."""
    return load_project(load_settings()).definitions
