"""Numbers as a person says them."""

import pytest

from batch_assets.core.words import format_count


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (12345, "12,345 batches")]
)
def test_one_is_one_and_all_else_is_many(number: int, words: str) -> None:
    assert format_count(number, "batch", "batches") == words


def test_many_end_with_an_s_by_default() -> None:
    assert (format_count(1, "record"), format_count(2, "record")) == ("1 record", "2 records")
