"""The real weights, converted for real: what vLLM will load."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_assets.demo_model.smollm2 import prepare_smollm2


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    cache_dir = tmp_path_factory.mktemp("models")
    yield prepare_smollm2(cache_dir)
    shutil.rmtree(cache_dir)  # 269 MB, which pytest would keep for three more sessions


@pytest.fixture(scope="module")
def config(model_dir: Path) -> dict[str, int]:
    return json.loads((model_dir / "config.json").read_text())


def expect_shapes(config: dict[str, int]) -> dict[str, list[int]]:
    """Return every tensor that a llama model of this configuration has, with its shape."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    key_rows = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.q_proj": [config["num_attention_heads"] * config["head_dim"], hidden],
        "self_attn.k_proj": [key_rows, hidden],
        "self_attn.v_proj": [key_rows, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    shapes = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    shapes["model.embed_tokens.weight"] = [config["vocab_size"], hidden]
    shapes["model.norm.weight"] = [hidden]
    return shapes


def test_the_tensors_are_those_that_the_configuration_promises(model_dir: Path, config: dict[str, int]) -> None:
    from safetensors import safe_open

    with safe_open(model_dir / "model.safetensors", framework="pt") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118 - not a mapping
        assert {name: part.get_shape() for name, part in slices.items()} == expect_shapes(config)
        assert {part.get_dtype() for part in slices.values()} == {"BF16"}
    assert config["tie_word_embeddings"]


def test_a_text_survives_tokenizing_and_special_tokens_stay_whole(model_dir: Path, config: dict[str, int]) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for text in ("Hello мир", "room 4021 🙂"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("4021").ids) == 4, "each digit is a token of its own"
    assert tokenizer.encode("<|im_end|>").ids == [config["eos_token_id"]]


def test_the_rows_of_queries_and_keys_are_in_the_order_that_the_model_expects(model_dir: Path) -> None:
    """With the rotary halves interleaved, as GGUF has them, the model loads, but loses count."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    prompt = tokenizer("one, two, three, four, five, six, seven, eight,", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(answer[0]).endswith("eight, nine, ten, eleven")
