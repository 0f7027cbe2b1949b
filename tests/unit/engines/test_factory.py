"""From an entry to its engine, which is not yet open."""

from pathlib import Path
from typing import Any

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines.factory import build_engine, check_entry
from batch_assets.engines.fake import FakeEngine
from batch_assets.engines.openai_engine import OpenAIEngine
from batch_assets.engines.registry import make_entry
from batch_assets.engines.vllm_apart import ApartVllm
from batch_assets.engines.vllm_args import known_engine_args
from batch_assets.engines.vllm_inline import InlineVllm


def entry_of(engine: str, **fields: Any) -> ModelEntry:
    return make_entry({"model_id": "m", "weights": "w", "engine": engine, **fields})


def test_each_kind_of_entry_has_its_engine(tmp_path: Path) -> None:
    assert isinstance(build_engine(entry_of("fake"), tmp_path), FakeEngine)
    assert isinstance(build_engine(entry_of("openai", base_url="http://x"), tmp_path), OpenAIEngine)
    assert isinstance(build_engine(entry_of("vllm", mode="inline"), tmp_path), InlineVllm)
    assert isinstance(build_engine(entry_of("vllm", mode="apart"), tmp_path), ApartVllm)


def test_only_an_engine_whose_death_leaves_us_alive_can_be_restarted(tmp_path: Path) -> None:
    entries = [
        entry_of("fake"),
        entry_of("openai", base_url="http://x"),
        entry_of("vllm", mode="inline"),
        entry_of("vllm", mode="apart"),
    ]
    assert [build_engine(e, tmp_path).is_restartable for e in entries] == [False, False, False, True]


@pytest.mark.parametrize(
    "engine",
    [
        "fake",
        pytest.param("vllm", marks=pytest.mark.skipif(known_engine_args() is None, reason="vLLM is not installed")),
    ],
)
def test_an_argument_that_the_engine_does_not_know_is_refused_before_anything_starts(
    engine: str, tmp_path: Path
) -> None:
    entry = entry_of(engine, engine_args={"no_such_argument": 1})
    with pytest.raises(ConfigError, match="no_such_argument"):
        check_entry(entry)
    with pytest.raises(ConfigError, match="no_such_argument"):
        build_engine(entry, tmp_path)
    assert list(tmp_path.iterdir()) == []
