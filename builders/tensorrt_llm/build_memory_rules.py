# SPDX-License-Identifier: Apache-2.0
"""Rules about attention, the KV cache and sizes; build_rules.py says what a rule is."""

import dataclasses

from arguments import models
from build_facts import Plan
from build_settings import chunked_context, has_fp8_attention, paged_context
from build_sizes import settled_tokens
from llm_arguments import ENGINE, ignored
from rule_check import refuse

_COMPILE = "engine.options.compile"


def engine_is_served_in_flight(plan: Plan) -> None:
    """Requests join and leave each step: attention plugin, packed input, paged KV cache."""
    options = plan.options
    wrong = [name for name in ("remove_input_padding",) if not options.enabled(name)]
    wrong += [name for name in ("gpt_attention_plugin",) if not options.choice(name)]
    if options.choice("kv_cache_type") != "paged":
        wrong.append("kv_cache_type")
    if wrong:
        refuse(
            f"without {', '.join(wrong)} at its default an engine cannot batch in flight",
            f"Remove {', '.join(wrong)} from {_COMPILE}.",
        )


def tokens_per_block_is_a_power_of_two(plan: Plan) -> None:
    """The attention kernels address blocks by bits."""
    size = plan.options.number("tokens_per_block")
    if size < 1 or size & (size - 1):
        refuse(
            f"tokens_per_block is {size}, and must be a power of two",
            f"Set {_COMPILE}.tokens_per_block to 32 or 64.",
        )


def paged_context_needs_context_fmha(plan: Plan) -> None:
    """The tool disables both when context FMHA is off."""
    for name in ("use_paged_context_fmha", "use_fp8_context_fmha"):
        if plan.options.insisted(name) and not plan.options.enabled("context_fmha"):
            refuse(
                f"{name} is enabled and context_fmha disabled: the tool would disable both",
                f"Remove {_COMPILE}.context_fmha, or {name}.",
            )


def paged_context_excludes_streamingllm(plan: Plan) -> None:
    """The tool disables paged context attention then."""
    if plan.options.enabled("streamingllm") and plan.options.insisted("use_paged_context_fmha"):
        refuse(
            "streamingllm and use_paged_context_fmha exclude each other",
            f"Remove one of them from {_COMPILE}.",
        )


def paged_context_fits_the_kv_cache(plan: Plan) -> None:
    """INT8 caches exclude it, FP8 ones need FP8 attention: the tool would disable it."""
    cache = plan.quantised.kv_cache_quant_algo
    if not plan.options.insisted("use_paged_context_fmha") or cache is None:
        return
    if not (cache == "FP8" and has_fp8_attention(plan)):
        refuse(
            f"use_paged_context_fmha does not work with an {cache} KV cache and precision "
            f"{plan.request.precision}: the tool would disable it",
            "Remove engine.kv_cache_dtype, or use kv_cache_dtype fp8 with precision fp8.",
        )


