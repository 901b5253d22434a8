# SPDX-License-Identifier: Apache-2.0
"""What trtllm-build ends up with where options, precision and KV cache decide together.

It silently changes some features (tensorrt_llm/builder.py, `build`). The rules refuse where
the project insisted on the opposite; elsewhere the command says outright what the tool would do, so
that an engine does not depend on the defaults of a release. Standard library only.
"""

from build_facts import Plan

# These compute attention in FP8 (builder.py, "FP8 Context FMHA").
FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")


def paged_context(plan: Plan) -> bool:
    """Return whether context attention will work on the paged KV cache, once the tool is done."""
    options, cache = plan.options, plan.quantised.kv_cache_quant_algo
    possible = options.enabled("context_fmha") and not options.enabled("streamingllm")
    fits = cache is None or (cache == "FP8" and plan.quantised.quant_algo in FP8_ATTENTION)
    return options.enabled("use_paged_context_fmha") and possible and fits


def fp8_context(plan: Plan) -> bool:
    """Return whether context attention will compute in FP8, once the tool is done."""
    fp8_cache = plan.quantised.kv_cache_quant_algo == "FP8"
    possible = plan.options.enabled("context_fmha") and plan.quantised.quant_algo in FP8_ATTENTION
    if not possible or (paged_context(plan) and not fp8_cache):
        return False
    return plan.options.enabled("use_fp8_context_fmha")


def fused_mlp(plan: Plan) -> bool:
    """Return whether the tool will fuse gated MLPs: not where their layers are quantised apart."""
    fusable = plan.quantised.quant_algo in (None, "FP8", "MIXED_PRECISION")
    return plan.options.enabled("use_fused_mlp") and fusable


def chunked_context(plan: Plan) -> bool:
    """Return whether long prompts are to be processed in chunks: as asked, else where needed."""
    asked = plan.options.llm_arguments.get("enable_chunked_prefill")
    needed = plan.limits.max_input_len > plan.limits.max_num_tokens
    return bool(asked) if asked is not None else needed and paged_context(plan)
