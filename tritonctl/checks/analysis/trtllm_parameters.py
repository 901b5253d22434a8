# SPDX-License-Identifier: Apache-2.0
"""The parameters of NVIDIA's `tensorrt_llm` model, and what each may be.

As the backend reads them: triton_backend/inflight_batcher_llm/src/model_instance_state.cc and
triton_backend/all_models/inflight_batcher_llm/tensorrt_llm in
https://github.com/NVIDIA/TensorRT-LLM (0.20 to 1.2.1);
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

STRATEGIES = ("inflight_fused_batching", "inflight_batching", "V1", "v1")
POLICIES = ("guaranteed_no_evict", "max_utilization")
DECODING_MODES = (
    *("top_k", "top_p", "top_k_top_p", "beam_search"),
    *("medusa", "redrafter", "lookahead", "eagle"),
)
LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
# Without one of these the C++ backend refuses the model; they may be empty.
DEMANDED = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")


class Wanted(NamedTuple):
    """What a parameter's string must be. `default`: what it counts as otherwise, in words."""

    words: str
    fits: Callable[[str], object]
    default: str


def _fraction(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(default: str) -> Wanted:
    return Wanted("a whole number", re.compile(r"\s*[+-]?\d+\s*\Z").match, default)


def _number(default: str) -> Wanted:
    return Wanted("a number", _fraction, default)


def _bool(default: str) -> Wanted:
    words = {"True", "true", "TRUE", "1", "False", "false", "FALSE", "0"}
    return Wanted("true or false", words.__contains__, default)


_INTEGERS = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*\Z")
_SETS = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*(;\s*\d+\s*(,\s*\d+\s*)*)*;?\s*\Z")

# Read by exception: what does not fit is a line in the log, and the default.
READ: dict[str, Wanted] = {
    "max_beam_width": _whole("1"),
    "max_tokens_in_paged_kv_cache": _whole("no bound"),
    "kv_cache_free_gpu_mem_fraction": _number("0.9"),
    "cross_kv_cache_fraction": _number("none"),
    "kv_cache_host_memory_bytes": _whole("0"),
    "kv_cache_onboard_blocks": _bool("true"),
    "enable_kv_cache_reuse": _bool("true"),
    "max_attention_window_size": Wanted(
        "whole numbers with commas between them", _INTEGERS.match, "the longest sequence"
    ),
    "sink_token_length": _whole("none"),
    "enable_chunked_context": _bool("false"),
    "exclude_input_in_output": _bool("false"),
    "cancellation_check_period_ms": _whole("100"),
    "stats_check_period_ms": _whole("100"),
    "recv_poll_period_ms": _whole("0, a busy loop"),
    "iter_stats_max_iterations": _whole("1000"),
    "request_stats_max_iterations": _whole("0"),
    "normalize_log_probs": _bool("true"),
    "gpu_device_ids": Wanted('GPUs as in "0,1;2,3"', _SETS.match, "all visible GPUs"),
    "participant_ids": Wanted('MPI ranks as in "1,2;3,4"', _SETS.match, "all ranks"),
    "num_nodes": _whole("1"),
    "lora_cache_optimal_adapter_size": _whole("8"),
    "lora_cache_max_adapter_size": _whole("64"),
    "lora_cache_gpu_memory_fraction": _number("0.05"),
    "lora_cache_host_memory_bytes": _whole("1 GB"),
    "gpu_weights_percent": _number("1.0"),
    "multi_block_mode": _bool("true"),
    "enable_context_fmha_fp32_acc": _bool("false"),
    "cuda_graph_mode": _bool("false"),
    "cuda_graph_cache_size": _whole("0"),
    "speculative_decoding_fast_logits": _bool("false"),
}
_TEXTS = (
    *("gpt_model_type", "gpt_model_path", "encoder_model_path", "batch_scheduler_policy"),
    *("decoding_mode", "medusa_choices", "eagle_choices", "lora_prefetch_dir"),
    *("executor_worker_path", "FORCE_CPU_ONLY_INPUT_TENSORS"),
)
KNOWN = frozenset((*READ, *_TEXTS, *LOOKAHEAD, *DEMANDED))
# Names that earlier releases read, and what became of each.
FORMER = {
    "worker_path": "it is called executor_worker_path now",
    "max_kv_cache_length": "it is called max_attention_window_size now",
    "max_num_sequences": "the engine's own max_batch_size counts now",
    "enable_trt_overlap": "it is no longer there",
}