def kv_cache_reuse_needs_paged_context(plan: Plan) -> None:
    """Reused blocks are read by context attention."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    if cache.get("enable_block_reuse") and not paged_context(plan):
        refuse(
            "kv_cache_config.enable_block_reuse is true, and the engine has no paged context "
            f"attention{_why_not_paged(plan)}",
            f"Set {_COMPILE}.kv_cache_config.enable_block_reuse to false, or let "
            "use_paged_context_fmha be enabled.",
        )


def chunked_context_needs_paged_context(plan: Plan) -> None:
    """A chunk reads the blocks of the chunks before it."""
    if plan.options.llm_arguments.get("enable_chunked_prefill") and not paged_context(plan):
        refuse(
            "enable_chunked_prefill is true, and the engine has no paged context attention"
            + _why_not_paged(plan),
            f"Remove {_COMPILE}.enable_chunked_prefill, or let use_paged_context_fmha be enabled.",
        )


def fp8_context_needs_an_fp8_precision(plan: Plan) -> None:
    """FP8 context attention goes with FP8 activations, on Ada or later."""
    if not plan.options.insisted("use_fp8_context_fmha"):
        return
    if not has_fp8_attention(plan):
        refuse(
            f"use_fp8_context_fmha does not work with precision {plan.request.precision}: the "
            "tool would disable it",
            f"Remove {_COMPILE}.use_fp8_context_fmha, or set engine.precision to fp8.",
        )


def fp8_context_goes_with_an_fp8_cache(plan: Plan) -> None:
    """On a paged cache the tool sets it to whether the cache is FP8, whatever was asked."""
    if not paged_context(plan) or not has_fp8_attention(plan):
        return
    fp8_cache = plan.quantised.kv_cache_quant_algo == "FP8"
    if plan.options.insisted("use_fp8_context_fmha") and not fp8_cache:
        refuse(
            "use_fp8_context_fmha needs an FP8 KV cache where use_paged_context_fmha is enabled: "
            "the tool would disable it",
            "Set engine.kv_cache_dtype to fp8.",
        )
    if plan.options.refused("use_fp8_context_fmha") and fp8_cache:
        refuse(
            "use_fp8_context_fmha is disabled, and paged context attention on an FP8 KV cache "
            "needs it: the tool would enable it",
            f"Remove {_COMPILE}.use_fp8_context_fmha, or disable use_paged_context_fmha too.",
        )


def reduce_fusion_needs_tensor_parallelism(plan: Plan) -> None:
    """It fuses what follows an all-reduce, in three models: elsewhere the tool disables it."""
    architecture, tp_size = plan.quantised.architecture, plan.limits.tp_size
    fusing = models("reduce_fusion")
    if plan.options.enabled("reduce_fusion") and (tp_size == 1 or architecture not in fusing):
        refuse(
            f"reduce_fusion needs engine.tp_size above 1 and one of {', '.join(fusing)}; "
            f"this is {architecture} with tp_size {tp_size}",
            f"Remove {_COMPILE}.reduce_fusion.",
        )


def user_buffer_needs_reduce_fusion(plan: Plan) -> None:
    """It is for FP8 LLaMA with reduce_fusion: elsewhere the tool disables it."""
    quantised = plan.quantised
    fits = quantised.quant_algo == "FP8" and quantised.architecture in models("user_buffer")
    if plan.options.enabled("user_buffer") and not (plan.options.enabled("reduce_fusion") and fits):
        refuse(
            "user_buffer needs reduce_fusion, precision fp8 and LlamaForCausalLM",
            f"Set {_COMPILE}.reduce_fusion to enable, or remove user_buffer.",
        )


def norm_quant_fusion_needs_nvfp4_llama(plan: Plan) -> None:
    """It is for NVFP4 LLaMA without reduce_fusion: elsewhere the tool disables it."""
    fits = plan.quantised.quant_algo == "NVFP4"
    fits = fits and plan.quantised.architecture in models("norm_quant_fusion")
    if plan.options.enabled("norm_quant_fusion") and (
        plan.options.enabled("reduce_fusion") or not fits
    ):
        refuse(
            "norm_quant_fusion needs precision nvfp4, LlamaForCausalLM and no reduce_fusion",
            f"Remove {_COMPILE}.norm_quant_fusion.",
        )


def step_is_no_longer_than_a_batch(plan: Plan) -> None:
    """The tool clips max_num_tokens to what a full batch can bring."""
    limits = plan.limits
    most = limits.max_batch_size * limits.max_seq_len
    asked = plan.request.limits.max_num_tokens
    if asked is None or asked <= most:
        return
    # A batch may bring less than the least that the tool makes of it.
    largest = settled_tokens(
        dataclasses.replace(limits, max_num_tokens=most), plan.options, plan.draft_len
    )
    if asked > largest:
        refuse(
            f"engine.max_num_tokens is {asked}, and a full batch brings {most}: max_batch_size * "
            "max_seq_len",
            f"Set engine.max_num_tokens to {largest}{' or less' if largest == most else ''}, or "
            "leave it out.",
        )


def step_holds_a_block(plan: Plan) -> None:
    """The tool raises max_num_tokens to tokens_per_block, and then needs chunked context."""
    block = plan.options.number("tokens_per_block")
    if plan.options.enabled("context_fmha") and plan.limits.max_num_tokens < block:
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, less than a KV block of "
            f"{block} tokens (tokens_per_block)",
            f"Set engine.max_num_tokens to {block} or more.",
        )


def prompt_fits_into_a_step(plan: Plan) -> None:
    """Without chunked context a whole prompt is one step: max_input_len <= max_num_tokens."""
    limits = plan.limits
    if limits.max_input_len <= limits.max_num_tokens or chunked_context(plan):
        return
    refuse(
        f"engine.max_input_len is {limits.max_input_len}, and a step holds "
        f"{limits.max_num_tokens} tokens (max_num_tokens) without chunked context",
        f"Set engine.max_num_tokens to {limits.max_input_len} or more, or "
        f"{_COMPILE}.enable_chunked_prefill to true (it needs paged context attention).",
    )


def chunks_are_whole_blocks(plan: Plan) -> None:
    """With chunked context max_num_tokens is a multiple of tokens_per_block."""
    block = plan.options.number("tokens_per_block")
    if chunked_context(plan) and plan.limits.max_num_tokens % block:
        fitting = plan.limits.max_num_tokens // block * block
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, and chunked context needs a "
            f"multiple of tokens_per_block ({block})",
            f"Set engine.max_num_tokens to {fitting} or {fitting + block}.",
        )


def kv_cache_type_comes_from_the_checkpoint(plan: Plan) -> None:
    """An engine's KV cache has the type it was compiled with: kv_cache_config.dtype stays auto."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    if cache.get("dtype") not in (None, "auto"):
        refuse(
            f"kv_cache_config.dtype is {cache['dtype']}, and an engine's KV cache is compiled in",
            f"Remove {_COMPILE}.kv_cache_config.dtype and set engine.kv_cache_dtype instead.",
        )


