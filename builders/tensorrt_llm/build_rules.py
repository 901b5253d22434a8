# SPDX-License-Identifier: Apache-2.0
"""Refuses what trtllm-build cannot do, or would silently change, before anything runs.

Sources: TensorRT-LLM 1.2 (tensorrt_llm/commands/build.py, builder.py, _common.py, plugin/plugin.py,
quantization/mode.py), its hardware matrix (docs/source/features/quantization.md) and the runtime's
own checks. Standard library only.
"""

from collections.abc import Callable

from arguments import models, reaches, table
from build_facts import Plan, sm_of
from build_settings import fused_mlp
from buildlib.compatibility import kv_cache_dtypes, oldest_for_trtllm, precisions, quant_algo
from rule_check import refuse

Rule = Callable[[Plan], None]

_HOPPER, _SM100 = 90, 100
_COMPILE = "engine.options.compile"


def world_is_engine(plan: Plan) -> None:
    """Only TensorRT-LLM before 1.3.0rc21 compiles engines."""
    target = plan.request.target
    if target is None or target.world != "engine":
        actual = "no target" if target is None else f"the world {target.world}"
        refuse(
            f"the request has {actual}, and only TensorRT-LLM up to 1.2.1 compiles engines",
            "Set engine.target.release to 26.07 or an earlier one.",
        )


def tool_is_of_the_known_table(plan: Plan) -> None:
    """The table of options is that of TensorRT-LLM 0.20 and later; before, many had other forms."""
    if not reaches(plan.version, table()["changes"]["tool"]):
        refuse(
            "this builder does not know the options of trtllm-build before TensorRT-LLM 0.20",
            "Set engine.target.release to 25.06 (TensorRT-LLM 0.20.0) or later.",
        )


def precision_is_that_of_the_checkpoint(plan: Plan) -> None:
    """A checkpoint quantised otherwise would be compiled as what it is."""
    algorithm, request = plan.quantised.quant_algo, plan.request
    wanted = quant_algo(request.precision, algorithm)
    if algorithm not in (wanted, "MIXED_PRECISION"):
        refuse(
            f"engine.precision is {request.precision} ({wanted or 'not quantised'}), and the "
            f"quantised checkpoint is {algorithm or 'not quantised'}",
            "Quantise again: `tritonctl build --force`.",
        )
    cache = request.kv_cache_dtype
    wanted_cache = cache.upper() if cache and cache != "auto" else None
    if plan.quantised.kv_cache_quant_algo != wanted_cache:
        refuse(
            f"engine.kv_cache_dtype is {cache or 'not set'}, and the quantised checkpoint has "
            f"kv_cache_quant_algo {plan.quantised.kv_cache_quant_algo}",
            "Quantise again: `tritonctl build --force`.",
        )


def parallelism_is_that_of_the_checkpoint(plan: Plan) -> None:
    """tp and pp are no arguments of the tool: the checkpoint is cut for them."""
    limits, mapping = plan.limits, plan.quantised
    asked = (limits.tp_size, limits.pp_size)
    if (mapping.tp_size, mapping.pp_size) != asked or mapping.world_size != asked[0] * asked[1]:
        refuse(
            f"engine.tp_size is {asked[0]} and engine.pp_size {asked[1]}, and the quantised "
            f"checkpoint is cut for tp_size {mapping.tp_size}, pp_size {mapping.pp_size} "
            f"({mapping.world_size} GPUs)",
            "Quantise again with the new sizes: `tritonctl build --force`.",
        )


def gpu_is_supported(plan: Plan) -> None:
    """TensorRT-LLM begins with Ampere."""
    oldest = oldest_for_trtllm()
    if plan.sm is not None and plan.sm < sm_of(oldest):
        refuse(
            f"TensorRT-LLM does not support compute capability {plan.compute_capability}",
            f"Use a GPU of compute capability {oldest} (Ampere) or later.",
        )


def gpu_runs_the_precision(plan: Plan) -> None:
    """FP8 needs Ada, FP4 Blackwell; INT8, INT4 and SmoothQuant end before SM 100."""
    algorithm, gpu = plan.quantised.quant_algo, plan.compute_capability
    formats = precisions()
    chosen = next((one for one in formats.values() if one.quant_algo == algorithm), None)
    if algorithm and chosen and gpu and gpu not in chosen.compiled:
        nearest = next((name for name in chosen.nearest if gpu in formats[name].compiled), "bf16")
        refuse(
            f"engine.precision {plan.request.precision} ({algorithm}) cannot run on compute "
            f"capability {gpu}",
            f"Set engine.precision to {nearest}, or build for a GPU of compute capability "
            f"{', '.join(chosen.compiled)}.",
        )


def gpu_runs_the_kv_cache(plan: Plan) -> None:
    """An INT8 KV cache ends before SM 100, and no engine has an NVFP4 one."""
    cache = plan.quantised.kv_cache_quant_algo
    if cache is None:
        return
    known = kv_cache_dtypes().get(cache.lower())
    gpu = plan.compute_capability
    if not known or not known.compiled or (gpu and gpu not in known.compiled):
        refuse(
            f"engine.kv_cache_dtype {cache.lower()} cannot be compiled for compute capability "
            f"{gpu or 'any'}",
            "Set engine.kv_cache_dtype to fp8.",
        )


