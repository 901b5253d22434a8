# SPDX-License-Identifier: Apache-2.0
"""Rules about attention, the KV cache and sizes. rule_check.py defines rules."""

import dataclasses

from arguments import supported_models
from build_facts import TrtllmBuildPlan
from build_settings import has_fp8_attention, uses_chunked_context, uses_paged_context
from build_sizes import effective_max_num_tokens
from llm_arguments import ENGINE, ignored_arguments
from rule_check import refuse

_COMPILE = "engine.options.compile"


def engine_is_served_in_flight(plan: TrtllmBuildPlan) -> None:
    """In-flight batching needs the attention plugin, packed input and a paged KV cache."""
    options = plan.options
    changed = [name for name in ("remove_input_padding",) if not options.is_enabled(name)]
    changed += [name for name in ("gpt_attention_plugin",) if not options.choice(name)]
    if options.choice("kv_cache_type") != "paged":
        changed.append("kv_cache_type")
    if changed:
        refuse(
            f"without {', '.join(changed)} at its default an engine cannot batch in flight",
            f"Remove {', '.join(changed)} from {_COMPILE}.",
        )


def tokens_per_block_is_a_power_of_two(plan: TrtllmBuildPlan) -> None:
    """The attention kernels address blocks by bits."""
    size = plan.options.number("tokens_per_block")
    if size < 1 or size & (size - 1):
        refuse(
            f"tokens_per_block is {size}, and must be a power of two",
            f"Set {_COMPILE}.tokens_per_block to 32 or 64.",
        )


def paged_context_needs_context_fmha(plan: TrtllmBuildPlan) -> None:
    """Without context FMHA the tool disables both."""
    for name in ("use_paged_context_fmha", "use_fp8_context_fmha"):
        if plan.options.is_set_enabled(name) and not plan.options.is_enabled("context_fmha"):
            refuse(
                f"{name} is enabled and context_fmha disabled: the tool would disable both",
                f"Remove {_COMPILE}.context_fmha, or {name}.",
            )


def paged_context_excludes_streamingllm(plan: TrtllmBuildPlan) -> None:
    """With streamingllm the tool disables paged context attention."""
    if plan.options.is_enabled("streamingllm") and plan.options.is_set_enabled(
        "use_paged_context_fmha"
    ):
        refuse(
            "streamingllm and use_paged_context_fmha exclude each other",
            f"Remove one of them from {_COMPILE}.",
        )


def paged_context_fits_the_kv_cache(plan: TrtllmBuildPlan) -> None:
    """INT8 caches exclude it and FP8 caches need FP8 attention, else the tool disables it."""
    cache = plan.quantised.kv_cache_quant_algo
    if not plan.options.is_set_enabled("use_paged_context_fmha") or cache is None:
        return
    if not (cache == "FP8" and has_fp8_attention(plan)):
        refuse(
            f"use_paged_context_fmha does not work with an {cache} KV cache and precision "
            f"{plan.request.precision}: the tool would disable it",
            "Remove engine.kv_cache_dtype, or use kv_cache_dtype fp8 with precision fp8.",
        )


