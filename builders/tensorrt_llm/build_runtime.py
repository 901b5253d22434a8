# SPDX-License-Identifier: Apache-2.0
"""Derives how a compiled engine must be served from its plan. Standard library only.

The keys are parameters of python_backends/trtllm_engine. `llm_args.json` has the same values as
arguments of `tensorrt_llm._tensorrt_engine.LLM`.
"""

import json
from pathlib import Path
from typing import Any

from build_facts import TrtllmBuildPlan
from build_settings import adapter_paths, logits_dtype, uses_chunked_context, uses_paged_context

LLM_ARGUMENTS = Path("llm_args.json")
# TensorRT-LLM's default, a share of the free memory after the engine is loaded.
_FREE_GPU_MEMORY_FRACTION = 0.9


def llm_arguments(plan: TrtllmBuildPlan) -> dict[str, Any]:
    """Return the arguments of the LLM that serves the engine. The sizes are compiled in."""
    arguments = dict(plan.options.llm_arguments)
    cache = {
        "free_gpu_memory_fraction": _FREE_GPU_MEMORY_FRACTION,
        "enable_block_reuse": uses_paged_context(plan),
        **(arguments.pop("kv_cache_config", None) or {}),
    }
    return {
        "tensor_parallel_size": plan.limits.tp_size,
        "pipeline_parallel_size": plan.limits.pp_size,
        "max_batch_size": plan.limits.max_batch_size,
        "max_num_tokens": plan.limits.max_num_tokens,
        "kv_cache_config": cache,
        **arguments,
        "enable_chunked_prefill": uses_chunked_context(plan),
    }


def runtime_object(plan: TrtllmBuildPlan) -> dict[str, Any]:
    """Return the `runtime` object of the build result."""
    arguments = llm_arguments(plan)
    return {
        "world": "engine",
        "block_size": plan.options.number("tokens_per_block"),
        "kv_cache_config": arguments["kv_cache_config"],
        "enable_chunked_prefill": arguments["enable_chunked_prefill"],
        "guided_decoding_backend": arguments.get("guided_decoding_backend") or "",
        "gather_generation_logits": any(
            plan.options.is_enabled(name)
            for name in ("gather_generation_logits", "gather_all_token_logits")
        ),
        "use_paged_context_fmha": uses_paged_context(plan),
        "logits_dtype": logits_dtype(plan),
        "world_size": plan.quantised.world_size,
        "lora_adapters": adapter_paths(plan),
    }


def write_llm_arguments(arguments: dict[str, Any]) -> None:
    """Write `llm_args.json` next to the engine or the checkpoint."""
    text = json.dumps(arguments, indent=2, ensure_ascii=False)
    LLM_ARGUMENTS.write_text(text + "\n", encoding="utf-8")
