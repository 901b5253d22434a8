# SPDX-License-Identifier: Apache-2.0
"""All rules for trtllm-build in the order of their checks, strongest contradictions first."""

import build_memory_rules as memory
import build_option_rules as options
import build_rules as rules
from build_facts import TrtllmBuildPlan
from rule_check import check_rules

RULES: tuple[rules.Rule, ...] = (
    rules.world_is_engine,
    rules.tool_is_of_the_known_table,
    rules.precision_is_that_of_the_checkpoint,
    rules.parallelism_is_that_of_the_checkpoint,
    rules.gpu_is_supported,
    rules.gpu_runs_the_precision,
    rules.gpu_runs_the_kv_cache,
    rules.plugins_run_on_sm100,
    rules.swiglu_plugin_needs_fp8_on_hopper,
    rules.swiglu_plugin_needs_fused_mlp,
    rules.fused_mlp_needs_fp8_or_no_quantisation,
    rules.gemm_plugin_fits_the_precision,
    rules.nvfp4_decides_the_gemm_plugin,
    rules.nccl_plugin_follows_the_gpus,
    rules.paged_state_needs_a_recurrent_model,
    rules.one_gemm_plugin_of_each_kind,
    rules.fp4_fusion_needs_nvfp4,
    rules.fast_build_needs_weight_only_plugin,
    options.multiple_profiles_without_opt_num_tokens,
    options.best_step_is_within_the_largest,
    options.context_logits_without_draft_tokens,
    options.draft_tokens_need_a_mode,
    options.drafts_come_from_heads_of_the_model,
    options.draft_tokens_fit_into_a_step,
    options.eagle_is_bounded,
    options.eagle_needs_paged_context,
    options.lora_options_need_lora_plugin,
    options.lora_plugin_knows_its_modules,
    options.adapters_of_engines_have_different_names,
    options.custom_model_needs_trust,
    options.custom_model_has_a_name,
    options.streamingllm_ended_with_1_0,
    options.streamingllm_needs_llama,
    options.pp_reduce_scatter_needs_mixtral,
    memory.engine_is_served_in_flight,
    memory.tokens_per_block_is_a_power_of_two,
    memory.paged_context_needs_context_fmha,
    memory.paged_context_excludes_streamingllm,
    memory.paged_context_fits_the_kv_cache,
    memory.kv_cache_reuse_needs_paged_context,
    memory.chunked_context_needs_paged_context,
    memory.fp8_context_needs_an_fp8_precision,
    memory.fp8_context_goes_with_an_fp8_cache,
    memory.reduce_fusion_needs_tensor_parallelism,
    memory.user_buffer_needs_reduce_fusion,
    memory.norm_quant_fusion_needs_nvfp4_llama,
    memory.step_is_no_longer_than_a_batch,
    memory.step_holds_a_block,
    memory.prompt_fits_into_a_step,
    memory.chunks_are_whole_blocks,
    memory.kv_cache_type_comes_from_the_checkpoint,
    memory.blocks_are_those_of_the_engine,
    memory.arguments_are_not_ignored,
    memory.guides_of_engines_are_xgrammar,
)


def check(plan: TrtllmBuildPlan) -> None:
    """Check every rule.

    Raises:
        BuildError: the first broken rule. Its id ends the problem.
    """
    check_rules(RULES, plan)
