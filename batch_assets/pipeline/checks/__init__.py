"""Checks, one file per asset, named like it."""
