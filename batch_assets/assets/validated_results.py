"""validated_results [batch × variant]: the `ok` rows as a typed frame, each judged again from its stored completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import sqlalchemy as sa

from batch_assets.core.acceptance import accept
from batch_assets.core.attempts import Status
from batch_assets.core.canonical import canonical_json
from batch_assets.reports.labels import Labels, count_labels, find_label_fields
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork, make_fallback_key
from batch_assets.schemas import OUTPUT_PREFIX, answer_columns
from batch_assets.store.fallbacks import select_answers
from batch_assets.store.results import load_attempts, own_rows
from batch_assets.store.tables import results


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A partition's frame, not yet written, and what its checks look at beside it."""

    frame: pl.DataFrame
    disagreeing: Sequence[str]
    """Ids left out of the frame, since their stored answer is not what the row says."""
    labels: Labels
    """The labels of the frame's own rows, by categorical field."""

    @property
    def own(self) -> pl.DataFrame:
        """The variant's own rows: what is sampled, and whose labels are compared."""
        return self.frame.filter(~pl.col("is_fallback"))


def validate(platform: Platform, work: PartitionWork) -> Validated:
    """Make the frame of a partition and count its labels; write nothing."""
    frame, disagreeing = make_frame(platform, work)
    made = Validated(frame=frame, disagreeing=disagreeing, labels={})
    fields = find_label_fields(work.task.output)
    columns = {name: made.own[OUTPUT_PREFIX + name].to_list() for name in fields}
    return replace(made, labels=count_labels(fields, columns))


def make_frame(platform: Platform, work: PartitionWork) -> tuple[pl.DataFrame, list[str]]:
    """Return the frame of a partition, one row per accepted answer in item_id's order, and the ids left out.

    Of records that are not ok here, the fallback model's accepted answers are in it, under that model's id. Left out
    are rows whose stored answer is not what the row says: the frame holds only answers that the task's model and rules
    accept now.
    """
    columns = answer_columns(work.task.output)
    rows: list[dict[str, Any]] = []
    disagreeing: list[str] = []
    with platform.database.read() as connection:
        found = [*connection.execute(_select_own(work)).mappings(), *_load_fallback(platform, connection, work)]
        found.sort(key=lambda row: row["item_id"])
        past = load_attempts(connection, {row["attempt_id"] for row in found})
    for row in found:
        attempt = past.get(row["attempt_id"])
        verdict = accept(attempt.completion, work.task) if attempt and attempt.completion else None
        if verdict is None or verdict.payload != row["payload"]:
            disagreeing.append(row["item_id"])
            continue
        rows.append(
            {
                "item_id": row["item_id"],
                "batch": work.batch,
                "prompt_ver": row["prompt_ver"],
                "model_id": row["model_id"],
                **_flatten(row["payload"], columns),
                "attempts": row["attempts"],
                "is_reused": row["reused_from"] is not None,
                "is_fallback": row["model_id"] != work.key.model_id,
                "updated_at": row["updated_at"],
            }
        )
    return pl.DataFrame(rows, schema=_schema(work), orient="row"), disagreeing


def _select_own(work: PartitionWork) -> sa.Select[Any]:
    return sa.select(results).where(*own_rows(work.key), results.c.batch == work.batch, results.c.status == Status.OK)


def _load_fallback(platform: Platform, connection: sa.Connection, work: PartitionWork) -> Sequence[sa.RowMapping]:
    """Return the fallback's accepted answers to the partition's quarantined records; none where it has no fallback."""
    other = work.task.fallbacks.get(work.variant.key)
    if other is None:
        return []
    key = make_fallback_key(work.task, work.variant, other, platform.spec(work.task, other.key), work.batch)
    return connection.execute(select_answers(key).where(results.c.status == Status.OK)).mappings().all()


def _schema(work: PartitionWork) -> dict[str, Any]:
    keys = dict.fromkeys(("item_id", "batch", "prompt_ver", "model_id"), pl.String)
    own = {
        "attempts": pl.Int64,
        "is_reused": pl.Boolean,
        "is_fallback": pl.Boolean,
        "updated_at": pl.Datetime("us", "UTC"),
    }
    return {**keys, **answer_columns(work.task.output), **own}


def _flatten(payload: Mapping[str, Any], columns: Mapping[str, type[pl.DataType]]) -> dict[str, Any]:
    """Return an answer's fields as column values; what has no column type of its own becomes JSON text."""
    found = {name: payload.get(name.removeprefix(OUTPUT_PREFIX)) for name in columns}
    return {
        name: canonical_json(value) if columns[name] is pl.String and not isinstance(value, str | None) else value
        for name, value in found.items()
    }
