# SPDX-License-Identifier: Apache-2.0
"""Rules about profiles, drafts, adapters and model kinds. rule_check.py defines rules."""

from arguments import is_version_or_later, read_table, supported_models
from build_facts import TrtllmBuildPlan
from build_settings import adapter_names
from rule_check import refuse

# Modes that draft with heads of the model.
_WITH_HEADS = ("medusa", "explicit_draft_tokens", "eagle")


def multiple_profiles_without_opt_num_tokens(plan: TrtllmBuildPlan) -> None:
    """The tool refuses both together."""
    if plan.options.is_enabled("multiple_profiles") and plan.options.is_set("opt_num_tokens"):
        refuse(
            "multiple_profiles and opt_num_tokens exclude each other",
            "Remove engine.options.compile.opt_num_tokens.",
        )


def best_step_is_within_the_largest(plan: TrtllmBuildPlan) -> None:
    """The tool chooses kernels for opt_num_tokens and clips it to max_num_tokens."""
    opt_tokens, max_tokens = plan.options.number("opt_num_tokens"), plan.limits.max_num_tokens
    if plan.options.is_set("opt_num_tokens") and not 0 < opt_tokens <= max_tokens:
        refuse(
            f"opt_num_tokens is {opt_tokens}, and a step holds 1 to {max_tokens} tokens "
            "(max_num_tokens)",
            f"Set engine.options.compile.opt_num_tokens to {max_tokens} or less, or leave it out.",
        )


def context_logits_without_draft_tokens(plan: TrtllmBuildPlan) -> None:
    """The tool cannot gather context logits while it verifies draft tokens."""
    gathers = any(
        plan.options.is_enabled(name)
        for name in ("gather_context_logits", "gather_all_token_logits")
    )
    if gathers and plan.options.number("max_draft_len"):
        refuse(
            "gather_context_logits and gather_all_token_logits do not work with max_draft_len "
            "above 0",
            "Use only engine.options.compile.gather_generation_logits.",
        )


def draft_tokens_need_a_mode(plan: TrtllmBuildPlan) -> None:
    """Without a speculative decoding mode, max_draft_len would be compiled in and never used."""
    options = plan.options
    if options.number("max_draft_len") and not options.choice("speculative_decoding_mode"):
        refuse(
            f"max_draft_len is {options.number('max_draft_len')} without a "
            "speculative_decoding_mode",
            "Set engine.options.compile.speculative_decoding_mode, or remove max_draft_len.",
        )


def draft_tokens_fit_into_a_step(plan: TrtllmBuildPlan) -> None:
    """Else the tool raises max_num_tokens to hold the draft of every sequence."""
    options = plan.options
    if not options.choice("speculative_decoding_mode"):
        return
    draft_tokens = plan.limits.max_batch_size * (plan.draft_len + 1)
    if plan.limits.max_num_tokens < draft_tokens:
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, and a step may have "
            f"{draft_tokens} draft tokens: max_batch_size * (max_draft_len + 1)",
            f"Set engine.max_num_tokens to {draft_tokens} or more.",
        )


def eagle_is_bounded(plan: TrtllmBuildPlan) -> None:
    """EAGLE takes at most 512 sequences and 256 draft tokens."""
    if plan.options.choice("speculative_decoding_mode") != "eagle":
        return
    batch, draft = plan.limits.max_batch_size, plan.draft_len
    bounds = [
        read_table()["settled"][f"eagle_{name}"] for name in ("max_batch_size", "max_draft_len")
    ]
    if batch > bounds[0] or draft > bounds[1]:
        refuse(
            f"EAGLE takes at most {bounds[0]} sequences and {bounds[1]} draft tokens, and these "
            f"are {batch} and {draft}",
            "Lower engine.max_batch_size or engine.options.compile.max_draft_len.",
        )


def drafts_come_from_heads_of_the_model(plan: TrtllmBuildPlan) -> None:
    """Medusa, ReDrafter and EAGLE are separate models. The tool fails for one without heads."""
    mode, architecture = (
        plan.options.choice("speculative_decoding_mode"),
        plan.quantised.architecture,
    )
    if mode in _WITH_HEADS and architecture not in supported_models(mode):
        refuse(
            f"speculative_decoding_mode {mode} is for {', '.join(supported_models(mode))}, and "
            f"this is {architecture}, which has no such heads",
            "Remove engine.options.compile.speculative_decoding_mode, or set it to "
            "draft_tokens_external or lookahead_decoding.",
        )


