"""QA samples: the records whose seeded hash is smallest. Stable, and mergeable: the k smallest of all batches' samples
are the sample of all batches."""

import hashlib
import heapq
from collections.abc import Iterable

RANK_HEX_DIGITS = 16


def rank_hash(seed: str, item_id: str) -> str:
    """Return a record's rank, 16 hex digits: uniform over seeds, the same on every machine (bottom-k sampling;
    Cohen and Kaplan, Summarizing Data using Bottom-k Sketches, 2007)."""
    return hashlib.sha256(f"{seed}\x1f{item_id}".encode("utf-8", "surrogatepass")).hexdigest()[:RANK_HEX_DIGITS]


def take_sample(item_ids: Iterable[str], seed: str, k: int) -> list[tuple[str, str]]:
    """Return the k records of smallest rank as (rank, item_id), in the order of their ranks."""
    return heapq.nsmallest(k, ((rank_hash(seed, i), i) for i in item_ids))
