# SPDX-License-Identifier: Apache-2.0
"""Arguments of `tensorrt_llm.LLM(...)`, by its own names, read and typed. Standard library only.

They decide how an engine or a checkpoint is served: both worlds take the first table, the PyTorch
runtime the second as well (tensorrt_llm/llmapi/llm_args.py: BaseLlmArgs, TorchLlmArgs).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from buildlib.builder_toml import read_description
from buildlib.problems import BuildError, nearest

Check = Callable[[Any], bool]
DEFAULT_MAX_NUM_TOKENS: int = read_description(Path(__file__).parent)["max_num_tokens"]
# The check, and what it expects in words.
Rule = tuple[Check, str]
Table = Mapping[str, "Rule | dict[str, Rule]"]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_positive, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _one_of(*choices: str) -> Rule:
    return (lambda value: value in choices, f"one of {', '.join(choices)}")


WHOLE: Rule = (_is_whole, "a whole number")
POSITIVE: Rule = (_is_positive, "a whole number of at least 1")
FRACTION: Rule = (_is_fraction, "a fraction from 0 to 1")
SWITCH: Rule = (_is_switch, "true or false")
SIZES: Rule = (_is_sizes, "a list of whole numbers of at least 1")
NUMBER: Rule = (_is_number, "a number of at least 0")
TEXT: Rule = (lambda value: isinstance(value, str) and bool(value), "text")
TEXTS: Rule = (
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a list of text",
)
OBJECT: Rule = (lambda value: isinstance(value, dict), "an object")

KV_CACHE_CONFIG: dict[str, Rule] = {
    "enable_block_reuse": SWITCH,
    "max_tokens": POSITIVE,
    "max_attention_window": SIZES,
    "sink_token_length": WHOLE,
    "free_gpu_memory_fraction": FRACTION,
    "host_cache_size": WHOLE,
    "onboard_blocks": SWITCH,
    "cross_kv_cache_fraction": FRACTION,
    "secondary_offload_min_priority": WHOLE,
    "event_buffer_max_size": WHOLE,
    "enable_partial_reuse": SWITCH,
    "copy_on_partial_reuse": SWITCH,
    "use_uvm": SWITCH,
    "max_gpu_total_bytes": WHOLE,
    "dtype": _one_of("auto", "fp8", "nvfp4"),
    "tokens_per_block": POSITIVE,
}
SCHEDULER_CONFIG: dict[str, Rule] = {
    "capacity_scheduler_policy": _one_of("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"),
    "context_chunking_policy": _one_of("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"),
}
LORA_CONFIG: dict[str, Rule] = {
    "lora_dir": TEXTS,
    "lora_ckpt_source": _one_of("hf", "nemo"),
    "max_lora_rank": POSITIVE,
    "lora_target_modules": TEXTS,
    "max_loras": POSITIVE,
    "max_cpu_loras": POSITIVE,
}
CUDA_GRAPH_CONFIG: dict[str, Rule] = {
    "batch_sizes": SIZES,
    "max_batch_size": WHOLE,
    "enable_padding": SWITCH,
}
MOE_CONFIG: dict[str, Rule] = {
    "backend": _one_of(
        "AUTO", "CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "VANILLA", "TRITON"
    ),
    "max_num_tokens": POSITIVE,
    "disable_finalize_fusion": SWITCH,
    "use_low_precision_moe_combine": SWITCH,
}
TORCH_COMPILE_CONFIG: dict[str, Rule] = {
    "enable_fullgraph": SWITCH,
    "enable_inductor": SWITCH,
    "enable_piecewise_cuda_graph": SWITCH,
    "capture_num_tokens": SIZES,
    "enable_userbuffers": SWITCH,
    "max_num_streams": POSITIVE,
}

ENGINE_ARGUMENTS: Table = {
    "kv_cache_config": KV_CACHE_CONFIG,
    "scheduler_config": SCHEDULER_CONFIG,
    "enable_chunked_prefill": SWITCH,
    "guided_decoding_backend": _one_of("xgrammar", "llguidance"),
    "normalize_log_probs": SWITCH,
}
PYTORCH_ARGUMENTS: Table = {
    **{name: rule for name, rule in ENGINE_ARGUMENTS.items() if name != "normalize_log_probs"},
    "enable_lora": SWITCH,
    "lora_config": LORA_CONFIG,
    "cuda_graph_config": CUDA_GRAPH_CONFIG,
    "moe_config": MOE_CONFIG,
    "torch_compile_config": TORCH_COMPILE_CONFIG,
    "speculative_config": OBJECT,
    "attn_backend": TEXT,
    "dtype": _one_of("auto", "float16", "bfloat16", "float32"),
    "sampler_type": _one_of("auto", "TRTLLMSampler", "TorchSampler"),
    "allreduce_strategy": _one_of(
        "AUTO",
        "NCCL",
        "UB",
        "MINLATENCY",
        "ONESHOT",
        "TWOSHOT",
        "LOWPRECISION",
        "MNNVL",
        "NCCL_SYMMETRIC",
    ),
    "disable_overlap_scheduler": SWITCH,
    "enable_attention_dp": SWITCH,
    "moe_tensor_parallel_size": POSITIVE,
    "moe_expert_parallel_size": POSITIVE,
    "moe_cluster_parallel_size": POSITIVE,
    "gpus_per_node": POSITIVE,
    "enable_autotuner": SWITCH,
    "enable_min_latency": SWITCH,
    "enable_iter_perf_stats": SWITCH,
    "print_iter_log": SWITCH,
    "batch_wait_timeout_ms": NUMBER,
    "batch_wait_timeout_iters": WHOLE,
    "batch_wait_max_tokens_ratio": FRACTION,
    "garbage_collection_gen0_threshold": POSITIVE,
}


def read_arguments(raw: Mapping[str, Any], table: Table, where: str) -> dict[str, Any]:
    """Return what the project file has at `where`, checked; null: the runtime's own default.

    Raises:
        BuildError: a name is unknown or a value is not what the runtime takes.
    """
    for name, value in raw.items():
        if name not in table:
            raise _unknown(f"{where}.{name}", name, list(table))
        _check(f"{where}.{name}", value, table[name])
    return dict(raw)


def _check(where: str, value: Any, rule: "Rule | dict[str, Rule]") -> None:
    if value is None:
        return
    if not isinstance(rule, dict):
        check, expected = rule
        if not check(value):
            raise BuildError(
                f"{where} is {value!r}, expected {expected}",
                remedy=f"Correct {where}, or leave it out.",
            )
        return
    if not isinstance(value, dict):
        raise BuildError(
            f"{where} is {value!r}, expected an object with the keys {', '.join(rule)}",
            remedy=f"Correct {where}, or leave it out.",
        )
    for name, item in value.items():
        if name not in rule:
            raise _unknown(f"{where}.{name}", name, list(rule))
        _check(f"{where}.{name}", item, rule[name])


def _unknown(where: str, name: str, known: list[str]) -> BuildError:
    return BuildError(
        f"{where} is not an argument of tensorrt_llm.LLM{nearest(name, known)}",
        remedy=f"Use one of: {', '.join(known)}.",
    )
