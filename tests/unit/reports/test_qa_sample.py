"""QA samples: stable, uniform, and mergeable."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.reports.qa_sample import RANK_HEX_DIGITS, rank_hash, take_sample

ids = st.lists(st.text(max_size=6), unique=True, max_size=40)


@settings(deadline=None)
@given(ids, st.integers(0, 10))
def test_a_sample_has_its_size_and_is_taken_from_the_records(item_ids: list[str], k: int) -> None:
    sample = take_sample(item_ids, "seed", k)
    assert len(sample) == min(k, len(item_ids))
    assert {i for _, i in sample} <= set(item_ids)
    assert sample == sorted(sample)
    assert all(rank == rank_hash("seed", i) for rank, i in sample)


@settings(deadline=None)
@given(ids, st.integers(0, 10), st.data())
def test_the_order_of_records_does_not_matter(item_ids: list[str], k: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(item_ids))
    assert take_sample(shuffled, "seed", k) == take_sample(item_ids, "seed", k)


@settings(deadline=None)
@given(ids, st.integers(0, 10), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_sample_of_all_batches_is_merged_from_the_samples_of_each(
    item_ids: list[str], k: int, count: int, rng: random.Random
) -> None:
    batches: list[list[str]] = [[] for _ in range(count)]
    for item_id in item_ids:
        batches[rng.randrange(count)].append(item_id)
    merged = sorted(pair for batch in batches for pair in take_sample(batch, "seed", k))[:k]
    assert merged == take_sample(item_ids, "seed", k)


@settings(deadline=None)
@given(ids, st.text(max_size=3), st.integers(1, 10))
def test_a_record_more_changes_at_most_one_place(item_ids: list[str], more: str, k: int) -> None:
    before, after = (set(take_sample(found, "seed", k)) for found in (item_ids, {*item_ids, more}))
    assert len(after - before) <= 1
    assert len(before - after) <= 1


def test_another_seed_takes_another_sample() -> None:
    item_ids = [f"r{n}" for n in range(1000)]
    one, other = ({i for _, i in take_sample(item_ids, seed, 50)} for seed in ("a", "b"))
    assert len(one & other) < 20


def test_seed_and_id_cannot_be_mistaken_for_each_other() -> None:
    assert rank_hash("a", "bc") != rank_hash("ab", "c")


def test_a_rank_is_the_same_on_every_machine_and_in_every_year() -> None:
    assert rank_hash("ticket_triage", "T-10445") == "1cb068e0a448ab96"
    assert len(rank_hash("", "\ud800")) == RANK_HEX_DIGITS


def test_every_record_is_as_likely_as_any_other() -> None:
    item_ids = [f"r{n}" for n in range(100)]
    counts = Counter(i for seed in range(400) for _, i in take_sample(item_ids, str(seed), 10))
    assert len(counts) == 100
    assert min(counts.values()) >= 15
    assert max(counts.values()) <= 75
