# SPDX-License-Identifier: Apache-2.0
"""Refuses options that trtllm-build does not support or would change silently.

Sources: TensorRT-LLM 1.2 (tensorrt_llm/commands/build.py, builder.py, _common.py, plugin/plugin.py,
quantization/mode.py), its hardware matrix (docs/source/features/quantization.md) and the checks of
the runtime. Standard library only.
"""

from collections.abc import Callable

from arguments import is_version_or_later, read_table, supported_models
from build_facts import TrtllmBuildPlan, sm_number
from build_settings import uses_fused_mlp
from buildlib.compatibility import kv_cache_dtypes, min_capability_trtllm, precisions, quant_algo
from rule_check import refuse

Rule = Callable[[TrtllmBuildPlan], None]

_HOPPER, _SM100 = 90, 100
_COMPILE = "engine.options.compile"


def world_is_engine(plan: TrtllmBuildPlan) -> None:
    """Only TensorRT-LLM before 1.3.0rc21 compiles engines."""
    target = plan.request.target
    if target is None or target.world != "engine":
        actual = "no target" if target is None else f"the world {target.world}"
        refuse(
            f"the request has {actual}, and only TensorRT-LLM up to 1.2.1 compiles engines",
            "Set engine.target.release to 26.07 or an earlier one.",
        )


def tool_is_of_the_known_table(plan: TrtllmBuildPlan) -> None:
    """arguments.toml covers TensorRT-LLM 0.20 and later. Older options had other forms."""
    if not is_version_or_later(plan.version, read_table()["changes"]["tool"]):
        refuse(
            "this builder does not know the options of trtllm-build before TensorRT-LLM 0.20",
            "Set engine.target.release to 25.06 (TensorRT-LLM 0.20.0) or later.",
        )


def precision_is_that_of_the_checkpoint(plan: TrtllmBuildPlan) -> None:
    """The tool compiles a checkpoint in its own quantisation, whatever the request says."""
    algorithm, request = plan.quantised.quant_algo, plan.request
    expected = quant_algo(request.precision, algorithm)
    if algorithm not in (expected, "MIXED_PRECISION"):
        refuse(
            f"engine.precision is {request.precision} ({expected or 'not quantised'}), and the "
            f"quantised checkpoint is {algorithm or 'not quantised'}",
            "Quantise again: `tritonctl build --force`.",
        )
    cache = request.kv_cache_dtype
    expected_cache = cache.upper() if cache and cache != "auto" else None
    if plan.quantised.kv_cache_quant_algo != expected_cache:
        refuse(
            f"engine.kv_cache_dtype is {cache or 'not set'}, and the quantised checkpoint has "
            f"kv_cache_quant_algo {plan.quantised.kv_cache_quant_algo}",
            "Quantise again: `tritonctl build --force`.",
        )


def parallelism_is_that_of_the_checkpoint(plan: TrtllmBuildPlan) -> None:
    """The checkpoint decides on tp and pp; the tool has no such arguments."""
    limits, mapping = plan.limits, plan.quantised
    requested = (limits.tp_size, limits.pp_size)
    if (mapping.tp_size, mapping.pp_size) != requested or mapping.world_size != requested[
        0
    ] * requested[1]:
        refuse(
            f"engine.tp_size is {requested[0]} and engine.pp_size {requested[1]}, and the "
            f"quantised checkpoint is cut for tp_size {mapping.tp_size}, pp_size "
            f"{mapping.pp_size} ({mapping.world_size} GPUs)",
            "Quantise again with the new sizes: `tritonctl build --force`.",
        )


def gpu_is_supported(plan: TrtllmBuildPlan) -> None:
    """TensorRT-LLM supports Ampere and later."""
    min_capability = min_capability_trtllm()
    if plan.sm_version is not None and plan.sm_version < sm_number(min_capability):
        refuse(
            f"TensorRT-LLM does not support compute capability {plan.compute_capability}",
            f"Use a GPU of compute capability {min_capability} (Ampere) or later.",
        )


