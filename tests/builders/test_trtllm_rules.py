# SPDX-License-Identifier: Apache-2.0
"""Every rule of the stage compile refuses what it is named for, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import trtllm
from tests.builders.conftest import BUILDERS, modules_of, write_json
from tritonctl.project.compatibility.table import table

MODULES = (
    "arguments",
    "build_checks",
    "build_command",
    "build_engine",
    "build_extra",
    "build_facts",
    "build_gpu",
    "build_memory_rules",
    "build_option_rules",
    "build_options",
    "build_rules",
    "build_runtime",
    "build_settings",
    "build_sizes",
    "build_tensors",
    "build_tool",
    "compile",
    "folders",
    "llm_arguments",
    "rule_check",
)


@pytest.fixture(scope="module")
def trt() -> Iterator[SimpleNamespace]:
    """The modules of the stage."""
    with modules_of("tensorrt_llm", MODULES) as modules:
        yield modules


def quantised(algorithm: str | None, cache: str | None = None, **more: Any) -> dict[str, Any]:
    """A quantised checkpoint's config, as changes to the usual one."""
    return {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": cache}, **more}


def plan_of(
    trt: SimpleNamespace,
    checkpoint: Path,
    *,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """The plan of a request for a quantised checkpoint, both the usual ones but for changes."""
    source = checkpoint.parent / "source"
    trtllm.quantised_checkpoint(source, **config or {})
    asked = trtllm.request(checkpoint, source, **changes)
    write_json(checkpoint.parent / "R.json", asked)
    return trt.compile.make_plan(checkpoint.parent / "R.json", dry_run=False)


def options(**values: Any) -> dict[str, Any]:
    """Options of the stage, as changes to the usual request."""
    return {"options": values}


NVFP4 = {"precision": "nvfp4", "config": quantised("NVFP4")}
B200 = {"target": {"gpu": "B200", "compute_capability": "10.0"}}
A100 = {"target": {"gpu": "A100-80", "compute_capability": "8.0"}}
INT8 = {"precision": "int8_sq", "config": quantised("W8A8_SQ_PER_CHANNEL")}
MIXTRAL = {"config": {"architecture": "MixtralForCausalLM"}}
OLD = {"target": {"release": "25.10", "tensorrt_llm": "1.0.0"}}
FP8_CACHE = {"kv_cache_dtype": "fp8", "config": quantised("FP8", "FP8")}
EAGLE = {"speculative_decoding_mode": "eagle"}
LOOKAHEAD = {"speculative_decoding_mode": "lookahead_decoding"}
EAGLE_MODEL = {"config": {"architecture": "EagleForCausalLM"}}
TWO = {
    "limits": {"tp_size": 2},
    "config": {"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}},
}
LIMITED = {"max_batch_size": 4, "max_seq_len": 64}

# For each rule: changes to a request that passes, and a part of what is said.
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("world-is-engine", {"target": {"world": "pytorch"}}, "release to 26.07"),
    (
        "tool-is-of-the-known-table",
        {"target": {"release": "25.05", "tensorrt_llm": "0.19.0"}},
        "release to 25.06",
    ),
    (
        "precision-is-that-of-the-checkpoint",
        {"precision": "int8_sq"},
        "checkpoint is FP8",
    ),
    (
        "precision-is-that-of-the-checkpoint",
        {"kv_cache_dtype": "fp8"},
        "kv_cache_quant_algo None",
    ),
    ("parallelism-is-that-of-the-checkpoint", {"limits": {"tp_size": 2}}, "cut for tp_size 1"),
    ("gpu-is-supported", {"target": {"gpu": "T4", "compute_capability": "7.5"}}, "Ampere"),
    ("gpu-runs-the-precision", A100, "Set engine.precision to int8_sq"),
    ("gpu-runs-the-precision", INT8 | B200, "Set engine.precision to fp8"),
    ("gpu-runs-the-precision", NVFP4, "capability 10.0, 10.3, 12.0"),
    (
        "gpu-runs-the-kv-cache",
        {"kv_cache_dtype": "int8", "config": quantised("FP8", "INT8"), **B200},
        "kv_cache_dtype to fp8",
    ),
    (
        "gpu-runs-the-kv-cache",
        {"kv_cache_dtype": "nvfp4", "config": quantised("FP8", "NVFP4")},
        "kv_cache_dtype nvfp4",
    ),
    ("plugins-run-on-sm100", B200 | options(low_latency_gemm_plugin="fp8"), "10.0"),
    ("plugins-run-on-sm100", B200 | options(gemm_swiglu_plugin="fp8"), "gemm_swiglu_plugin"),
    ("plugins-run-on-sm100", B200 | options(low_latency_gemm_swiglu_plugin="fp8"), "swiglu"),
    ("plugins-run-on-sm100", B200 | options(fp8_rowwise_gemm_plugin="auto"), "rowwise"),
    ("plugins-run-on-sm100", B200 | options(bert_context_fmha_fp32_acc="enable"), "fp32_acc"),
    (
        "swiglu-plugin-needs-fp8-on-hopper",
        {"target": {"gpu": "L4", "compute_capability": "8.9"}} | options(gemm_swiglu_plugin="fp8"),
        "Hopper",
    ),
    ("swiglu-plugin-needs-fp8-on-hopper", INT8 | options(gemm_swiglu_plugin="fp8"), "fp8"),
    (
        "swiglu-plugin-needs-fused-mlp",
        options(gemm_swiglu_plugin="fp8", use_fused_mlp="disable"),
        "use_fused_mlp",
    ),
    (
        "fused-mlp-needs-fp8-or-no-quantisation",
        INT8 | options(use_fused_mlp="enable"),
        "would disable it",
    ),
    ("gemm-plugin-fits-the-precision", options(gemm_plugin="nvfp4"), "needs precision nvfp4"),
    ("gemm-plugin-fits-the-precision", INT8 | options(gemm_plugin="fp8"), "to auto or disable"),
    (
        "gemm-plugin-fits-the-precision",
        INT8 | options(low_latency_gemm_plugin="fp8"),
        "low_latency_gemm_plugin fp8 needs",
    ),
    ("gemm-plugin-fits-the-precision", options(fp8_rowwise_gemm_plugin="auto"), "per row"),
    (
        "one-gemm-plugin-of-each-kind",
        options(gemm_plugin="auto", low_latency_gemm_plugin="fp8"),
        "exclude each other",
    ),
    (
        "one-gemm-plugin-of-each-kind",
        options(gemm_swiglu_plugin="fp8", low_latency_gemm_swiglu_plugin="fp8"),
        "exclude each other",
    ),
    ("fp4-fusion-needs-nvfp4", options(fuse_fp4_quant="enable"), "needs precision nvfp4"),
    (
        "fast-build-needs-weight-only-plugin",
        options(fast_build=True) | {"config": {"disable_weight_only_quant_plugin": True}},
        "fast_build",
    ),
    (
        "multiple-profiles-without-opt-num-tokens",
        options(multiple_profiles="enable", opt_num_tokens=64),
        "exclude each other",
    ),
    ("best-step-is-within-the-largest", options(opt_num_tokens=257), "to 256 or less"),
    ("best-step-is-within-the-largest", options(opt_num_tokens=0), "1 to 256 tokens"),
    (
        "eagle-needs-paged-context",
        EAGLE_MODEL | options(**EAGLE, use_paged_context_fmha="disable"),
        "the tool would enable it",
    ),
    (
        "eagle-needs-paged-context",
        EAGLE_MODEL | options(**EAGLE, context_fmha="disable"),
        "Remove engine.options.compile.context_fmha",
    ),
    (
        "context-logits-without-draft-tokens",
        options(gather_context_logits=True, max_draft_len=2, **LOOKAHEAD),
        "Use only engine.options.compile.gather_generation_logits",
    ),
    (
        "context-logits-without-draft-tokens",
        options(gather_all_token_logits=True, max_draft_len=2, **LOOKAHEAD),
        "Use only engine.options.compile.gather_generation_logits",
    ),
    ("draft-tokens-need-a-mode", options(max_draft_len=4), "speculative_decoding_mode"),
    (
        "draft-tokens-fit-into-a-step",
        options(max_draft_len=63, **LOOKAHEAD) | {"limits": {**LIMITED, "max_num_tokens": 128}},
        "max_num_tokens to 256",
    ),
    (
        "eagle-is-bounded",
        EAGLE_MODEL
        | options(**EAGLE)
        | {"limits": {"max_batch_size": 513, "max_num_tokens": 8192}},
        "at most 512 sequences",
    ),
    (
        "eagle-is-bounded",
        EAGLE_MODEL
        | options(**EAGLE, max_draft_len=257)
        | {"limits": {"max_batch_size": 4, "max_num_tokens": None}},
        "256 draft tokens",
    ),
    (
        "drafts-come-from-heads-of-the-model",
        options(**EAGLE),
        "eagle is for EagleForCausalLM, and this is LlamaForCausalLM",
    ),
    (
        "drafts-come-from-heads-of-the-model",
        options(speculative_decoding_mode="medusa", max_draft_len=4),
        "lookahead_decoding",
    ),
    (
        "drafts-come-from-heads-of-the-model",
        EAGLE_MODEL | options(speculative_decoding_mode="explicit_draft_tokens"),
        "for ReDrafterForLLaMALM, ReDrafterForQWenLM",
    ),
    (
        "nvfp4-decides-the-gemm-plugin",
        B200 | NVFP4 | options(gemm_plugin="auto"),
        "would change it to nvfp4",
    ),
    (
        "nvfp4-decides-the-gemm-plugin",
        B200 | NVFP4 | options(gemm_plugin="float16"),
        "to nvfp4 or disable",
    ),
    ("nccl-plugin-follows-the-gpus", options(nccl_plugin="float16"), "to disable, as for every"),
    ("nccl-plugin-follows-the-gpus", TWO | options(nccl_plugin="disable"), "to float16"),
    ("nccl-plugin-follows-the-gpus", TWO | options(nccl_plugin="bfloat16"), "several GPUs"),
    ("paged-state-needs-a-recurrent-model", options(paged_state="enable"), "would disable it"),
    (
        "lora-plugin-knows-its-modules",
        options(lora_plugin="auto", max_lora_rank=8),
        "lora_dir to the adapters' folders, or lora_target_modules",
    ),
    ("lora-options-need-lora-plugin", options(max_lora_rank=8), "lora_plugin to auto"),
    ("lora-options-need-lora-plugin", options(lora_dir=["/adapter"]), "lora_dir do nothing"),
    ("lora-options-need-lora-plugin", options(dora_plugin="enable"), "dora_plugin"),
    (
        "adapters-of-engines-have-different-names",
        options(lora_plugin="auto", lora_ckpt_source="nemo", lora_dir=["/a/fr.nemo", "/b/fr.nemo"]),
        "have the name fr",
    ),
    (
        "adapters-of-engines-have-different-names",
        options(lora_plugin="auto", lora_dir=["/a/fr", "/b/fr/"]),
        "have the name fr",
    ),
    ("custom-model-needs-trust", options(model_cls_file="m.py"), "trust_remote_code to true"),
    (
        "custom-model-needs-trust",
        options(extra=["--model_cls_file", "x.py", "--model_cls_name=X"]),
        "the build would run the code",
    ),
    ("tokens-per-block-is-a-power-of-two", options(extra=["--tokens_per=48"]), "is 48"),
    (
        "paged-context-needs-context-fmha",
        options(extra=["--context", "disable"], use_paged_context_fmha="enable"),
        "would disable both",
    ),
    (
        "custom-model-has-a-name",
        options(model_cls_file="m.py") | {"trust_remote_code": True},
        "go together",
    ),
    ("streamingllm-ended-with-1-0", options(streamingllm="enable"), "release to 25.10"),
    (
        "streamingllm-needs-llama",
        MIXTRAL | OLD | options(streamingllm="enable"),
        "MixtralForCausalLM",
    ),
    ("pp-reduce-scatter-needs-mixtral", options(pp_reduce_scatter="enable"), "LlamaForCausalLM"),
    ("engine-is-served-in-flight", options(remove_input_padding="disable"), "in flight"),
    ("engine-is-served-in-flight", options(kv_cache_type="continuous"), "kv_cache_type"),
    ("engine-is-served-in-flight", options(gpt_attention_plugin="disable"), "in flight"),
    ("tokens-per-block-is-a-power-of-two", options(tokens_per_block=48), "is 48"),
    (
        "paged-context-needs-context-fmha",
        options(context_fmha="disable", use_paged_context_fmha="enable"),
        "would disable both",
    ),
    (
        "paged-context-needs-context-fmha",
        options(context_fmha="disable", use_fp8_context_fmha="enable"),
        "would disable both",
    ),
    (
        "paged-context-excludes-streamingllm",
        OLD | options(streamingllm="enable", use_paged_context_fmha="enable"),
        "exclude each other",
    ),
    (
        "paged-context-fits-the-kv-cache",
        options(use_paged_context_fmha="enable")
        | {"kv_cache_dtype": "int8", "config": quantised("FP8", "INT8")},
        "INT8 KV cache",
    ),
    (
        "paged-context-fits-the-kv-cache",
        options(use_paged_context_fmha="enable")
        | {
            "precision": "int8_sq",
            "kv_cache_dtype": "fp8",
            "config": quantised("W8A8_SQ_PER_CHANNEL", "FP8"),
        },
        "FP8 KV cache and precision int8_sq",
    ),
    (
        "kv-cache-reuse-needs-paged-context",
        options(use_paged_context_fmha="disable", kv_cache_config={"enable_block_reuse": True}),
        "use_paged_context_fmha is disabled",
    ),
    (
        "kv-cache-reuse-needs-paged-context",
        options(kv_cache_config={"enable_block_reuse": True})
        | {"kv_cache_dtype": "int8", "config": quantised("FP8", "INT8")},
        "an INT8 KV cache with precision fp8 excludes it",
    ),
    (
        "chunked-context-needs-paged-context",
        options(context_fmha="disable", enable_chunked_prefill=True),
        "context_fmha is disabled",
    ),
    (
        "fp8-context-needs-an-fp8-precision",
        INT8 | options(use_fp8_context_fmha="enable"),
        "set engine.precision to fp8",
    ),
    (
        "fp8-context-goes-with-an-fp8-cache",
        options(use_fp8_context_fmha="enable"),
        "kv_cache_dtype to fp8",
    ),
    (
        "fp8-context-goes-with-an-fp8-cache",
        FP8_CACHE | options(use_fp8_context_fmha="disable"),
        "would enable it",
    ),
    ("reduce-fusion-needs-tensor-parallelism", options(reduce_fusion="enable"), "tp_size 1"),
    ("user-buffer-needs-reduce-fusion", options(user_buffer="enable"), "reduce_fusion to enable"),
    ("norm-quant-fusion-needs-nvfp4-llama", options(norm_quant_fusion="enable"), "nvfp4"),
    (
        "step-is-no-longer-than-a-batch",
        {"limits": {**LIMITED, "max_num_tokens": 257}},
        "max_num_tokens to 256 or less",
    ),
    ("step-holds-a-block", {"limits": {"max_num_tokens": 16}}, "32 or more"),
    (
        "prompt-fits-into-a-step",
        {"limits": {"max_input_len": 40, "max_num_tokens": 32}}
        | options(use_paged_context_fmha="disable"),
        "max_num_tokens to 40 or more",
    ),
    (
        "prompt-fits-into-a-step",
        {"limits": {"max_input_len": 40, "max_num_tokens": 32}}
        | options(enable_chunked_prefill=False),
        "enable_chunked_prefill to true",
    ),
    (
        "chunks-are-whole-blocks",
        {"limits": {"max_num_tokens": 40}} | options(enable_chunked_prefill=True),
        "to 32 or 64",
    ),
    (
        "kv-cache-type-comes-from-the-checkpoint",
        options(kv_cache_config={"dtype": "fp8"}),
        "engine.kv_cache_dtype instead",
    ),
    (
        "blocks-are-those-of-the-engine",
        options(kv_cache_config={"tokens_per_block": 64}),
        "compiled with 32",
    ),
    (
        "arguments-are-not-ignored",
        options(kv_cache_config={"sink_token_length": 4}),
        "engines of TensorRT-LLM 1.2.1 ignore it",
    ),
    (
        "guides-of-engines-are-xgrammar",
        options(guided_decoding_backend="llguidance"),
        "to xgrammar",
    ),
]


@pytest.mark.parametrize(
    ("rule", "changes", "said"), BROKEN, ids=[f"{row[0]}-{n}" for n, row in enumerate(BROKEN)]
)
def test_rule(
    trt: SimpleNamespace, checkpoint: Path, rule: str, changes: dict[str, Any], said: str
) -> None:
    """The rule's id ends the problem, and the message says what to do."""
    plan = plan_of(trt, checkpoint, **changes)
    with pytest.raises(trt.problems.BuildError) as caught:
        trt.build_checks.check(plan)
    assert caught.value.problem.endswith(f" [{rule}]")
    assert said in f"{caught.value.problem}\n{caught.value.remedy}"
    assert caught.value.remedy.endswith(".")


def test_every_rule_has_a_test(trt: SimpleNamespace) -> None:
    """A rule without a broken request above is not tested at all."""
    rules = {trt.rule_check.rule_id(rule) for rule in trt.build_checks.RULES}
    assert rules == {rule for rule, _, _ in BROKEN}


PASSING: list[dict[str, Any]] = [
    {},
    FP8_CACHE,
    FP8_CACHE | options(use_fp8_context_fmha="enable", use_paged_context_fmha="enable"),
    {**A100, **INT8},
    {**B200, **NVFP4},
    {**B200, **NVFP4} | options(fuse_fp4_quant="enable", norm_quant_fusion="enable"),
    options(gemm_swiglu_plugin="fp8", gemm_plugin="fp8"),
    options(multiple_profiles="enable"),
    options(max_draft_len=4, gather_generation_logits=True, **LOOKAHEAD),
    EAGLE_MODEL | options(max_draft_len=4, **EAGLE),
    options(opt_num_tokens=256),
    {"config": {"architecture": "MedusaLlamaForCausalLM"}}
    | options(speculative_decoding_mode="medusa", max_draft_len=4),
    {**B200, **NVFP4} | options(gemm_plugin="nvfp4"),
    {**B200, **NVFP4} | options(gemm_plugin="disable"),
    options(nccl_plugin="auto"),
    options(nccl_plugin="disable"),
    TWO | options(nccl_plugin="float16"),
    options(paged_state="disable"),
    OLD | options(kv_cache_config={"sink_token_length": 4, "onboard_blocks": False}),
    options(lora_plugin="auto", lora_ckpt_source="nemo", lora_dir=["/a/fr.nemo", "/a/de.nemo"]),
    options(context_fmha="disable") | {"limits": {"max_batch_size": 1, "max_seq_len": 16}},
    {"limits": {"max_batch_size": 1, "max_seq_len": 16, "max_num_tokens": 32}},
    options(lora_plugin="auto", max_lora_rank=8, lora_target_modules=["attn_qkv"]),
    options(lora_plugin="auto", lora_dir=["/a/fr", "/a/de"]),
    OLD | options(streamingllm="enable"),
    options(model_cls_file="m.py", model_cls_name="M") | {"trust_remote_code": True},
    MIXTRAL | options(pp_reduce_scatter=True),
    options(context_fmha="disable"),
    options(enable_chunked_prefill=True) | {"limits": {"max_num_tokens": 64}},
    {"limits": {"max_input_len": 40, "max_num_tokens": 32}},
    options(kv_cache_config={"enable_block_reuse": True, "dtype": "auto"}),
    {"precision": "bf16", "config": quantised(None)} | options(use_fused_mlp="enable"),
    {"config": quantised("MIXED_PRECISION")},
    TWO | options(reduce_fusion="enable", user_buffer="enable"),
    {"target": {"gpu": None, "compute_capability": None}},
    {"kv_cache_dtype": "int8", "config": quantised("FP8", "INT8")},
]


@pytest.mark.parametrize("changes", PASSING)
def test_what_goes_together_passes(
    trt: SimpleNamespace, checkpoint: Path, changes: dict[str, Any]
) -> None:
    """The neighbours of what is refused."""
    trt.build_checks.check(plan_of(trt, checkpoint, **changes))


def test_the_builder_and_the_host_agree_about_gpus(trt: SimpleNamespace) -> None:
    """Both read builders/compatibility.toml, each with its own code."""
    shipped = table()
    capabilities = [entry.compute_capability for entry in shipped.architectures]
    formats = [
        *((name, one, trt.compatibility.precisions()) for name, one in shipped.precisions.items()),
        *(
            (n, one, trt.compatibility.kv_cache_dtypes())
            for n, one in shipped.kv_cache_dtypes.items()
        ),
    ]
    for name, chosen, read in formats:
        runs = [one for one in capabilities if chosen.runs_on(one, "engine")]
        assert list(read[name].compiled) == (runs if "engine" in chosen.worlds else []), name
        assert (read[name].quant_algo or "") == chosen.quant_algo
        assert read[name].worlds == tuple(chosen.worlds)


REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"gem_plugin": "auto"}, "no option 'gem_plugin' (did you mean gemm_plugin?)"),
    ({"gemm_plugin": "fp16"}, "expected one of auto, float16"),
    ({"gemm_plugin": True}, "gemm_plugin is True"),
    ({"context_fmha": "on"}, "expected enable or disable"),
    ({"context_fmha": 1}, "expected enable or disable"),
    ({"workers": "two"}, "workers is 'two', expected a whole number"),
    ({"workers": True}, "workers is True"),
    ({"lora_dir": []}, "expected a list of text"),
    ({"lora_target_modules": ["attn_qk"]}, "'attn_qk' (did you mean attn_qkv?)"),
    ({"visualize_network": 3}, "expected text"),
    ({"max_batch_size": 4}, "Set engine.max_batch_size instead."),
    ({"max_seq_len": 4}, "Set engine.max_seq_len instead."),
    ({"build_config": "b.json"}, "would override every size"),
    ({"tp_size": 2}, "quantised for so many GPUs"),
    ({"auto_parallel": 2}, "the tool dropped it in 1.1"),
    ({"paged_kv_cache": "enable"}, "deprecated"),
    ({"dry_run": True}, "tritonctl build --dry-run"),
    ({"extra": "--flag"}, 'a list of text such as ["--flag", "value"]'),
    ({"extra": ["--output_dir", "x"]}, "extra sets --output_dir, which cannot be set"),
    ({"extra": ["--max_num_tokens=9"]}, "Set engine.max_num_tokens instead."),
    ({"workers": 2, "extra": ["--workers", "4"]}, "extra repeats workers"),
    ({"workers": 2, "extra": ["--work=4"]}, "extra repeats workers"),
    ({"extra": ["--max_batch", "9"]}, "Set engine.max_batch_size instead."),
    ({"extra": ["--max_multimodal_len", "9", "--max_decoder", "9"]}, "Set engine.max_seq_len"),
    ({"extra": ["--max_", "9"]}, "ambiguous option: --max_ could match"),
    ({"extra": ["--workers"]}, "expected one argument"),
    ({"extra": ["--workers", "two"]}, "invalid int value: 'two'"),
    ({"extra": ["--gemm_plugin", "fp16"]}, "invalid choice: 'fp16'"),
    ({"extra": ["--lora_dir"]}, "expected at least one argument"),
    ({"extra": ["--fast_build=enable"]}, "ignored explicit argument"),
    ({"extra": ["-h"]}, "would print its help"),
    ({"extra": ["--auto_parallel", "2"]}, "of TensorRT-LLM 1.2.1 does not have"),
    ({"kv_cache_config": None}, "kv_cache_config is null, expected an object"),
    ({"kv_cache_config": {"enable_block_reuse": None}}, "is null, expected true or false"),
    ({"scheduler_config": None}, "is null"),
    ({"enable_chunked_prefill": None}, "is null, expected true or false"),
    ({"kv_cache_config": {"use_kv_cache_manager_v2": True}}, "it was first seen in 1.3.0rc22"),
    ({"timing_cache": "relative"}, "the absolute path of a folder"),
    ({"kv_cache_config": {"enable_reuse": True}}, "(did you mean enable_block_reuse?)"),
    ({"kv_cache_config": {"free_gpu_memory_fraction": 90}}, "a fraction from 0 to 1"),
    ({"kv_cache_config": 0.9}, "expected an object with the keys"),
    ({"enable_chunked_prefill": "yes"}, "true or false"),
]


@pytest.mark.parametrize(("raw", "said"), REFUSED_OPTIONS)
def test_an_option_is_refused(trt: SimpleNamespace, raw: dict[str, Any], said: str) -> None:
    """Unknown names with the nearest, wrong values with the right ones, sizes with their place."""
    with pytest.raises(trt.problems.BuildError) as caught:
        trt.build_options.read_options(raw)
    assert said in f"{caught.value.problem}\n{caught.value.remedy}"
    assert caught.value.remedy.endswith(".")


def test_no_source_of_the_builder_is_left_out() -> None:
    """MODULES above are what the tests load and unload."""
    found = {path.stem for path in (BUILDERS / "tensorrt_llm").glob("build_*.py")}
    assert found <= set(MODULES)


def test_the_documentation_has_every_rule(trt: SimpleNamespace) -> None:
    """tensorrt-llm.md has a row for each rule of this stage, in the order they are asked."""
    text = (BUILDERS.parent / "docs" / "reference" / "tensorrt-llm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| compile \| `([a-z0-9-]+)` \|", text, flags=re.MULTILINE)
    assert rows == [trt.rule_check.rule_id(rule) for rule in trt.build_checks.RULES]
