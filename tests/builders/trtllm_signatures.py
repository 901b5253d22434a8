# SPDX-License-Identifier: Apache-2.0
"""The fields of NVIDIA's configuration classes by release, as its documentation prints them.

Source: https://nvidia.github.io/TensorRT-LLM/RELEASE/llm-api/reference/CLASS.html (1.4.0rc1 and
1.4.0rc4; for 1.3.0rc29 the pages of 1.3.0rc27 and llm_args.py of main). Written down apart from
arguments.toml, so that the two can be held against each other. Types are pydantic's; `TAIL` marks a
class whose page was not read to its end.
"""

from __future__ import annotations

TAIL = "…"
_COUNT, _SIZE, _SHARE = "NonNegativeInt", "PositiveInt", "Annotated[float, Field(ge=0, le=1)]"

_BACKENDS = (
    "Literal['AUTO', 'CUTLASS', 'CUTEDSL', 'CUTEDSL_FC12', 'TRTLLM', 'DEEPGEMM', 'DENSEGEMM', "
    "'VANILLA', 'TRITON', 'MARLIN', 'MEGAMOE_DEEPGEMM', 'MEGAMOE_CUTEDSL']"
)
_DRAFTING = {
    "max_draft_len": f"{_COUNT} | None",
    "max_total_draft_tokens": "int | None",
    "speculative_model": "str | None",
    "max_concurrency": f"{_SIZE} | None",
    "draft_len_schedule": "dict[int, int] | None",
    "load_format": "str | None",
    "acceptance_rate_window_size": f"{_COUNT} | None",
    "acceptance_rate_threshold": f"{_SHARE} | None",
    "use_rejection_sampling": "bool",
    "allow_advanced_sampling": "bool",
    "advanced_sampling_mode": "Literal['full', 'no_topk', 'no_topp', 'no_topk_no_topp']",
    "enable_penalty": "bool",
}
_TREE = {"use_dynamic_tree": "bool", "dynamic_tree_max_topK": "int | None"}
_KINDS = {
    "MTP": {
        **_TREE,
        "use_relaxed_acceptance_for_thinking": "bool",
        "relaxed_topk": _SIZE,
        "relaxed_delta": "NonNegativeFloat",
        "use_mtp_vanilla": "bool",
        "sa_config": "dict[str, Any] | None",
        "num_nextn_predict_layers": "int | None",
        "begin_thinking_phase_token": _COUNT,
        "end_thinking_phase_token": _COUNT,
    },
    "Eagle3": {
        **_TREE,
        "num_eagle_layers": "int | None",
        "max_non_leaves_per_layer": "int | None",
        "eagle3_layers_to_capture": "set[int] | None",
        "eagle3_model_arch": "Literal['llama3', 'mistral_large3']",
        "sa_config": "dict[str, Any] | None",
    },
    "PARD": {"mask_token_id": "int | None", "sa_config": "dict[str, Any] | None"},
    "NGram": {
        "max_matching_ngram_size": _SIZE,
        "is_keep_all": "bool",
        "is_use_oldest": "bool",
        "is_public_pool": "bool",
    },
    "SA": {
        "max_matching_ngram_size": "int",
        "enable_global_pool": "bool",
        "global_pool_size": f"{_SIZE} | None",
    },
}
_KV_CACHE = {
    "enable_block_reuse": "bool",
    "max_tokens": "int | None",
    "max_attention_window": "Annotated[list[int], Field(min_length=1)] | None",
    "sink_token_length": "int | None",
    "free_gpu_memory_fraction": f"{_SHARE} | None",
    "host_cache_size": "int | None",
    "disk_cache_size": f"{_COUNT} | None",
    "disk_cache_path": "str | None",
    "cross_kv_cache_fraction": f"{_SHARE} | None",
    "secondary_offload_min_priority": "int | None",
    "event_buffer_max_size": "int",
    "attention_dp_events_gather_period_ms": "int",
    "kv_events_config": "dict[str, Any] | None",
    "enable_partial_reuse": "bool",
    "copy_on_partial_reuse": "bool",
    "use_uvm": "bool",
    "max_gpu_total_bytes": _COUNT,
    "iteration_stats_interval": _SIZE,
    "dtype": "str",
}
_KV_CACHE_OF_MAIN = {
    "mamba_ssm_cache_dtype": "Literal['auto', 'float16', 'bfloat16', 'float32']",
    "mamba_ssm_stochastic_rounding": "bool",
    "mamba_ssm_philox_rounds": _SIZE,
    "tokens_per_block": "int",
    "mamba_state_cache_interval": f"{_COUNT} | None",
    "mamba_state_config": "dict[str, Any]",
    "use_kv_cache_manager_v2": "bool | Literal['auto']",
    "enable_swa_scratch_reuse": "bool",
    "kv_cache_event_hash_algo": "Literal['auto', 'v1_block_key', 'v2_sha256', 'v2_sha256_64']",
    "max_util_for_resume": "Annotated[float, Field(gt=0, le=1)]",
    "enable_kv_pool_rebalance": "bool",
    "disk_prefetch_num_reqs": _COUNT,
    "fp8_context_mla_kv_len_cap": "int | None",
    "pool_ratio": "Annotated[list[float], Field(min_length=1)] | None",
    "avg_seq_len": f"{_SIZE} | None",
    "block_reuse_config": "dict[str, Any]",
}
_REUSE = {
    "policy": "Literal['all_reusable', 'per_request', 'per_conversation']",
    "max_num_turns": _SIZE,
}
_SCHEDULER = {
    "capacity_scheduler_policy": (
        "Literal['MAX_UTILIZATION', 'GUARANTEED_NO_EVICT', 'STATIC_BATCH']"
    ),
    "context_chunking_policy": (
        "Literal['FIRST_COME_FIRST_SERVED', 'EQUAL_PROGRESS', 'FORCE_CHUNK'] | None"
    ),
    "dynamic_batch_config": "dict[str, Any] | None",
    "waiting_queue_policy": "Literal['fcfs', 'priority']",
    "use_python_scheduler": "bool",
    "enable_prefix_aware_scheduling": "bool",
}
_MOE = {
    "backend": _BACKENDS,
    "max_num_tokens": "int | None",
    "load_balancer": "Any",
    "disable_finalize_fusion": "bool",
    "use_low_precision_moe_combine": "bool",
}
_COMPILE = {
    "enable_fullgraph": "bool",
    "enable_inductor": "bool",
    "enable_piecewise_cuda_graph": "bool",
    "capture_num_tokens": f"list[{_SIZE}] | None",
    "enable_userbuffers": "bool",
    "max_num_streams": _SIZE,
}
_GRAPHS = {
    "batch_sizes": "list[int] | None",
    "max_batch_size": _COUNT,
    "enable_padding": "bool",
    "mode": "Literal['decode']",
}
_LORA = {
    "lora_dir": "list[str]",
    "lora_ckpt_source": "Literal['hf', 'nemo']",
    "max_lora_rank": "int",
    "lora_target_modules": "list[str]",
    "trtllm_modules_to_hf_modules": "dict[str, str]",
    "max_loras": "int | None",
    "max_cpu_loras": "int | None",
    "swap_gate_up_proj_lora_b_weight": "bool",
    "cuda_graph_specialize_lora": "bool",
    TAIL: "",
}