def gpu_runs_the_precision(plan: TrtllmBuildPlan) -> None:
    """FP8 needs Ada, FP4 needs Blackwell; SM 100 lacks INT8, INT4 and SmoothQuant."""
    algorithm, gpu = plan.quantised.quant_algo, plan.compute_capability
    formats = precisions()
    chosen = next(
        (
            number_format
            for number_format in formats.values()
            if number_format.quant_algo == algorithm
        ),
        None,
    )
    if algorithm and chosen and gpu and gpu not in chosen.compiled:
        nearest = next((name for name in chosen.nearest if gpu in formats[name].compiled), "bf16")
        refuse(
            f"engine.precision {plan.request.precision} ({algorithm}) cannot run on compute "
            f"capability {gpu}",
            f"Set engine.precision to {nearest}, or build for a GPU of compute capability "
            f"{', '.join(chosen.compiled)}.",
        )


def gpu_runs_the_kv_cache(plan: TrtllmBuildPlan) -> None:
    """SM 100 has no INT8 KV cache, and engines have no NVFP4 KV cache."""
    cache = plan.quantised.kv_cache_quant_algo
    if cache is None:
        return
    cache_format = kv_cache_dtypes().get(cache.lower())
    gpu = plan.compute_capability
    if not cache_format or not cache_format.compiled or (gpu and gpu not in cache_format.compiled):
        refuse(
            f"engine.kv_cache_dtype {cache.lower()} cannot be compiled for compute capability "
            f"{gpu or 'any'}",
            "Set engine.kv_cache_dtype to fp8.",
        )


def plugins_run_on_sm100(plan: TrtllmBuildPlan) -> None:
    """Five plugins raise NotImplementedError on SM 100."""
    if plan.sm_version != _SM100:
        return
    for name in read_table()["settled"]["not_on_sm100"]:
        is_enabled = (
            plan.options.is_enabled(name) if name.endswith("_acc") else plan.options.choice(name)
        )
        if is_enabled:
            refuse(
                f"{name} is not implemented for compute capability 10.0",
                f"Remove engine.options.compile.{name}.",
            )


def swiglu_plugin_needs_fp8_on_hopper(plan: TrtllmBuildPlan) -> None:
    """GEMM and SwiGLU are fused for FP8 on Hopper only."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if not plan.options.choice(name):
            continue
        if plan.quantised.quant_algo != "FP8" or plan.sm_version not in (None, _HOPPER):
            refuse(
                f"{name} works with precision fp8 on Hopper (9.0) only",
                f"Remove engine.options.compile.{name}.",
            )


def swiglu_plugin_needs_fused_mlp(plan: TrtllmBuildPlan) -> None:
    """The tool fails with "GemmSwiGLU plugin requires --use_fused_mlp flag"."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if plan.options.choice(name) and not uses_fused_mlp(plan):
            refuse(
                f"{name} needs use_fused_mlp, which is disabled",
                f"Set engine.options.compile.use_fused_mlp to enable, or remove {name}.",
            )


def fused_mlp_needs_fp8_or_no_quantisation(plan: TrtllmBuildPlan) -> None:
    """The tool disables it for every other quantisation."""
    if plan.options.is_set_enabled("use_fused_mlp") and not uses_fused_mlp(plan):
        refuse(
            f"use_fused_mlp does not work with precision {plan.request.precision}: the tool "
            "would disable it",
            "Remove engine.options.compile.use_fused_mlp, or set engine.precision to fp8.",
        )


