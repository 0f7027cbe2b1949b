"""From an entry of models.yaml to its engine."""

from pathlib import Path

from batch_assets.core.models import ModelEntry
from batch_assets.engines.base import Engine
from batch_assets.engines.fake import build_fake
from batch_assets.engines.openai_engine import OpenAIEngine
from batch_assets.engines.vllm_apart import ApartVllm
from batch_assets.engines.vllm_args import check_engine_args
from batch_assets.engines.vllm_engine import find_mode
from batch_assets.engines.vllm_inline import InlineVllm


def build_engine(entry: ModelEntry, cache_dir: Path) -> Engine:
    """Return the engine of an entry, not yet open. ConfigError for arguments that it doesn't know."""
    match entry.engine:
        case "vllm":
            check_engine_args(entry)
            chosen = ApartVllm if find_mode(entry) == "apart" else InlineVllm
            return chosen(entry, cache_dir)
        case "openai":
            return OpenAIEngine(entry)
        case "fake":
            return build_fake(entry)


def check_entry(entry: ModelEntry) -> None:
    """Refuse an entry whose arguments its engine doesn't know, without starting anything."""
    if entry.engine == "vllm":
        check_engine_args(entry)
    elif entry.engine == "fake":
        build_fake(entry)