def kv_cache_reuse_needs_paged_context(plan: TrtllmBuildPlan) -> None:
    """Context attention reads reused blocks."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    if cache.get("enable_block_reuse") and not uses_paged_context(plan):
        refuse(
            "kv_cache_config.enable_block_reuse is true, and the engine has no paged context "
            f"attention{_unpaged_reason(plan)}",
            f"Set {_COMPILE}.kv_cache_config.enable_block_reuse to false, or let "
            "use_paged_context_fmha be enabled.",
        )


def chunked_context_needs_paged_context(plan: TrtllmBuildPlan) -> None:
    """A chunk reads the blocks of the chunks before it."""
    if plan.options.llm_arguments.get("enable_chunked_prefill") and not uses_paged_context(plan):
        refuse(
            "enable_chunked_prefill is true, and the engine has no paged context attention"
            + _unpaged_reason(plan),
            f"Remove {_COMPILE}.enable_chunked_prefill, or let use_paged_context_fmha be enabled.",
        )


def fp8_context_needs_an_fp8_precision(plan: TrtllmBuildPlan) -> None:
    """FP8 context attention goes with FP8 activations, on Ada or later."""
    if not plan.options.is_set_enabled("use_fp8_context_fmha"):
        return
    if not has_fp8_attention(plan):
        refuse(
            f"use_fp8_context_fmha does not work with precision {plan.request.precision}: the "
            "tool would disable it",
            f"Remove {_COMPILE}.use_fp8_context_fmha, or set engine.precision to fp8.",
        )


def fp8_context_goes_with_an_fp8_cache(plan: TrtllmBuildPlan) -> None:
    """On a paged cache the tool enables it if and only if the cache is FP8."""
    if not uses_paged_context(plan) or not has_fp8_attention(plan):
        return
    fp8_cache = plan.quantised.kv_cache_quant_algo == "FP8"
    if plan.options.is_set_enabled("use_fp8_context_fmha") and not fp8_cache:
        refuse(
            "use_fp8_context_fmha needs an FP8 KV cache where use_paged_context_fmha is enabled: "
            "the tool would disable it",
            "Set engine.kv_cache_dtype to fp8.",
        )
    if plan.options.is_set_disabled("use_fp8_context_fmha") and fp8_cache:
        refuse(
            "use_fp8_context_fmha is disabled, and paged context attention on an FP8 KV cache "
            "needs it: the tool would enable it",
            f"Remove {_COMPILE}.use_fp8_context_fmha, or disable use_paged_context_fmha too.",
        )


def reduce_fusion_needs_tensor_parallelism(plan: TrtllmBuildPlan) -> None:
    """It fuses the steps after an all-reduce in three models; elsewhere the tool disables it."""
    architecture, tp_size = plan.quantised.architecture, plan.limits.tp_size
    supported = supported_models("reduce_fusion")
    if plan.options.is_enabled("reduce_fusion") and (tp_size == 1 or architecture not in supported):
        refuse(
            f"reduce_fusion needs engine.tp_size above 1 and one of {', '.join(supported)}; "
            f"this is {architecture} with tp_size {tp_size}",
            f"Remove {_COMPILE}.reduce_fusion.",
        )


def user_buffer_needs_reduce_fusion(plan: TrtllmBuildPlan) -> None:
    """It works for FP8 LLaMA with reduce_fusion; elsewhere the tool disables it."""
    quantised = plan.quantised
    is_supported = quantised.quant_algo == "FP8" and quantised.architecture in supported_models(
        "user_buffer"
    )
    if plan.options.is_enabled("user_buffer") and not (
        plan.options.is_enabled("reduce_fusion") and is_supported
    ):
        refuse(
            "user_buffer needs reduce_fusion, precision fp8 and LlamaForCausalLM",
            f"Set {_COMPILE}.reduce_fusion to enable, or remove user_buffer.",
        )


def norm_quant_fusion_needs_nvfp4_llama(plan: TrtllmBuildPlan) -> None:
    """It works for NVFP4 LLaMA without reduce_fusion; elsewhere the tool disables it."""
    is_supported = plan.quantised.quant_algo == "NVFP4"
    is_supported = is_supported and plan.quantised.architecture in supported_models(
        "norm_quant_fusion"
    )
    if plan.options.is_enabled("norm_quant_fusion") and (
        plan.options.is_enabled("reduce_fusion") or not is_supported
    ):
        refuse(
            "norm_quant_fusion needs precision nvfp4, LlamaForCausalLM and no reduce_fusion",
            f"Remove {_COMPILE}.norm_quant_fusion.",
        )


def step_is_no_longer_than_a_batch(plan: TrtllmBuildPlan) -> None:
    """The tool clips max_num_tokens to the tokens of a full batch."""
    limits = plan.limits
    batch_tokens = limits.max_batch_size * limits.max_seq_len
    requested = plan.request.limits.max_num_tokens
    if requested is None or requested <= batch_tokens:
        return
    # The tool's minimum may exceed the tokens of a full batch.
    max_tokens = effective_max_num_tokens(
        dataclasses.replace(limits, max_num_tokens=batch_tokens), plan.options, plan.draft_len
    )
    if requested > max_tokens:
        refuse(
            f"engine.max_num_tokens is {requested}, and a full batch has {batch_tokens} tokens: "
            "max_batch_size * max_seq_len",
            "Set engine.max_num_tokens to "
            f"{max_tokens}{' or less' if max_tokens == batch_tokens else ''}, or leave it out.",
        )


def step_holds_a_block(plan: TrtllmBuildPlan) -> None:
    """The tool raises max_num_tokens to tokens_per_block and then needs chunked context."""
    block = plan.options.number("tokens_per_block")
    if plan.options.is_enabled("context_fmha") and plan.limits.max_num_tokens < block:
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, less than a KV block of "
            f"{block} tokens (tokens_per_block)",
            f"Set engine.max_num_tokens to {block} or more.",
        )


def prompt_fits_into_a_step(plan: TrtllmBuildPlan) -> None:
    """Without chunked context a whole prompt is one step: max_input_len <= max_num_tokens."""
    limits = plan.limits
    if limits.max_input_len <= limits.max_num_tokens or uses_chunked_context(plan):
        return
    refuse(
        f"engine.max_input_len is {limits.max_input_len}, and a step holds "
        f"{limits.max_num_tokens} tokens (max_num_tokens) without chunked context",
        f"Set engine.max_num_tokens to {limits.max_input_len} or more, or "
        f"{_COMPILE}.enable_chunked_prefill to true (it needs paged context attention).",
    )


def chunks_are_whole_blocks(plan: TrtllmBuildPlan) -> None:
    """With chunked context max_num_tokens is a multiple of tokens_per_block."""
    block = plan.options.number("tokens_per_block")
    if uses_chunked_context(plan) and plan.limits.max_num_tokens % block:
        multiple = plan.limits.max_num_tokens // block * block
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, and chunked context needs a "
            f"multiple of tokens_per_block ({block})",
            f"Set engine.max_num_tokens to {multiple} or {multiple + block}.",
        )


def kv_cache_type_comes_from_the_checkpoint(plan: TrtllmBuildPlan) -> None:
    """The KV cache has the type it was compiled with, so kv_cache_config.dtype stays auto."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    if cache.get("dtype") not in (None, "auto"):
        refuse(
            f"kv_cache_config.dtype is {cache['dtype']}, and an engine's KV cache is compiled in",
            f"Remove {_COMPILE}.kv_cache_config.dtype and set engine.kv_cache_dtype instead.",
        )


