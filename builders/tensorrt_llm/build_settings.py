# SPDX-License-Identifier: Apache-2.0
"""What trtllm-build ends up with where options, precision and KV cache decide together.

It silently changes some features (tensorrt_llm/builder.py, `build`). The rules refuse where
the project insisted on the opposite; elsewhere the command says outright what the tool would do, so
that an engine does not depend on the defaults of a release. Standard library only.
"""

from pathlib import Path

from arguments import table
from build_facts import Plan
from folders import ENGINE

_NEMO = ".nemo"


def paged_context(plan: Plan) -> bool:
    """Return whether context attention will work on the paged KV cache, once the tool is done."""
    options, cache = plan.options, plan.quantised.kv_cache_quant_algo
    if options.choice("speculative_decoding_mode") == "eagle":
        return True  # whatever was asked
    possible = options.enabled("context_fmha") and not options.enabled("streamingllm")
    fits = cache is None or (cache == "FP8" and has_fp8_attention(plan))
    return options.enabled("use_paged_context_fmha") and possible and fits


def has_fp8_attention(plan: Plan) -> bool:
    """Return whether this quantisation computes attention in FP8."""
    return plan.quantised.quant_algo in table()["settled"]["fp8_attention"]


def fp8_context(plan: Plan) -> bool:
    """Return whether context attention will compute in FP8, once the tool is done."""
    fp8_cache = plan.quantised.kv_cache_quant_algo == "FP8"
    possible = plan.options.enabled("context_fmha") and has_fp8_attention(plan)
    if not possible or (paged_context(plan) and not fp8_cache):
        return False
    return plan.options.enabled("use_fp8_context_fmha")


def fused_mlp(plan: Plan) -> bool:
    """Return whether the tool will fuse gated MLPs: not where their layers are quantised apart."""
    fusable = plan.quantised.quant_algo in (None, *table()["settled"]["fused_mlp"])
    return plan.options.enabled("use_fused_mlp") and fusable


def chunked_context(plan: Plan) -> bool:
    """Return whether long prompts are to be processed in chunks: as asked, else where needed."""
    asked = plan.options.llm_arguments.get("enable_chunked_prefill")
    needed = plan.limits.max_input_len > plan.limits.max_num_tokens
    return bool(asked) if asked is not None else needed and paged_context(plan)


def logits_dtype(plan: Plan) -> str:
    """Return the type of the engine's logits: as asked, else the checkpoint's."""
    return plan.options.choice("logits_dtype") or plan.quantised.logits_dtype


def adapter_places(plan: Plan) -> dict[str, str]:
    """Return where the tool copies each adapter, by its name: that of its folder, or .nemo file."""
    nemo = plan.options.choice("lora_ckpt_source") == "nemo"
    suffix = _NEMO if nemo else ""
    return {
        name: str(ENGINE / "lora" / f"{index}{suffix}")
        for index, name in enumerate(adapter_names(plan))
    }


def adapter_names(plan: Plan) -> list[str]:
    """Return the names by which requests ask for the adapters of lora_dir."""
    nemo = plan.options.choice("lora_ckpt_source") == "nemo"
    names = [Path(folder).name for folder in plan.options.words("lora_dir")]
    return [name.removesuffix(_NEMO) if nemo else name for name in names]