def plugins_run_on_sm100(plan: Plan) -> None:
    """Five plugins raise NotImplementedError on SM 100."""
    if plan.sm != _SM100:
        return
    for name in table()["settled"]["not_on_sm100"]:
        on = plan.options.enabled(name) if name.endswith("_acc") else plan.options.choice(name)
        if on:
            refuse(
                f"{name} is not implemented for compute capability 10.0",
                f"Remove engine.options.compile.{name}.",
            )


def swiglu_plugin_needs_fp8_on_hopper(plan: Plan) -> None:
    """GEMM and SwiGLU are fused for FP8 on Hopper alone."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if not plan.options.choice(name):
            continue
        if plan.quantised.quant_algo != "FP8" or plan.sm not in (None, _HOPPER):
            refuse(
                f"{name} works with precision fp8 on Hopper (9.0) alone",
                f"Remove engine.options.compile.{name}.",
            )


def swiglu_plugin_needs_fused_mlp(plan: Plan) -> None:
    """The tool ends with "GemmSwiGLU plugin requires --use_fused_mlp flag"."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if plan.options.choice(name) and not fused_mlp(plan):
            refuse(
                f"{name} needs use_fused_mlp, which is disabled",
                f"Set engine.options.compile.use_fused_mlp to enable, or remove {name}.",
            )


def fused_mlp_needs_fp8_or_no_quantisation(plan: Plan) -> None:
    """The tool forces it off for every other quantisation."""
    if plan.options.insisted("use_fused_mlp") and not fused_mlp(plan):
        refuse(
            f"use_fused_mlp does not work with precision {plan.request.precision}: the tool "
            "would disable it",
            "Remove engine.options.compile.use_fused_mlp, or set engine.precision to fp8.",
        )


def gemm_plugin_fits_the_precision(plan: Plan) -> None:
    """GEMM plugins of a quantised type need a checkpoint with scales of that type."""
    wanted = {
        "gemm_plugin": {"fp8": "FP8", "nvfp4": "NVFP4"},
        "low_latency_gemm_plugin": {"fp8": "FP8"},
    }
    for name, algorithms in wanted.items():
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


def nvfp4_decides_the_gemm_plugin(plan: Plan) -> None:
    """The tool sets gemm_plugin to nvfp4 for NVFP4 weights, unless it is disabled."""
    chosen = plan.options.choice("gemm_plugin")
    if plan.quantised.quant_algo == "NVFP4" and chosen not in ("", "nvfp4"):
        refuse(
            f"gemm_plugin is {chosen}, and the tool would change it to nvfp4 for precision nvfp4",
            f"Set {_COMPILE}.gemm_plugin to nvfp4 or disable, or leave it out.",
        )


def nccl_plugin_follows_the_gpus(plan: Plan) -> None:
    """The tool sets nccl_plugin by itself: the model's type on several GPUs, else off."""
    if not plan.options.given("nccl_plugin"):
        return
    chosen = plan.options.choice("nccl_plugin") or "disable"
    single = plan.quantised.world_size == 1
    settled = "disable" if single else plan.quantised.dtype
    if chosen not in ("auto", settled):
        refuse(
            f"nccl_plugin is {chosen}, and the tool would change it to {settled}, as for every "
            f"engine {'for one GPU' if single else 'for several GPUs with this type'}",
            f"Remove {_COMPILE}.nccl_plugin.",
        )


def paged_state_needs_a_recurrent_model(plan: Plan) -> None:
    """The tool disables paged_state for models without a recurrent state."""
    recurrent, architecture = models("paged_state"), plan.quantised.architecture
    if plan.options.insisted("paged_state") and architecture not in recurrent:
        refuse(
            f"paged_state is for {' and '.join(recurrent)}, and this is {architecture}: the tool "
            "would disable it",
            f"Remove {_COMPILE}.paged_state.",
        )


def one_gemm_plugin_of_each_kind(plan: Plan) -> None:
    """The plain GEMM plugins and their low-latency kin exclude each other."""
    pairs = (
        ("gemm_plugin", "low_latency_gemm_plugin"),
        ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"),
    )
    for plain, quick in pairs:
        if plan.options.choice(plain) and plan.options.choice(quick):
            refuse(
                f"{plain} and {quick} exclude each other",
                f"Remove one of them from engine.options.compile; {quick} suits small batches.",
            )


def fp4_fusion_needs_nvfp4(plan: Plan) -> None:
    """There is nothing to fuse otherwise."""
    if plan.options.enabled("fuse_fp4_quant") and plan.quantised.quant_algo != "NVFP4":
        refuse(
            "fuse_fp4_quant needs precision nvfp4",
            "Remove engine.options.compile.fuse_fp4_quant.",
        )


def fast_build_needs_weight_only_plugin(plan: Plan) -> None:
    """Managed weights do not go with INT8 or INT4 weights without their plugin."""
    if plan.options.enabled("fast_build") and not plan.quantised.weight_only_plugin:
        refuse(
            "fast_build does not work with INT8 or INT4 weights without their plugin "
            "(disable_weight_only_quant_plugin in the checkpoint)",
            "Remove engine.options.compile.fast_build.",
        )
