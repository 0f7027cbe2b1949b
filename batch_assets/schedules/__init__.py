"""Schedules: what runs by the clock."""
