"""One run over many partitions with one engine: what is sent when, what is kept, when it stops. Knows no Dagster."""
