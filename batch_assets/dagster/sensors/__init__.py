"""Sensors: what looks at the world at intervals, and launches or reports."""
