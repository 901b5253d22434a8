# SPDX-License-Identifier: Apache-2.0
"""The parameters of NVIDIA's `tensorrt_llm` model and their valid values, for render and check.

They follow the backend's code: triton_backend/inflight_batcher_llm/src/model_instance_state.cc and
triton_backend/all_models/inflight_batcher_llm/tensorrt_llm in
https://github.com/NVIDIA/TensorRT-LLM (0.20 to 1.2.1);
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["whole", "number", "flag", "windows", "gpus", "ranks", "choice", "text"]

STRATEGIES = ("inflight_fused_batching", "inflight_batching", "V1", "v1")
POLICIES = ("guaranteed_no_evict", "max_utilization")
DECODING_MODES = (
    *("top_k", "top_p", "top_k_top_p", "beam_search"),
    *("medusa", "redrafter", "lookahead", "eagle"),
)
LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16"}
LOOKAHEAD_PARAMETERS = (
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
)
# The C++ backend has no default for these and refuses the model without one of them; they may be
# empty (getGuidedDecodingConfigFromParams in its model_instance_state.cc).
DEMANDED_PARAMETERS = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
# Names that earlier releases read, with their replacements.
FORMER_PARAMETERS = {
    "worker_path": "it is now called executor_worker_path",
    "max_kv_cache_length": "it is now called max_attention_window_size",
    "max_num_sequences": "the engine's max_batch_size counts now",
    "enable_trt_overlap": "it was removed",
}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_SETS = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*(;\s*\d+\s*(,\s*\d+\s*)*)*;?\s*\Z")
# The format of each kind's string: its description and the backend's test.
_READABLE: dict[Kind, tuple[str, Callable[[str], object]]] = {
    "whole": ("a whole number", re.compile(r"\s*[+-]?\d+\s*\Z").match),
    "number": ("a number", _is_number),
    "flag": (
        "true or false",
        {"True", "true", "TRUE", "1", "False", "false", "FALSE", "0"}.__contains__,
    ),
    "windows": (
        "whole numbers separated by commas",
        re.compile(r"\s*\d+\s*(,\s*\d+\s*)*\Z").match,
    ),
    "gpus": ('GPUs as in "0,1;2,3"', _SETS.match),
    "ranks": ('MPI ranks as in "1,2;3,4"', _SETS.match),
}


class ParameterLimit(NamedTuple):
    """A range of numbers."""

    expected_format: str
    holds: Callable[[float], bool]
    asserted: bool  # TensorRT-LLM's executor refuses the model for numbers out of range


_ABOVE_0_BELOW_1 = ParameterLimit("above 0 and below 1", lambda number: 0 < number < 1, True)
_ONE_OR_MORE = ParameterLimit("1 or more", lambda number: number >= 1, True)
_FROM_0_TO_1 = ParameterLimit("from 0 to 1", lambda number: 0 <= number <= 1, False)


class Parameter(NamedTuple):
    """The valid strings of a parameter."""

    kind: Kind
    # The value that the backend uses, with a line in its log, for an unreadable string.
    default: str = ""
    limit: ParameterLimit | None = None
    choices: tuple[str, ...] = ()

    @property
    def expected_format(self) -> str:
        """The description of its valid strings."""
        return _READABLE[self.kind][0]

    def fits(self, text: str) -> bool:
        """Whether the backend can read the string."""
        return self.kind not in _READABLE or bool(_READABLE[self.kind][1](text))


PARAMETERS: dict[str, Parameter] = {
    "gpt_model_type": Parameter("choice", choices=STRATEGIES),
    "gpt_model_path": Parameter("text"),
    "encoder_model_path": Parameter("text"),
    "max_beam_width": Parameter("whole", "1", _ONE_OR_MORE),
    "max_tokens_in_paged_kv_cache": Parameter("whole", "no bound"),
    "kv_cache_free_gpu_mem_fraction": Parameter("number", "0.9", _ABOVE_0_BELOW_1),
    "cross_kv_cache_fraction": Parameter("number", "none", _ABOVE_0_BELOW_1),
    "kv_cache_host_memory_bytes": Parameter("whole", "0"),
    "kv_cache_onboard_blocks": Parameter("flag", "true"),
    "enable_kv_cache_reuse": Parameter("flag", "true"),
    "max_attention_window_size": Parameter("windows", "the longest sequence"),
    "sink_token_length": Parameter("whole", "none", _ONE_OR_MORE),
    "batch_scheduler_policy": Parameter("choice", choices=POLICIES),
    "enable_chunked_context": Parameter("flag", "false"),
    "exclude_input_in_output": Parameter("flag", "false"),
    "cancellation_check_period_ms": Parameter("whole", "100"),
    "stats_check_period_ms": Parameter("whole", "100"),
    "recv_poll_period_ms": Parameter("whole", "0, a busy loop"),
    "iter_stats_max_iterations": Parameter("whole", "1000"),
    "request_stats_max_iterations": Parameter("whole", "0"),
    "normalize_log_probs": Parameter("flag", "true"),
    "gpu_device_ids": Parameter("gpus", "all visible GPUs"),
    "participant_ids": Parameter("ranks", "all ranks"),
    "num_nodes": Parameter("whole", "1"),
    "lora_cache_optimal_adapter_size": Parameter("whole", "8"),
    "lora_cache_max_adapter_size": Parameter("whole", "64"),
    "lora_cache_gpu_memory_fraction": Parameter("number", "0.05", _FROM_0_TO_1),
    "lora_cache_host_memory_bytes": Parameter("whole", "1 GB"),
    "lora_prefetch_dir": Parameter("text"),
    "decoding_mode": Parameter("choice", choices=DECODING_MODES),
    **dict.fromkeys(LOOKAHEAD_PARAMETERS, Parameter("whole")),
    "medusa_choices": Parameter("text"),
    "eagle_choices": Parameter("text"),
    "gpu_weights_percent": Parameter("number", "1.0", _FROM_0_TO_1),
    "multi_block_mode": Parameter("flag", "true"),
    "enable_context_fmha_fp32_acc": Parameter("flag", "false"),
    "cuda_graph_mode": Parameter("flag", "false"),
    "cuda_graph_cache_size": Parameter("whole", "0"),
    "speculative_decoding_fast_logits": Parameter("flag", "false"),
    "guided_decoding_backend": Parameter("choice", choices=("xgrammar",)),
    "xgrammar_tokenizer_info_path": Parameter("text"),
    "tokenizer_dir": Parameter("text"),
    "executor_worker_path": Parameter("text"),
    "FORCE_CPU_ONLY_INPUT_TENSORS": Parameter("text"),
}
# For these the backend logs an unreadable value and uses the default.
PARAMETERS_WITH_DEFAULT = {
    name: parameter for name, parameter in PARAMETERS.items() if parameter.default
}
