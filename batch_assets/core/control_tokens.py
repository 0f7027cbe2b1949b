"""Control tokens of chat models in a record: made plain text before they reach a model, so that they open no turn."""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

KNOWN: tuple[str, ...] = (
    "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<sop>", "<eop>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<start_of_turn>", "<end_of_turn>",
    "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[gMASK]", "[sMASK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]",
    "<seed:bos>", "<seed:eos>", "]~!b[", "]~b]", "[e~[", "<role>", "</role>", "<end_of_text>", "<end_of_utterance>",
    "<longcat_system>", "<longcat_user>", "<longcat_assistant>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>",
    "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<reserved_106>", "<reserved_107>", "<eoh>", "<eoa>",
    "[|system|]", "[|user|]", "[|assistant|]", "[|tool|]", "[|endofturn|]",
)  # fmt: skip
"""Tokens of the usual families that can't be told by their form. Those that can, `<|im_end|>` and the like, are always
broken."""

_BY_FORM = r"<[|｜][^\s<>|｜]{1,80}[|｜]?>|<[^\s<>|｜]{1,80}[|｜]>"
"""ChatML and most others: `<|im_start|>`, `<|eot_id|>`, `<|channel>`, `<turn|>`, DeepSeek's `<｜User｜>`."""


def break_control_tokens(text: str, tokens: Iterable[str] = KNOWN, *, keep: Collection[str] = ()) -> str:
    """Return a text in which each control token has a space after its first character: `< |im_end|>`.

    A plain space, since a person and a model see it and know what was there, and no tokenizer's normalisation takes it
    away as it may a zero-width character. Single characters in `tokens` are passed over, and those in `keep` stay. A
    text without a control token comes back as it is.
    """
    pattern, beginnings = _compile(tuple(tokens))
    if not any(beginning in text for beginning in beginnings):
        return text

    def put_apart(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else f"{match[0][0]} {match[0][1:]}"

    while (broken := pattern.sub(put_apart, text)) != text:  # a token may begin inside another one
        text = broken
    return text


def find_control_tokens(text: str) -> frozenset[str]:
    """Return the known control tokens in a text."""
    return frozenset(_compile(KNOWN)[0].findall(text))


@lru_cache(maxsize=64)
def _compile(tokens: tuple[str, ...]) -> tuple[re.Pattern[str], str]:
    """Return the pattern of control tokens, and the characters that they begin with: most texts hold none of these."""
    literal = sorted({t.strip() for t in tokens if len(t.strip()) > 1}, key=len, reverse=True)
    beginnings = "".join(sorted({"<", *(t[0] for t in literal)}))
    return re.compile("|".join([_BY_FORM, *map(re.escape, literal)])), beginnings
