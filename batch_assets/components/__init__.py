"""Dagster components: the factory that turns a task into assets, checks and jobs."""
