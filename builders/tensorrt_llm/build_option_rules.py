# SPDX-License-Identifier: Apache-2.0
"""Rules about profiles, drafts, adapters, kinds of models; build_rules.py says what a rule is."""

from arguments import models, reaches, table
from build_facts import Plan
from build_settings import adapter_names
from rule_check import refuse

# Modes that draft with heads of the model itself.
_WITH_HEADS = ("medusa", "explicit_draft_tokens", "eagle")


def multiple_profiles_without_opt_num_tokens(plan: Plan) -> None:
    """The tool refuses both together."""
    if plan.options.enabled("multiple_profiles") and plan.options.given("opt_num_tokens"):
        refuse(
            "multiple_profiles and opt_num_tokens exclude each other",
            "Remove engine.options.compile.opt_num_tokens.",
        )


def best_step_is_within_the_largest(plan: Plan) -> None:
    """The tool clips opt_num_tokens, for which it chooses kernels, to max_num_tokens."""
    best, most = plan.options.number("opt_num_tokens"), plan.limits.max_num_tokens
    if plan.options.given("opt_num_tokens") and not 0 < best <= most:
        refuse(
            f"opt_num_tokens is {best}, and a step holds 1 to {most} tokens (max_num_tokens)",
            f"Set engine.options.compile.opt_num_tokens to {most} or less, or leave it out.",
        )


def context_logits_without_draft_tokens(plan: Plan) -> None:
    """The tool refuses to gather context logits when draft tokens are verified."""
    gathers = any(
        plan.options.enabled(name) for name in ("gather_context_logits", "gather_all_token_logits")
    )
    if gathers and plan.options.number("max_draft_len"):
        refuse(
            "gather_context_logits and gather_all_token_logits do not work with max_draft_len "
            "above 0",
            "Use engine.options.compile.gather_generation_logits alone.",
        )


def draft_tokens_need_a_mode(plan: Plan) -> None:
    """max_draft_len without a mode of speculative decoding would be built in and never used."""
    options = plan.options
    if options.number("max_draft_len") and not options.choice("speculative_decoding_mode"):
        refuse(
            f"max_draft_len is {options.number('max_draft_len')} without a "
            "speculative_decoding_mode",
            "Set engine.options.compile.speculative_decoding_mode, or remove max_draft_len.",
        )


def draft_tokens_fit_into_a_step(plan: Plan) -> None:
    """The tool would raise max_num_tokens to hold every sequence's draft."""
    options = plan.options
    if not options.choice("speculative_decoding_mode"):
        return
    least = plan.limits.max_batch_size * (plan.draft_len + 1)
    if plan.limits.max_num_tokens < least:
        refuse(
            f"engine.max_num_tokens is {plan.limits.max_num_tokens}, and {least} draft tokens may "
            "come in one step: max_batch_size * (max_draft_len + 1)",
            f"Set engine.max_num_tokens to {least} or more.",
        )


def eagle_is_bounded(plan: Plan) -> None:
    """EAGLE: at most 512 sequences and 256 draft tokens."""
    if plan.options.choice("speculative_decoding_mode") != "eagle":
        return
    batch, draft = plan.limits.max_batch_size, plan.draft_len
    most = [table()["settled"][f"eagle_{name}"] for name in ("max_batch_size", "max_draft_len")]
    if batch > most[0] or draft > most[1]:
        refuse(
            f"EAGLE takes at most {most[0]} sequences and {most[1]} draft tokens, and these are "
            f"{batch} and {draft}",
            "Lower engine.max_batch_size or engine.options.compile.max_draft_len.",
        )


def drafts_come_from_heads_of_the_model(plan: Plan) -> None:
    """Medusa, ReDrafter and EAGLE are models of their own: the tool ends for one without heads."""
    mode, architecture = (
        plan.options.choice("speculative_decoding_mode"),
        plan.quantised.architecture,
    )
    if mode in _WITH_HEADS and architecture not in models(mode):
        refuse(
            f"speculative_decoding_mode {mode} is for {', '.join(models(mode))}, and this is "
            f"{architecture}, which has no such heads",
            "Remove engine.options.compile.speculative_decoding_mode, or set it to "
            "draft_tokens_external or lookahead_decoding.",
        )