CLASSES: dict[str, dict[str, dict[str, str]]] = {
    "1.3.0rc29": {
        "KvCacheConfig": {**_KV_CACHE, **_KV_CACHE_OF_MAIN},
        "BlockReuseConfig": _REUSE,
        "SchedulerConfig": _SCHEDULER,
        "MoeConfig": _MOE,
        "TorchCompileConfig": _COMPILE,
        "CudaGraphConfig": _GRAPHS,
        "LoraConfig": _LORA,
    },
    "1.4.0rc1": {
        # Neither page nor source: only fields that the next release's page still has.
        "KvCacheConfig": {**_KV_CACHE, **_KV_CACHE_OF_MAIN, TAIL: ""},
        "BlockReuseConfig": {**_REUSE, "swa_endpoint_rewind_tokens": _COUNT},
        "SchedulerConfig": _SCHEDULER,
        "MoeConfig": _MOE,
        "TorchCompileConfig": {**_COMPILE, "compile_only_piecewise_graphs": "bool"},
        "CudaGraphConfig": _GRAPHS,
        "LoraConfig": _LORA,
    },
    "1.4.0rc4": {
        "KvCacheConfig": {
            **_KV_CACHE,
            "host_cache_bind_to_gpu_numa_node": "bool",
            "disk_io_threads": "Annotated[int, Field(ge=0, le=256)]",
            "disk_keep_copy_after_restore": "bool",
            "disk_write_through": "bool",
            "disk_protected_copy_fraction": _SHARE,
            "cold_tier_offload_min_priority": "int | None",
            TAIL: "",
        },
        "BlockReuseConfig": {
            **_REUSE,
            "swa_endpoint_rewind_tokens": _COUNT,
            "enable_branch_snapshot": "bool",
        },
        "SchedulerConfig": {
            **_SCHEDULER,
            "gen_preemption": "dict[str, Any]",
            "max_gen_init_admissions_per_pass": f"{_SIZE} | None",
            "context_scheduling_policy": "Literal['fcfs', 'shortest_uncached_first']",
            "context_starvation_iterations": f"{_SIZE} | None",
        },
        "MoeConfig": {**_MOE, "tactic": "str | None", "megamoe_fuse_shared_expert": "bool"},
        "TorchCompileConfig": {**_COMPILE, TAIL: ""},
        "CudaGraphConfig": {**_GRAPHS, TAIL: ""},
        "LoraConfig": _LORA,
    },
}

_LATER_DRAFTING = {"moe_backend": f"{_BACKENDS} | None", "spec_dec_variant": _SIZE}
_NEWEST_DRAFTING = {**_LATER_DRAFTING, "moe_tactic": "str | None"}
_NEWEST_MTP = {
    "draft_lm_head_dtype": "Literal['auto', 'mxfp8']",
    "draft_moe_dtype": "Literal['auto', 'nvfp4']",
}
KINDS: dict[str, dict[str, dict[str, str]]] = {
    "1.3.0rc29": {kind: {**_DRAFTING, **fields} for kind, fields in _KINDS.items()},
    "1.4.0rc1": {
        kind: {**_DRAFTING, **_LATER_DRAFTING, **fields} for kind, fields in _KINDS.items()
    },
    "1.4.0rc4": {
        kind: {
            **_DRAFTING,
            **_NEWEST_DRAFTING,
            **{name: type_ for name, type_ in fields.items() if name != "num_eagle_layers"},
            **(_NEWEST_MTP if kind == "MTP" else {}),
        }
        for kind, fields in _KINDS.items()
    },
}
