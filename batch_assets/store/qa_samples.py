"""Samples of results for a person to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_assets.store.tables import qa_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecord:
    """A record of a sample, with its accepted answer. `rank_hash` is that of reports.qa_sample."""

    item_id: str
    rank_hash: str
    answer: Mapping[str, Any]


def save_qa_samples(
    connection: sa.Connection, task: str, batch: str, variant: str, sample: Sequence[SampledRecord]
) -> None:
    """Replace a partition's sample."""
    key = {"task": task, "batch": batch, "variant": variant}
    connection.execute(sa.delete(qa_samples).where(*(qa_samples.c[name] == value for name, value in key.items())))
    rows = [{**key, "item_id": s.item_id, "rank_hash": s.rank_hash, "payload": dict(s.answer)} for s in sample]
    if rows:
        connection.execute(sa.insert(qa_samples), rows)