def blocks_are_those_of_the_engine(plan: TrtllmBuildPlan) -> None:
    """The size of a KV block is compiled in."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    block = plan.options.number("tokens_per_block")
    if cache.get("tokens_per_block") not in (None, block):
        refuse(
            f"kv_cache_config.tokens_per_block is {cache['tokens_per_block']}, and the engine is "
            f"compiled with {block}",
            f"Set only {_COMPILE}.tokens_per_block.",
        )


def arguments_are_not_ignored(plan: TrtllmBuildPlan) -> None:
    """The runtime accepts these fields and silently ignores them."""
    for name, _ in ignored_arguments(plan.options.llm_arguments, ENGINE, plan.version):
        refuse(
            f"{name} is set, and engines of TensorRT-LLM {plan.version} ignore it",
            f"Remove {_COMPILE}.{name}.",
        )


def guides_of_engines_are_xgrammar(plan: TrtllmBuildPlan) -> None:
    """Only the PyTorch runtime has llguidance."""
    if plan.options.llm_arguments.get("guided_decoding_backend") == "llguidance":
        refuse(
            "guided_decoding_backend llguidance is for the PyTorch runtime only",
            f"Set {_COMPILE}.guided_decoding_backend to xgrammar.",
        )


def _unpaged_reason(plan: TrtllmBuildPlan) -> str:
    cache = plan.quantised.kv_cache_quant_algo
    if plan.options.is_set_disabled("use_paged_context_fmha"):
        return " (use_paged_context_fmha is disabled)"
    if not plan.options.is_enabled("context_fmha"):
        return " (context_fmha is disabled)"
    if plan.options.is_enabled("streamingllm"):
        return " (streamingllm excludes it)"
    return f" (an {cache} KV cache with precision {plan.request.precision} excludes it)"
