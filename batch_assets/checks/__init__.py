"""Asset checks, one file per asset, named like it."""