def eagle_needs_paged_context(plan: Plan) -> None:
    """The tool enables paged context attention for EAGLE, whatever was asked."""
    eagle = plan.options.choice("speculative_decoding_mode") == "eagle"
    off = [
        name
        for name in ("use_paged_context_fmha", "context_fmha")
        if eagle and plan.options.refused(name)
    ]
    if off:
        refuse(
            f"{off[0]} is disabled, and EAGLE needs paged context attention: the tool would enable "
            "it",
            f"Remove engine.options.compile.{off[0]}.",
        )


def lora_options_need_lora_plugin(plan: Plan) -> None:
    """Without the plugin the tool ignores them."""
    if plan.options.choice("lora_plugin"):
        return
    names = ("lora_dir", "lora_target_modules", "max_lora_rank", "lora_ckpt_source", "dora_plugin")
    given = [name for name in names if plan.options.given(name)]
    if given:
        refuse(
            f"{', '.join(given)} do nothing without lora_plugin",
            "Set engine.options.compile.lora_plugin to auto.",
        )


def lora_plugin_knows_its_modules(plan: Plan) -> None:
    """The tool reads them from the first adapter unless they are given, and ends without either."""
    options = plan.options
    if options.choice("lora_plugin") and not (
        options.given("lora_dir") or options.given("lora_target_modules")
    ):
        refuse(
            "lora_plugin has no lora_dir and no lora_target_modules, so the tool cannot know which "
            "layers adapters change",
            "Set engine.options.compile.lora_dir to the adapters' folders, or lora_target_modules.",
        )


def adapters_of_engines_have_different_names(plan: Plan) -> None:
    """The name of its folder is all that a request can say."""
    names = adapter_names(plan)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        refuse(
            f"two adapters of lora_dir are called {twice[0]}",
            "Rename one of the folders, and correct engine.options.compile.lora_dir.",
        )


def custom_model_needs_trust(plan: Plan) -> None:
    """model_cls_file is Python code that the tool runs."""
    if plan.options.given("model_cls_file") and not plan.request.trust_remote_code:
        refuse(
            "model_cls_file is code that the build would run",
            "Read it, then set engine.trust_remote_code to true.",
        )


def custom_model_has_a_name(plan: Plan) -> None:
    """model_cls_file and model_cls_name go together."""
    given = [plan.options.given(name) for name in ("model_cls_file", "model_cls_name")]
    if any(given) and not all(given):
        refuse(
            "model_cls_file and model_cls_name go together, and one of them is missing",
            "Set both in engine.options.compile, or neither.",
        )


def streamingllm_ended_with_1_0(plan: Plan) -> None:
    """Attention sinks do not work with the KV cache of 1.1 and later: the tool ends."""
    ended = table()["settled"]["streamingllm_gone"]
    if plan.options.enabled("streamingllm") and reaches(plan.version, ended):
        refuse(
            "streamingllm is not supported by TensorRT-LLM 1.1 and later",
            "Remove engine.options.compile.streamingllm, or set engine.target.release to 25.10.",
        )


def streamingllm_needs_llama(plan: Plan) -> None:
    """The tool knows it for LLaMA alone."""
    architecture = plan.quantised.architecture
    if plan.options.enabled("streamingllm") and architecture not in models("streamingllm"):
        refuse(
            f"streamingllm works with LlamaForCausalLM alone, and this is {architecture}",
            "Remove engine.options.compile.streamingllm.",
        )


def pp_reduce_scatter_needs_mixtral(plan: Plan) -> None:
    """The tool knows it for Mixtral alone."""
    architecture = plan.quantised.architecture
    if plan.options.enabled("pp_reduce_scatter") and architecture not in models(
        "pp_reduce_scatter"
    ):
        refuse(
            f"pp_reduce_scatter works with MixtralForCausalLM alone, and this is {architecture}",
            "Remove engine.options.compile.pp_reduce_scatter.",
        )
