"""qa_samples [batch × variant]: the k results of smallest seeded hash, for a person to look at."""

import polars as pl
import sqlalchemy as sa

from batch_assets.reports.qa_sample import take_sample
from batch_assets.resources import Platform
from batch_assets.runner.work import PartitionWork
from batch_assets.schemas import OUTPUT_PREFIX
from batch_assets.store.tables import qa_samples


def write_qa_samples(platform: Platform, work: PartitionWork, validated: pl.DataFrame) -> int:
    """Replace a partition's sample in the store; return how many records it has.

    The seed is the task's name: the same records are sampled for each variant, so that samples can be compared.
    """
    sample = take_sample(validated["item_id"].to_list(), work.task.name, work.task.qa_sample_size)
    answers = {row["item_id"]: row for row in validated.to_dicts()}
    key = {"task": work.task.name, "batch": work.batch, "variant": work.variant.key}
    rows = [
        {**key, "item_id": item_id, "rank_hash": rank, "payload": _answer(answers[item_id])} for rank, item_id in sample
    ]
    where = [qa_samples.c[name] == value for name, value in key.items()]
    with platform.database.write() as connection:
        connection.execute(sa.delete(qa_samples).where(*where))
        if rows:
            connection.execute(sa.insert(qa_samples), rows)
    return len(rows)


def _answer(row: dict[str, object]) -> dict[str, object]:
    return {k.removeprefix(OUTPUT_PREFIX): v for k, v in row.items() if k.startswith(OUTPUT_PREFIX)}
