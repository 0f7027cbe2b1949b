"""The one ring around Dagster: it shows it what the pipeline makes, and carries out what it is told. Nothing else."""
