"""From an entry to its engine, which is not yet open."""

from pathlib import Path
from typing import Any

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry
from batch_assets.engines.factory import build_engine, check_entry
from batch_assets.engines.fake import FakeEngine
from batch_assets.engines.openai_engine import OpenAIEngine
from batch_assets.engines.vllm_args import known_engine_args


def make_entry(engine: str, **fields: Any) -> ModelEntry:
    return ModelEntry.model_validate({"model_id": "m", "weights": "w", "engine": engine, **fields})


def test_each_kind_of_entry_has_its_engine(tmp_path: Path) -> None:
    assert isinstance(build_engine(make_entry("fake"), tmp_path), FakeEngine)
    assert isinstance(build_engine(make_entry("openai", base_url="http://x"), tmp_path), OpenAIEngine)
    assert type(build_engine(make_entry("vllm"), tmp_path)).__name__ == "VllmEngine"


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
    entry = make_entry(engine, engine_args={"no_such_argument": 1})
    with pytest.raises(ConfigError, match="no_such_argument"):
        check_entry(entry)
    with pytest.raises(ConfigError, match="no_such_argument"):
        build_engine(entry, tmp_path)
    assert list(tmp_path.iterdir()) == []
