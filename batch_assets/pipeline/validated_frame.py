"""The frame of validated_results: a partition's `ok` rows, each judged again from its stored completion."""

import heapq
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import polars as pl

from batch_assets.core.acceptance import accept
from batch_assets.core.asset_names import VALIDATED_RESULTS
from batch_assets.core.canonical import exact_json
from batch_assets.pipeline.checks.frame_contract import ContractTally
from batch_assets.pipeline.frame_schemas import OUTPUT_PREFIX, answer_columns, validated_results_schema
from batch_assets.pipeline.platform import Platform
from batch_assets.reports.labels import Labels, add_labels, count_labels, find_label_fields
from batch_assets.run.partition_run import PartitionInputs, make_fallback_key
from batch_assets.store.fallbacks import FallbackKey, iterate_answers
from batch_assets.store.frames import StagedFrame
from batch_assets.store.results import PastAttempt, iterate_own

BLOCK_ROWS = 500


@dataclass(slots=True, kw_only=True)
class ValidatedFrame:
    """A partition's frame, written and not yet in its place, and what its checks look at beside it."""

    staged: StagedFrame
    contract: ContractTally
    own_rows: int = 0
    """The variant's own rows: what is sampled, and whose labels are compared."""
    fallback_ids: set[str] = field(default_factory=set[str])
    """The records that the fallback model has answered."""
    disagreeing: Sequence[str] = ()
    """Ids left out of the frame, since their stored answer is not what the row says."""
    labels: Labels = field(default_factory=dict[str, dict[str, int]])
    """The labels of the frame's own rows, by categorical field."""

    @property
    def rows(self) -> int:
        """All rows, those of the fallback's answers too."""
        return self.contract.rows

    def scan_own(self) -> pl.LazyFrame:
        """Return the variant's own rows."""
        return self.staged.scan().filter(~pl.col("is_fallback"))


@contextmanager
def write_validated_frame(platform: Platform, inputs: PartitionInputs) -> Generator[ValidatedFrame]:
    """Write the frame of a partition beside its place, one row per accepted answer in item_id's order.

    Of records that are not ok here, the fallback model's accepted answers are in it, under that model's id. Left out
    are rows whose stored answer is not what the row says: the frame holds only answers that the task's model and rules
    accept now. Memory holds a few hundred answers at a time.
    """
    maker = _BlockMaker(platform, inputs)
    name = (inputs.task.name, VALIDATED_RESULTS, inputs.batch, inputs.variant.key)
    with platform.frames.stage(maker.iterate_blocks(), maker.schema, *name) as staged:
        yield ValidatedFrame(
            staged=staged,
            contract=maker.contract,
            own_rows=maker.own_rows,
            fallback_ids=maker.fallback_ids,
            disagreeing=maker.disagreeing,
            labels=maker.labels,
        )


class _BlockMaker:
    """Makes the blocks of one frame, and counts what is in them."""

    def __init__(self, platform: Platform, inputs: PartitionInputs) -> None:
        self._platform = platform
        self._inputs = inputs
        self._columns = answer_columns(inputs.task.output)
        self._label_fields = find_label_fields(inputs.task.output)
        self.schema = _make_schema(self._columns)
        self.contract = ContractTally(validated_results_schema(inputs.task.output))
        self.own_rows = 0
        self.fallback_ids: set[str] = set()
        self.disagreeing: list[str] = []
        self.labels: Labels = {}

    def iterate_blocks(self) -> Iterator[pl.DataFrame]:
        with self._platform.database.read() as connection:
            found = [iterate_own(connection, self._inputs.key, self._inputs.batch)]
            if (fallback := self._find_fallback()) is not None:
                found.append(iterate_answers(connection, fallback))
            rows = heapq.merge(*found, key=lambda pair: pair[0]["item_id"])
            judged = (made for row, attempt in rows if (made := self._make_row(row, attempt)) is not None)
            while block := list(islice(judged, BLOCK_ROWS)):
                yield self._count(pl.DataFrame(block, schema=self.schema, orient="row"))

    def _find_fallback(self) -> FallbackKey | None:
        """Return whose answers to the partition's quarantined records are in the frame; None without a fallback."""
        inputs = self._inputs
        other = inputs.task.fallbacks.get(inputs.variant.key)
        if other is None:
            return None
        spec = self._platform.spec(inputs.task, other.key)
        return make_fallback_key(inputs.task, inputs.variant, other, spec, inputs.batch)

    def _make_row(self, row: Mapping[str, Any], attempt: PastAttempt | None) -> dict[str, Any] | None:
        verdict = accept(attempt.completion, self._inputs.task) if attempt and attempt.completion else None
        if verdict is None or verdict.payload != row["payload"]:
            self.disagreeing.append(row["item_id"])
            return None
        return {
            "item_id": row["item_id"],
            "batch": self._inputs.batch,
            "prompt_ver": row["prompt_ver"],
            "model_id": row["model_id"],
            **_flatten(row["payload"], self._columns),
            "attempts": row["attempts"],
            "is_reused": row["reused_from"] is not None,
            "is_fallback": row["model_id"] != self._inputs.key.model_id,
            "updated_at": row["updated_at"],
        }

    def _count(self, block: pl.DataFrame) -> pl.DataFrame:
        self.contract.add(block)
        own = block.filter(~pl.col("is_fallback"))
        self.own_rows += own.height
        self.fallback_ids.update(block.filter(pl.col("is_fallback"))["item_id"])
        columns = {name: own[OUTPUT_PREFIX + name].to_list() for name in self._label_fields}
        self.labels = add_labels([self.labels, count_labels(self._label_fields, columns)])
        return block


def _make_schema(columns: Mapping[str, type[pl.DataType]]) -> dict[str, Any]:
    keys = dict.fromkeys(("item_id", "batch", "prompt_ver", "model_id"), pl.String)
    own = {
        "attempts": pl.Int64,
        "is_reused": pl.Boolean,
        "is_fallback": pl.Boolean,
        "updated_at": pl.Datetime("us", "UTC"),
    }
    return {**keys, **columns, **own}


def _flatten(payload: Mapping[str, Any], columns: Mapping[str, type[pl.DataType]]) -> dict[str, Any]:
    """Return an answer's fields as column values; what has no column type of its own becomes JSON text."""
    found = {name: payload.get(name.removeprefix(OUTPUT_PREFIX)) for name in columns}
    return {
        name: exact_json(value) if columns[name] is pl.String and not isinstance(value, str | None) else value
        for name, value in found.items()
    }
