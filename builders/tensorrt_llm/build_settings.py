# SPDX-License-Identifier: Apache-2.0
"""Predicts the features that trtllm-build derives from options, precision and KV cache.

The tool silently changes some features (tensorrt_llm/builder.py, `build`). Rules refuse a project
that sets the opposite. Otherwise the command states the tool's choice explicitly, so that an engine
does not depend on the defaults of a release. Standard library only.
"""

from pathlib import Path

from arguments import read_table
from build_facts import TrtllmBuildPlan
from folders import ENGINE

_NEMO = ".nemo"


def uses_paged_context(plan: TrtllmBuildPlan) -> bool:
    """Whether context attention of the compiled engine uses the paged KV cache."""
    options, cache = plan.options, plan.quantised.kv_cache_quant_algo
    if options.choice("speculative_decoding_mode") == "eagle":
        return True  # the tool ignores the option
    is_possible = options.is_enabled("context_fmha") and not options.is_enabled("streamingllm")
    is_cache_supported = cache is None or (cache == "FP8" and has_fp8_attention(plan))
    return options.is_enabled("use_paged_context_fmha") and is_possible and is_cache_supported


def has_fp8_attention(plan: TrtllmBuildPlan) -> bool:
    """Whether this quantisation computes attention in FP8."""
    return plan.quantised.quant_algo in read_table()["settled"]["fp8_attention"]


def uses_fp8_context(plan: TrtllmBuildPlan) -> bool:
    """Whether context attention of the compiled engine computes in FP8."""
    fp8_cache = plan.quantised.kv_cache_quant_algo == "FP8"
    is_possible = plan.options.is_enabled("context_fmha") and has_fp8_attention(plan)
    if not is_possible or (uses_paged_context(plan) and not fp8_cache):
        return False
    return plan.options.is_enabled("use_fp8_context_fmha")


def uses_fused_mlp(plan: TrtllmBuildPlan) -> bool:
    """Whether the tool fuses gated MLPs. It does not if their layers are quantised separately."""
    is_fusable = plan.quantised.quant_algo in (None, *read_table()["settled"]["fused_mlp"])
    return plan.options.is_enabled("use_fused_mlp") and is_fusable


def uses_chunked_context(plan: TrtllmBuildPlan) -> bool:
    """Whether long prompts are processed in chunks: as requested, else if necessary."""
    requested = plan.options.llm_arguments.get("enable_chunked_prefill")
    is_longer_than_step = plan.limits.max_input_len > plan.limits.max_num_tokens
    return (
        bool(requested)
        if requested is not None
        else is_longer_than_step and uses_paged_context(plan)
    )


def logits_dtype(plan: TrtllmBuildPlan) -> str:
    """Return the type of the engine's logits: as requested, else the checkpoint's."""
    return plan.options.choice("logits_dtype") or plan.quantised.logits_dtype


def adapter_paths(plan: TrtllmBuildPlan) -> dict[str, str]:
    """Return the paths to which the tool copies the adapters, by adapter name."""
    is_nemo = plan.options.choice("lora_ckpt_source") == "nemo"
    suffix = _NEMO if is_nemo else ""
    return {
        name: str(ENGINE / "lora" / f"{index}{suffix}")
        for index, name in enumerate(adapter_names(plan))
    }


def adapter_names(plan: TrtllmBuildPlan) -> list[str]:
    """Return the names of the adapters of lora_dir: folder names, or .nemo files without suffix."""
    is_nemo = plan.options.choice("lora_ckpt_source") == "nemo"
    names = [Path(folder).name for folder in plan.options.words("lora_dir")]
    return [name.removesuffix(_NEMO) if is_nemo else name for name in names]
