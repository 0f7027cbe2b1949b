"""vLLM in models.yaml: the fields that only its entries have, and what opens it."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from batch_assets.engines.base import Engine, EngineEntry
from batch_assets.engines.registry import register_engine
from batch_assets.engines.vllm_apart import ApartVllm
from batch_assets.engines.vllm_args import check_engine_args
from batch_assets.engines.vllm_engine import is_cpu_build
from batch_assets.engines.vllm_inline import InlineVllm
from batch_assets.engines.weights import check_revision


@register_engine("vllm")
class VllmEntry(EngineEntry):
    """An entry whose weights vLLM loads.

    `mode` says which process runs vLLM's loop: `inline` ours, `apart` in processes of its own; `auto` is inline on a
    CPU and apart on a GPU. `engine_args` are those of vLLM's `EngineArgs`.
    """

    not_identity: ClassVar[Mapping[str, str]] = {"mode": "where the engine's loop runs"}
    opens_weights: ClassVar[bool] = True

    mode: Literal["auto", "inline", "apart"] = "auto"

    def check(self) -> None:
        """Refuse arguments that the installed vLLM doesn't know, and a revision that may change unseen."""
        check_engine_args(self)
        check_revision(self)

    def build(self, cache_dir: Path) -> Engine:
        """Return the engine in the entry's mode."""
        return (ApartVllm if self.find_mode() == "apart" else InlineVllm)(self, cache_dir)

    def find_mode(self) -> Literal["inline", "apart"]:
        """Return the entry's mode; of `auto`, apart if the vLLM that is installed is built for a GPU, else inline.

        By the build, not by what `nvidia-smi` lists: the build says where the model will run, also on a machine with a
        GPU that was set up for the CPU. vLLM chooses its platform in the same way.
        """
        if self.mode == "auto":
            return "inline" if is_cpu_build() else "apart"
        return self.mode
