"""What both modes of the vLLM engine share: environment, arguments, a request's way in and an answer's way out.

*Inline* (vllm_inline.py) steps the engine in a thread of this process; *apart* (vllm_apart.py) leaves it to processes
of its own. `VllmEntry.find_mode` says which of them an entry gets; what they answer is the same.
"""

import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from batch_assets.core.attempts import ErrorKind
from batch_assets.core.completions import Completion, Usage
from batch_assets.core.control_tokens import break_control_tokens
from batch_assets.core.errors import ConfigError, RequestFailed
from batch_assets.core.models import ModelEntry
from batch_assets.core.requests import Request
from batch_assets.engines.weights import Weights

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


def is_cpu_build() -> bool:
    """Return whether vLLM runs on the CPU here. True as well if it isn't installed."""
    for package in ("vllm-cpu", "vllm"):
        try:
            return "cpu" in f"{package} {importlib.metadata.version(package)}" or sys.platform == "darwin"
        except importlib.metadata.PackageNotFoundError:
            continue
    return True


def set_environment(forced: Mapping[str, str]) -> None:
    """Set what vLLM reads from the environment; what is there stays, except for `forced`."""
    defaults = dict(ENVIRONMENT)
    if is_cpu_build():
        # The number said outright: left to itself, OpenMP was measured at a quarter of the speed on two cores.
        defaults["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ.update(forced)


def import_vllm() -> Any:
    """Return the module. Raises ConfigError if it can't be imported."""
    try:
        import vllm
        import vllm.envs
    except ImportError as e:
        raise ConfigError(
            f"vLLM can't be imported ({e}): install the extra 'cpu' or 'gpu' of batch-assets, one of them"
        ) from e
    vllm.envs.disable_envs_cache()  # an inline engine that was open before has frozen the environment that vLLM sees
    return vllm


def make_args(entry: ModelEntry, weights: Weights) -> dict[str, Any]:
    """Return the engine arguments of an entry."""
    args: dict[str, Any] = {"structured_outputs_config": STRUCTURED_OUTPUTS, "seed": 0, **entry.engine_args}
    if weights.revision is not None:
        args["revision"] = weights.revision
    return {**args, "model": weights.model}


def make_prompt(engine: Any, request: Request) -> dict[str, list[int]]:
    """Return the prompt's tokens as vLLM takes them. Raises RequestFailed if they leave no room for an answer.

    The model's own control tokens come from its chat template alone: in a message they are broken into plain text.
    """
    tokenizer = engine.get_tokenizer()
    special = _find_special_tokens(tokenizer)
    messages = [{"role": m.role, "content": break_control_tokens(m.content, special)} for m in request.messages]
    token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    limit = engine.model_config.max_model_len
    if len(token_ids) >= limit:
        words = f"the prompt has {len(token_ids)} tokens, the model takes {limit} with the answer"
        raise RequestFailed(ErrorKind.CONTEXT_LENGTH, words, is_passing=False)
    return {"prompt_token_ids": token_ids}


def _find_special_tokens(tokenizer: Any) -> list[str]:
    """Return the texts that a tokenizer reads as control tokens; also those that it has no use for itself."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()  # vLLM's own tokenizers have none
    return sorted({*tokenizer.all_special_tokens, *(t.content for t in added if t.special)})


def make_sampling(request: Request) -> Any:
    """Return vLLM's sampling parameters, with the request's schema."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    s = request.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        max_tokens=s.max_tokens,
        seed=s.seed,
        stop=list(s.stop),
        structured_outputs=StructuredOutputsParams(json=dict(request.schema)),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def read_output(output: Any, started: float) -> Completion:
    """Return the completion of a finished request; `started` is of the monotonic clock."""
    answer = output.outputs[0]
    usage = Usage(
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(answer.token_ids),
        cached_tokens=output.num_cached_tokens,
    )
    return Completion(
        text=answer.text, finish_reason=answer.finish_reason, usage=usage, latency_s=time.monotonic() - started
    )


def refuse(error: Exception) -> RequestFailed:
    """Return the failure of a record that vLLM can't take."""
    if isinstance(error, RequestFailed):
        return error
    words = f"vLLM refused the request: {type(error).__name__}: {error}"[:300]
    return RequestFailed(ErrorKind.BAD_REQUEST, words, is_passing=False)


def run_out_of_time(entry: ModelEntry) -> RequestFailed:
    """Return the failure of a request that waited longer than the entry allows."""
    return RequestFailed(ErrorKind.TIMEOUT, f"no answer in {entry.timeout_s:g} s", is_passing=True)
