"""The truth: one SQL schema on SQLite and PostgreSQL. Dagster's events are its shadow."""
