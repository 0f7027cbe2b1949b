"""Frame contracts (pandera) as checks: one function for all frames."""

from typing import cast

import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaErrors

from batch_assets.core.checks import Finding
from batch_assets.core.outcomes import Markdown
from batch_assets.reports.markdown import as_code
from batch_assets.sources.base import ITEM_ID

CONTRACT = "contract"
SHOWN = 5


class ContractTally:
    """Holds a frame to its contract block by block; the blocks come in the order of `item_id`, all in all unique."""

    def __init__(self, schema: pa.DataFrameSchema) -> None:
        self._schema = schema
        self._last_id: str | None = None
        self.rows = 0
        self.failures = 0
        self.first: list[str] = []

    def add(self, block: pl.DataFrame) -> None:
        """Take a block in."""
        self.rows += block.height
        try:
            self._schema.validate(block, lazy=True)
        except SchemaErrors as e:
            found = cast("pl.DataFrame", e.failure_cases).to_dicts()
            self._refuse(*(f"{f['column']}: {f['check']}: {f['failure_case']}" for f in found))
        if ITEM_ID in block.columns and block.height:
            if self._last_id is not None and str(block[ITEM_ID][0]) <= self._last_id:
                self._refuse(f"{ITEM_ID}: field_uniqueness: {block[ITEM_ID][0]}")
            self._last_id = str(block[ITEM_ID][-1])

    def find(self) -> Finding:
        """Return what was found in all blocks; the figures list what was refused, by column."""
        if not self.failures:
            return Finding(passed=True, figures={"failures": 0, "rows": self.rows})
        first = Markdown("\n".join(f"- {as_code(case)}" for case in self.first))
        return Finding(passed=False, figures={"failures": self.failures, "first": first})

    def _refuse(self, *cases: str) -> None:
        self.failures += len(cases)
        self.first += cases[: SHOWN - len(self.first)]


def hold_to_contract(frame: pl.DataFrame, schema: pa.DataFrameSchema) -> Finding:
    """Hold a whole frame to its contract."""
    tally = ContractTally(schema)
    tally.add(frame)
    return tally.find()