def gemm_plugin_fits_the_precision(plan: TrtllmBuildPlan) -> None:
    """GEMM plugins of a quantised type need a checkpoint with scales of that type."""
    required_algorithms = {
        "gemm_plugin": {"fp8": "FP8", "nvfp4": "NVFP4"},
        "low_latency_gemm_plugin": {"fp8": "FP8"},
    }
    for name, algorithms in required_algorithms.items():
        chosen = plan.options.choice(name)
        if chosen in algorithms and plan.quantised.quant_algo != algorithms[chosen]:
            refuse(
                f"{name} {chosen} needs precision {chosen}, and this is {plan.request.precision}",
                f"Set engine.options.compile.{name} to auto or disable.",
            )
    rowwise = "FP8_PER_CHANNEL_PER_TOKEN"
    if plan.options.choice("fp8_rowwise_gemm_plugin") and plan.quantised.quant_algo != rowwise:
        refuse(
            f"fp8_rowwise_gemm_plugin needs a checkpoint with scales per row ({rowwise})",
            "Remove engine.options.compile.fp8_rowwise_gemm_plugin.",
        )


def nvfp4_decides_the_gemm_plugin(plan: TrtllmBuildPlan) -> None:
    """The tool sets gemm_plugin to nvfp4 for NVFP4 weights, unless it is disabled."""
    chosen = plan.options.choice("gemm_plugin")
    if plan.quantised.quant_algo == "NVFP4" and chosen not in ("", "nvfp4"):
        refuse(
            f"gemm_plugin is {chosen}, and the tool would change it to nvfp4 for precision nvfp4",
            f"Set {_COMPILE}.gemm_plugin to nvfp4 or disable, or leave it out.",
        )


def nccl_plugin_follows_the_gpus(plan: TrtllmBuildPlan) -> None:
    """The tool sets nccl_plugin itself: the model's type on several GPUs, else disabled."""
    if not plan.options.is_set("nccl_plugin"):
        return
    chosen = plan.options.choice("nccl_plugin") or "disable"
    single = plan.quantised.world_size == 1
    effective = "disable" if single else plan.quantised.dtype
    if chosen not in ("auto", effective):
        refuse(
            f"nccl_plugin is {chosen}, and the tool would change it to {effective}, as for every "
            f"engine {'for one GPU' if single else 'for several GPUs with this type'}",
            f"Remove {_COMPILE}.nccl_plugin.",
        )


def paged_state_needs_a_recurrent_model(plan: TrtllmBuildPlan) -> None:
    """The tool disables paged_state for models without a recurrent state."""
    recurrent, architecture = supported_models("paged_state"), plan.quantised.architecture
    if plan.options.is_set_enabled("paged_state") and architecture not in recurrent:
        refuse(
            f"paged_state is for {' and '.join(recurrent)}, and this is {architecture}: the tool "
            "would disable it",
            f"Remove {_COMPILE}.paged_state.",
        )


def one_gemm_plugin_of_each_kind(plan: TrtllmBuildPlan) -> None:
    """The plain GEMM plugins and their low-latency variants exclude each other."""
    pairs = (
        ("gemm_plugin", "low_latency_gemm_plugin"),
        ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"),
    )
    for plain, low_latency in pairs:
        if plan.options.choice(plain) and plan.options.choice(low_latency):
            refuse(
                f"{plain} and {low_latency} exclude each other",
                f"Remove one of them from engine.options.compile; {low_latency} suits small "
                "batches.",
            )


def fp4_fusion_needs_nvfp4(plan: TrtllmBuildPlan) -> None:
    """Other precisions have nothing to fuse."""
    if plan.options.is_enabled("fuse_fp4_quant") and plan.quantised.quant_algo != "NVFP4":
        refuse(
            "fuse_fp4_quant needs precision nvfp4",
            "Remove engine.options.compile.fuse_fp4_quant.",
        )


def fast_build_needs_weight_only_plugin(plan: TrtllmBuildPlan) -> None:
    """Managed weights do not go with INT8 or INT4 weights without their plugin."""
    if plan.options.is_enabled("fast_build") and not plan.quantised.weight_only_plugin:
        refuse(
            "fast_build does not work with INT8 or INT4 weights without their plugin "
            "(disable_weight_only_quant_plugin in the checkpoint)",
            "Remove engine.options.compile.fast_build.",
        )
