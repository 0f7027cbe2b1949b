"""batch_assets: a language model over thousands to millions of records, as Dagster assets."""
