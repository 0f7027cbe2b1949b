"""Names that become partition keys and file names."""

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.errors import ConfigError
from batch_assets.core.names import VARIANT_SEPARATOR, check_key, check_task_name, variant_key

GOOD = ["a", "0", "v1", "2026-11-01", "day=2026-11-01", "A.b_c-d=e", "x" * 100, "a.", "a-", "a--b"]
BAD = ["", " ", "-a", ".a", "_a", "=a", "a b", "a|b", "a/b", "a\\b", "a\n", "\na", "a..b", "..", "é", "x" * 101, "a\0"]

alphabet = st.sampled_from("abAB09-_.=|/ \n")
keys = st.text(alphabet, max_size=12)


@pytest.mark.parametrize("key", GOOD)
def test_a_good_key_is_returned_as_it_is(key: str) -> None:
    assert check_key(key, "batch") == key


@pytest.mark.parametrize("key", BAD)
def test_a_key_that_dagster_or_a_file_system_would_lose_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"batch {key!r} can't be a partition key")):
        check_key(key, "batch")


@settings(deadline=None)
@given(keys)
def test_a_key_that_passes_is_one_plain_file_name(key: str) -> None:
    try:
        check_key(key, "batch")
    except ConfigError:
        return
    assert PurePosixPath("folder", key).parent == PurePosixPath("folder")
    assert "|" not in key
    assert key == key.strip()


@pytest.mark.parametrize("name", ["t", "ticket_triage", "a1", "x" * 50])
def test_a_good_task_name_is_returned_as_it_is(name: str) -> None:
    assert check_task_name(name) == name


@pytest.mark.parametrize("name", ["", "T", "1a", "_a", "a-b", "a b", "é", "a\n", "x" * 51])
def test_a_task_name_that_cannot_be_a_group_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="task name"):
        check_task_name(name)


def test_a_variant_is_named_for_its_prompt_and_its_model() -> None:
    assert variant_key("v1", "smollm2-135m") == "v1--smollm2-135m"


@pytest.mark.parametrize(
    ("prompt_ver", "model_id", "named"),
    [
        ("v1--x", "m", "prompt version 'v1--x'"),
        ("v1", "m--x", "model 'm--x'"),
        ("v1-", "m", "prompt version 'v1-'"),
        ("v1", "m-", "model 'm-'"),
        ("v/1", "m", "prompt version 'v/1'"),
        ("v1", "org/m", "model 'org/m'"),
        ("v" * 60, "m" * 60, "variant"),
    ],
)
def test_a_variant_whose_parts_could_not_be_told_apart_is_refused(prompt_ver: str, model_id: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        variant_key(prompt_ver, model_id)


@settings(deadline=None)
@given(
    st.text(st.sampled_from("ab-."), min_size=1, max_size=6), st.text(st.sampled_from("ab-."), min_size=1, max_size=6)
)
def test_a_variant_key_splits_into_the_parts_that_it_was_made_of(prompt_ver: str, model_id: str) -> None:
    try:
        key = variant_key(prompt_ver, model_id)
    except ConfigError:
        return
    assert key.split(VARIANT_SEPARATOR) == [prompt_ver, model_id]
    assert key.partition(VARIANT_SEPARATOR)[::2] == (prompt_ver, model_id)
