"""What the product does, step by step, without Dagster: freeze, describe, ask, ask the fallback, make results, plan."""
