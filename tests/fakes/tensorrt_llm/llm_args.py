# SPDX-License-Identifier: Apache-2.0
"""The arguments of LLM() and its configuration classes, which are pydantic models in reality."""

from __future__ import annotations

from typing import Any

_COMMON = {
    *("model", "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code"),
    *("tensor_parallel_size", "dtype", "revision", "tokenizer_revision", "pipeline_parallel_size"),
    *("context_parallel_size", "gpus_per_node", "moe_cluster_parallel_size"),
    *("moe_tensor_parallel_size", "moe_expert_parallel_size", "enable_attention_dp"),
    *("cp_config", "load_format", "fail_fast_on_attention_window_too_large", "enable_lora"),
    *("lora_config", "kv_cache_config", "enable_chunked_prefill", "guided_decoding_backend"),
    *("batched_logits_processor", "iter_stats_max_iterations", "request_stats_max_iterations"),
    *("peft_cache_config", "scheduler_config", "cache_transceiver_config", "speculative_config"),
    *("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens"),
    *("gather_generation_logits", "num_postprocess_workers", "postprocess_tokenizer_dir"),
    *("reasoning_parser", "backend", "return_perf_metrics", "orchestrator_type"),
}
TRT_ARGS = _COMMON | {
    *("enable_tqdm", "workspace", "enable_build_cache", "extended_runtime_perf_knob_config"),
    *("calib_config", "quant_config", "embedding_parallel_mode", "fast_build", "build_config"),
    *("enable_prompt_adapter", "max_prompt_adapter_token", "batching_type"),
    "normalize_log_probs",
}
TORCH_ARGS = _COMMON | {
    *("garbage_collection_gen0_threshold", "cuda_graph_config", "attention_dp_config"),
    *("disable_overlap_scheduler", "moe_config", "attn_backend", "sampler_type"),
    *("enable_iter_perf_stats", "enable_iter_req_stats", "print_iter_log", "torch_compile_config"),
    *("enable_autotuner", "enable_layerwise_nvtx_marker", "stream_interval"),
    *("force_dynamic_quantization", "allreduce_strategy", "checkpoint_format"),
}


class StrictModel:
    """A pydantic model that forbids extra fields; its ValidationError is a ValueError."""

    FIELDS: dict[str, tuple[tuple[type, ...], Any]] = {}

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            if name not in self.FIELDS:
                raise ValueError(f"{type(self).__name__}.{name}: Extra inputs are not permitted")
            types = self.FIELDS[name][0]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise ValueError(f"{type(self).__name__}.{name}: Input should be a valid {types}")
        for name, (_, default) in self.FIELDS.items():
            setattr(self, name, values.get(name, default))


_NONE = type(None)


class KvCacheConfig(StrictModel):
    """As in tensorrt_llm.llmapi."""

    FIELDS = {
        "enable_block_reuse": ((bool,), True),
        "max_tokens": ((int, _NONE), None),
        "max_attention_window": ((list, _NONE), None),
        "sink_token_length": ((int, _NONE), None),
        "free_gpu_memory_fraction": ((float, int, _NONE), 0.9),
        "host_cache_size": ((int, _NONE), None),
        "onboard_blocks": ((bool,), True),
        "cross_kv_cache_fraction": ((float, _NONE), None),
        "secondary_offload_min_priority": ((int, _NONE), None),
        "event_buffer_max_size": ((int,), 0),
        "attention_dp_events_gather_period_ms": ((int,), 5),
        "enable_partial_reuse": ((bool,), True),
        "copy_on_partial_reuse": ((bool,), True),
        "use_uvm": ((bool,), False),
        "max_gpu_total_bytes": ((int,), 0),
        "dtype": ((str,), "auto"),
        "mamba_ssm_cache_dtype": ((str,), "auto"),
        "tokens_per_block": ((int,), 32),
    }
    enable_block_reuse: bool
    max_tokens: int | None
    tokens_per_block: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        fraction = values.get("free_gpu_memory_fraction", 0.9)
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError("kv_cache_config.free_gpu_memory_fraction must be between 0 and 1")