def blocks_are_those_of_the_engine(plan: Plan) -> None:
    """The size of a KV block is compiled in as well."""
    cache = plan.options.llm_arguments.get("kv_cache_config") or {}
    block = plan.options.number("tokens_per_block")
    if cache.get("tokens_per_block") not in (None, block):
        refuse(
            f"kv_cache_config.tokens_per_block is {cache['tokens_per_block']}, and the engine is "
            f"compiled with {block}",
            f"Set {_COMPILE}.tokens_per_block alone.",
        )


def arguments_are_not_ignored(plan: Plan) -> None:
    """A field that the runtime takes and does not look at would be dropped silently."""
    for name, _ in ignored(plan.options.llm_arguments, ENGINE, plan.version):
        refuse(
            f"{name} is set, and engines of TensorRT-LLM {plan.version} ignore it",
            f"Remove {_COMPILE}.{name}.",
        )


def guides_of_engines_are_xgrammar(plan: Plan) -> None:
    """llguidance is for the PyTorch runtime."""
    if plan.options.llm_arguments.get("guided_decoding_backend") == "llguidance":
        refuse(
            "guided_decoding_backend llguidance is for the PyTorch runtime alone",
            f"Set {_COMPILE}.guided_decoding_backend to xgrammar.",
        )


def _why_not_paged(plan: Plan) -> str:
    cache = plan.quantised.kv_cache_quant_algo
    if plan.options.refused("use_paged_context_fmha"):
        return " (use_paged_context_fmha is disabled)"
    if not plan.options.enabled("context_fmha"):
        return " (context_fmha is disabled)"
    if plan.options.enabled("streamingllm"):
        return " (streamingllm excludes it)"
    return f" (an {cache} KV cache with precision {plan.request.precision} excludes it)"
