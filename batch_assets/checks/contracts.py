"""Frame contracts (pandera) as checks: one factory for all frames."""

from typing import cast

import dagster as dg
import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaErrors

from batch_assets.assets.events import Finding
from batch_assets.reports.markdown import as_code

CONTRACT = "contract"
SHOWN = 5


def check_contract(frame: pl.DataFrame, schema: pa.DataFrameSchema) -> Finding:
    """Hold a frame to its contract; the finding lists what was refused, by column."""
    try:
        schema.validate(frame, lazy=True)
    except SchemaErrors as e:
        found = cast("pl.DataFrame", e.failure_cases).to_dicts()
        cases = [as_code(f"{f['column']}: {f['check']}: {f['failure_case']}") for f in found]
        return Finding(
            name=CONTRACT,
            passed=False,
            is_blocking=True,
            metadata={"failures": len(cases), "first": dg.MetadataValue.md("\n".join(f"- {c}" for c in cases[:SHOWN]))},
        )
    return Finding(name=CONTRACT, passed=True, is_blocking=True, metadata={"failures": 0, "rows": frame.height})
