"""The names of vLLM's engine arguments, read without importing vLLM: a wrong one is found before anything starts."""

import ast
import difflib
import importlib.util
from functools import lru_cache
from pathlib import Path

from batch_assets.core.errors import ConfigError
from batch_assets.core.models import ModelEntry

_OURS = frozenset({"model", "tokenizer", "revision"})


def check_engine_args(entry: ModelEntry) -> None:
    """Raise ConfigError, naming each argument that the installed vLLM doesn't know or that isn't the entry's to set.

    If vLLM is not installed, as on a machine that only serves the UI, nothing can be said and nothing is.
    """
    if isinstance(entry.engine_args.get("hf_token"), str):  # the web UI and the store show an entry's arguments
        raise ConfigError(
            f"models.yaml: {entry.model_id}: engine_args: hf_token: no secret here: set the variable HF_TOKEN"
        )
    known = known_engine_args()
    if known is None:
        return
    for name in entry.engine_args:
        if name in _OURS:
            raise ConfigError(f"models.yaml: {entry.model_id}: engine_args: {name}: say it by weights and revision")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"models.yaml: {entry.model_id}: engine_args: vLLM knows no argument {name}{hint}")


@lru_cache(maxsize=1)
def known_engine_args() -> frozenset[str] | None:
    """Return the fields of vLLM's `EngineArgs`, from its source; None if vLLM is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0], "engine", "arg_utils.py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "EngineArgs"]
    if not found:
        raise ConfigError(f"{source}: no class EngineArgs: this version of vLLM is not supported")
    fields = (n.target for n in found[0].body if isinstance(n, ast.AnnAssign))
    return frozenset(t.id for t in fields if isinstance(t, ast.Name))