def eagle_needs_paged_context(plan: TrtllmBuildPlan) -> None:
    """The tool always enables paged context attention for EAGLE."""
    is_eagle = plan.options.choice("speculative_decoding_mode") == "eagle"
    disabled = [
        name
        for name in ("use_paged_context_fmha", "context_fmha")
        if is_eagle and plan.options.is_set_disabled(name)
    ]
    if disabled:
        refuse(
            f"{disabled[0]} is disabled, and EAGLE needs paged context attention: the tool would "
            "enable it",
            f"Remove engine.options.compile.{disabled[0]}.",
        )


def lora_options_need_lora_plugin(plan: TrtllmBuildPlan) -> None:
    """Without the plugin the tool ignores these options."""
    if plan.options.choice("lora_plugin"):
        return
    names = ("lora_dir", "lora_target_modules", "max_lora_rank", "lora_ckpt_source", "dora_plugin")
    set_names = [name for name in names if plan.options.is_set(name)]
    if set_names:
        refuse(
            f"{', '.join(set_names)} do nothing without lora_plugin",
            "Set engine.options.compile.lora_plugin to auto.",
        )


def lora_plugin_knows_its_modules(plan: TrtllmBuildPlan) -> None:
    """The tool reads missing modules from the first adapter and fails without an adapter."""
    options = plan.options
    if options.choice("lora_plugin") and not (
        options.is_set("lora_dir") or options.is_set("lora_target_modules")
    ):
        refuse(
            "lora_plugin has no lora_dir and no lora_target_modules, so the tool cannot know which "
            "layers adapters change",
            "Set engine.options.compile.lora_dir to the adapters' folders, or lora_target_modules.",
        )


def adapters_of_engines_have_different_names(plan: TrtllmBuildPlan) -> None:
    """A request names an adapter by its folder's name."""
    names = adapter_names(plan)
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        refuse(
            f"two adapters of lora_dir have the name {duplicates[0]}",
            "Rename one of the folders, and correct engine.options.compile.lora_dir.",
        )


def custom_model_needs_trust(plan: TrtllmBuildPlan) -> None:
    """The tool runs the Python code in model_cls_file."""
    if plan.options.is_set("model_cls_file") and not plan.request.trust_remote_code:
        refuse(
            "the build would run the code in model_cls_file",
            "Read it, then set engine.trust_remote_code to true.",
        )


def custom_model_has_a_name(plan: TrtllmBuildPlan) -> None:
    """model_cls_file and model_cls_name go together."""
    are_set = [plan.options.is_set(name) for name in ("model_cls_file", "model_cls_name")]
    if any(are_set) and not all(are_set):
        refuse(
            "model_cls_file and model_cls_name go together, and one of them is missing",
            "Set both in engine.options.compile, or neither.",
        )


def streamingllm_ended_with_1_0(plan: TrtllmBuildPlan) -> None:
    """Attention sinks do not work with the KV cache of 1.1 and later: the tool fails."""
    removed_in = read_table()["settled"]["streamingllm_gone"]
    if plan.options.is_enabled("streamingllm") and is_version_or_later(plan.version, removed_in):
        refuse(
            "streamingllm is not supported by TensorRT-LLM 1.1 and later",
            "Remove engine.options.compile.streamingllm, or set engine.target.release to 25.10.",
        )


def streamingllm_needs_llama(plan: TrtllmBuildPlan) -> None:
    """The tool supports it for LLaMA only."""
    architecture = plan.quantised.architecture
    if plan.options.is_enabled("streamingllm") and architecture not in supported_models(
        "streamingllm"
    ):
        refuse(
            f"streamingllm works with LlamaForCausalLM only, and this is {architecture}",
            "Remove engine.options.compile.streamingllm.",
        )


def pp_reduce_scatter_needs_mixtral(plan: TrtllmBuildPlan) -> None:
    """The tool supports it for Mixtral only."""
    architecture = plan.quantised.architecture
    if plan.options.is_enabled("pp_reduce_scatter") and architecture not in supported_models(
        "pp_reduce_scatter"
    ):
        refuse(
            f"pp_reduce_scatter works with MixtralForCausalLM only, and this is {architecture}",
            "Remove engine.options.compile.pp_reduce_scatter.",
        )
