"""Assembles, nothing else: what the webserver, the daemon and their runs load."""

import dagster as dg

from batch_assets.components.project import load_project
from batch_assets.settings import load_settings


@dg.definitions
def defs() -> dg.Definitions:
    """Load every task folder."""
    return load_project(load_settings()).definitions
