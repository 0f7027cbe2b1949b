"""Turn one GGUF file into the folder that vLLM and transformers load, since vLLM reads no GGUF on a CPU.

Only what SmolLM2 needs belongs here: architecture `llama`, a GPT-2 byte-pair tokenizer split the `smollm` way. Anything
else is refused, because a wrong guess would load and answer nonsense. Where the file comes from is smollm2.py's matter.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_assets.core.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from torch import Tensor

CONVERTER_VERSION = "1"
"""Raised when the same GGUF file gives other output files: converted folders carry it in their name."""

OUTPUT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

_SUPPORTED = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
}

_OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_CONTROL_TOKEN = 3
"""GGUF's token type of special tokens such as `<|im_end|>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The key-value part of a GGUF file."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """Return the value of `key`; ConfigError if the file has none."""
        try:
            return self.values[key]
        except KeyError as e:
            raise ConfigError(f"{self.path}: the GGUF header has no {key}; this converter needs it") from e

    def token(self, role: str) -> str:
        """Return the text of the special token that plays `role` (bos, eos, padding, unknown)."""
        return self.get("tokenizer.ggml.tokens")[self.get(f"tokenizer.ggml.{role}_token_id")]


def convert_gguf(gguf_path: Path, out_dir: Path) -> None:
    """Write `OUTPUT_FILES` into the existing folder `out_dir`: weights as bfloat16, and a fast tokenizer.

    Raises ConfigError if the file isn't a GGUF, or is of a kind that this module doesn't know.
    """
    reader = _open_gguf(gguf_path)
    header = _Header(path=gguf_path, values={key: field.contents() for key, field in reader.fields.items()})
    _require_supported(header)
    is_tied = _write_weights(reader, header, out_dir / "model.safetensors")
    _write_json(out_dir / "config.json", _build_config(header, is_tied=is_tied))
    _write_json(out_dir / "generation_config.json", _build_token_ids(header))
    _write_tokenizer(header, out_dir / "tokenizer.json")
    _write_json(out_dir / "tokenizer_config.json", _build_tokenizer_config(header))


def _open_gguf(path: Path) -> "GGUFReader":
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, IndexError) as e:  # what it raises on a foreign or a cut-off file
        raise ConfigError(f"{path}: not a readable GGUF file: {e}") from e


def _require_supported(header: _Header) -> None:
    for key, supported in _SUPPORTED.items():
        found = header.get(key)
        if found != supported:
            raise ConfigError(f"{header.path}: {key} is {found!r}; this converter knows {supported!r} only")


def _write_weights(reader: "GGUFReader", header: _Header, path: Path) -> bool:
    """Write all tensors, and say whether the output layer is tied to the embedding (the file then has no own one)."""
    import safetensors.torch

    weights = {_rename_tensor(tensor.name, header): _load_tensor(tensor, header) for tensor in reader.tensors}
    try:
        safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as e:  # a full disk too: it is no OSError there
        raise ConfigError(f"{path}: the weights can't be written: {e}") from e
    return "lm_head.weight" not in weights


def _rename_tensor(name: str, header: _Header) -> str:
    if name in _OUTER_TENSORS:
        return _OUTER_TENSORS[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_TENSORS:
            return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight"
        case _:
            raise ConfigError(f"{header.path}: the tensor {name} isn't one of a plain llama model")


def _load_tensor(tensor: "ReaderTensor", header: _Header) -> "Tensor":
    """Return the tensor dequantized, in Hugging Face's shape and order of rows, as bfloat16."""
    import torch
    from gguf.quants import dequantize

    # GGUF names the fastest dimension first, torch the slowest.
    shape = [int(size) for size in reversed(tensor.shape)]
    weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32).reshape(shape)
    if tensor.name.endswith(".attn_q.weight"):
        weight = _restore_rotary_order(weight, header.get("llama.attention.head_count"))
    elif tensor.name.endswith(".attn_k.weight"):
        weight = _restore_rotary_order(weight, header.get("llama.attention.head_count_kv"))
    return weight.to(torch.bfloat16).contiguous()


def _restore_rotary_order(weight: "Tensor", heads: int) -> "Tensor":
    """Undo `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py, which interleaves a head's two rotary halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _build_token_ids(header: _Header) -> dict[str, int]:
    return {
        "bos_token_id": header.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.get("tokenizer.ggml.padding_token_id"),
    }


def _build_config(header: _Header, *, is_tied: bool) -> dict[str, Any]:
    hidden_size: int = header.get("llama.embedding_length")
    heads: int = header.get("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(header.get("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": header.get("llama.feed_forward_length"),
        "num_hidden_layers": header.get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.get("llama.attention.head_count_kv"),
        "head_dim": hidden_size // heads,
        "hidden_act": "silu",
        "max_position_embeddings": header.get("llama.context_length"),
        "rms_norm_eps": header.get("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": header.get("llama.rope.freq_base"),
        "tie_word_embeddings": is_tied,
        "attention_bias": False,
        "mlp_bias": False,
        **_build_token_ids(header),
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(header: _Header, path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = header.get("tokenizer.ggml.tokens")
    kinds: list[int] = header.get("tokenizer.ggml.token_type")
    pairs = [merge.split(" ", 1) for merge in header.get("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # llama.cpp's LLAMA_VOCAB_PRE_TYPE_SMOLLM
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(path))


def _build_tokenizer_config(header: _Header) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": header.token("bos"),
        "eos_token": header.token("eos"),
        "pad_token": header.token("padding"),
        "unk_token": header.token("unknown"),
        "model_max_length": header.get("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": header.get("tokenizer.chat_template"),
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
