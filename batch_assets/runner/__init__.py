"""Requests in, results out. Knows engines and the store; knows no Dagster."""
