"""Engine arguments are checked against the vLLM that is installed, without importing it."""

import re
import sys

import pytest

from batch_assets.core.errors import ConfigError
from batch_assets.engines import vllm_args
from batch_assets.engines.vllm_args import check_engine_args, known_engine_args
from batch_assets.engines.vllm_entry import VllmEntry


def make_entry(**engine_args: object) -> VllmEntry:
    return VllmEntry.model_validate({"model_id": "m", "weights": "w", "engine": "vllm", "engine_args": engine_args})


@pytest.fixture(autouse=True)
def fresh_cache() -> None:
    known_engine_args.cache_clear()


needs_vllm = pytest.mark.skipif(known_engine_args() is None, reason="vLLM is not installed: nothing to check against")


@needs_vllm
def test_arguments_of_vllm_are_known() -> None:
    known = known_engine_args() or frozenset()
    assert {"max_model_len", "dtype", "tensor_parallel_size", "gpu_memory_utilization", "enforce_eager"} <= known
    check_engine_args(make_entry(max_model_len=2048, dtype="bfloat16", enforce_eager=True))


@needs_vllm
def test_the_names_are_read_without_importing_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    known_engine_args()
    assert "vllm" not in sys.modules


@needs_vllm
@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("max_model_length", "did you mean max_model_len?"),
        ("max-model-len", "did you mean max_model_len?"),
        ("zzz", "zzz"),
    ],
)
def test_an_argument_that_vllm_does_not_know_is_named_with_a_hint(argument: str, hint: str) -> None:
    words = f"models.yaml: m: engine_args: vLLM knows no argument {argument}"
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        check_engine_args(make_entry(**{argument: 1}))
    assert str(error.value).endswith(hint)


@needs_vllm
@pytest.mark.parametrize("argument", ["model", "tokenizer", "revision"])
def test_an_argument_that_the_entry_has_a_field_for_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"engine_args: {argument}: say it by weights and revision"):
        check_engine_args(make_entry(**{argument: "x"}))


def test_where_vllm_is_not_installed_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_args.importlib.util, "find_spec", lambda _: None)
    assert known_engine_args() is None
    check_engine_args(make_entry(whatever=1))


def test_a_token_among_the_arguments_is_refused_and_not_repeated() -> None:
    entry = VllmEntry(model_id="m", weights="w", engine="vllm", engine_args={"hf_token": "hunter2"})
    with pytest.raises(ConfigError, match="m: engine_args: hf_token: no secret here") as refused:
        check_engine_args(entry)
    assert "hunter2" not in str(refused.value)
