"""Asset definitions, one file per asset, in the order of the data."""
