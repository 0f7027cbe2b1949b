"""Figures computed from rows that others have read: no SQL, no Dagster."""
