# SPDX-License-Identifier: Apache-2.0
"""Refuses before packaging what the PyTorch runtime cannot load. Standard library only.

Sources: TensorRT-LLM (_torch/modules/linear.py, llmapi/llm_args.py), ModelOpt (deployment/
3_unified_hf.rst).
"""

import math
from collections.abc import Callable
from typing import Any

from arguments import is_version_or_later, read_table
from buildlib.compatibility import precisions, quant_algo
from llm_arguments import PYTORCH, ignored_arguments
from package_cache_rules import RULES as CACHE_RULES
from package_facts import Package, kv_cache_config, uses_chunked_prefill
from package_lora_rules import RULES as LORA_RULES
from package_speculation_rules import RULES as SPECULATION_RULES
from rule_check import check_rules, refuse

Rule = Callable[[Package], None]

_PACKAGE = "engine.options.package"


def world_is_pytorch(package: Package) -> None:
    """Engines are compiled, not packaged."""
    target = package.request.target
    if target is None or target.world != "pytorch":
        actual = "no target" if target is None else f"the world {target.world}"
        refuse(
            f"the request has {actual}, and only the PyTorch runtime loads checkpoints",
            "Set engine.target.world to pytorch.",
        )


def runtime_is_the_llm_api_s_own(package: Package) -> None:
    """tensorrt_llm.LLM is the PyTorch runtime since 1.0."""
    if not is_version_or_later(package.version, read_table()["changes"]["pytorch_runtime"]):
        refuse(
            f"TensorRT-LLM {package.version} has no PyTorch runtime",
            "Set engine.target.release to 25.09 (TensorRT-LLM 1.0.0) or later.",
        )


def runtime_reads_unified_checkpoints(package: Package) -> None:
    """ModelOpt's unified checkpoints load since TensorRT-LLM 1.2.0."""
    first = read_table()["changes"]["unified_checkpoints"]
    if package.quant_algo is not None and not is_version_or_later(package.version, first):
        refuse(
            f"TensorRT-LLM {package.version} does not load ModelOpt's unified checkpoints",
            "Set engine.target.release to 26.03 (TensorRT-LLM 1.2.0) or later.",
        )


def runtime_executes_the_precision(package: Package) -> None:
    """The PyTorch runtime has no code for SmoothQuant, GPTQ and INT4 by rows."""
    supported = (
        number_format.quant_algo
        for number_format in precisions().values()
        if "pytorch" in number_format.worlds
    )
    if package.quant_algo not in (*supported, "MIXED_PRECISION"):
        refuse(
            f"the PyTorch runtime has no code for {package.quant_algo}",
            "Set engine.precision to fp8, or engine.target.world to engine.",
        )


def precision_is_that_of_the_checkpoint(package: Package) -> None:
    """The runtime serves a checkpoint in its own quantisation, whatever the request says."""
    request, algorithm = package.request, package.quant_algo
    expected = quant_algo(request.precision, algorithm)
    if algorithm not in (expected, "MIXED_PRECISION"):
        refuse(
            f"engine.precision is {request.precision} ({expected or 'not quantised'}), and the "
            f"quantised checkpoint is {algorithm or 'not quantised'}",
            "Quantise again: `tritonctl build --force`.",
        )


def kv_cache_fits_the_checkpoint(package: Package) -> None:
    """FP8 can be forced at load time, NVFP4 needs calibration, INT8 is for engines."""
    requested = package.request.kv_cache_dtype
    calibrated = package.kv_cache_quant_algo
    if requested == "int8":
        refuse(
            "engine.kv_cache_dtype int8 is for compiled engines only",
            "Set engine.kv_cache_dtype to fp8.",
        )
    expected = requested.upper() if requested and requested != "auto" else None
    if calibrated not in (expected, None) or (expected == "NVFP4" and calibrated is None):
        refuse(
            f"engine.kv_cache_dtype is {requested or 'not set'}, and the quantised checkpoint has "
            f"kv_cache_quant_algo {calibrated}",
            "Quantise again: `tritonctl build --force`.",
        )


def kv_cache_type_is_said_once(package: Package) -> None:
    """engine.kv_cache_dtype and kv_cache_config.dtype set the same value."""
    configured = (package.arguments.get("kv_cache_config") or {}).get("dtype")
    requested = package.request.kv_cache_dtype or "auto"
    if configured not in (None, "auto", requested):
        refuse(
            f"kv_cache_config.dtype is {configured}, and engine.kv_cache_dtype {requested}",
            f"Remove {_PACKAGE}.kv_cache_config.dtype and set engine.kv_cache_dtype to "
            f"{configured}.",
        )


def prompt_fits_into_a_step(package: Package) -> None:
    """Without chunked prefill the runtime refuses prompts above max_num_tokens."""
    limits = package.limits
    if limits.max_input_len > limits.max_num_tokens and not uses_chunked_prefill(package):
        refuse(
            f"engine.max_input_len is {limits.max_input_len}, and a step holds "
            f"{limits.max_num_tokens} tokens (max_num_tokens) without chunked prefill",
            f"Set {_PACKAGE}.enable_chunked_prefill to true, or engine.max_num_tokens to "
            f"{limits.max_input_len} or more.",
        )


def chunks_are_whole_blocks(package: Package) -> None:
    """With chunked prefill max_num_tokens is a multiple of tokens_per_block."""
    block = int(kv_cache_config(package).get("tokens_per_block") or 32)
    tokens = package.limits.max_num_tokens
    if uses_chunked_prefill(package) and tokens % block:
        multiple = tokens // block * block
        refuse(
            f"engine.max_num_tokens is {tokens}, and chunked prefill needs a multiple of "
            f"tokens_per_block ({block})",
            f"Set engine.max_num_tokens to {multiple or block} or {multiple + block}.",
        )


def graphs_are_given_in_one_way(package: Package) -> None:
    """The runtime refuses batch_sizes together with max_batch_size unless they agree."""
    graphs = package.arguments.get("cuda_graph_config") or {}
    sizes, largest = graphs.get("batch_sizes"), graphs.get("max_batch_size")
    if not sizes or not largest:
        return
    remedy = f"Remove {_PACKAGE}.cuda_graph_config.max_batch_size."
    if max(sizes) != largest:
        refuse(
            f"cuda_graph_config.batch_sizes end at {max(sizes)}, and its max_batch_size is "
            f"{largest}",
            remedy,
        )
    may_differ = is_version_or_later(package.version, read_table()["changes"]["graphs_agree"])
    if not may_differ and sorted(sizes) != _runtime_batch_sizes(graphs):
        refuse(
            "cuda_graph_config has batch_sizes and max_batch_size, which TensorRT-LLM "
            f"{package.version} takes together only where it would choose the same sizes",
            remedy,
        )


def _runtime_batch_sizes(graphs: dict[str, Any]) -> list[int]:
    """Return the sizes that the runtime chooses for a max_batch_size (CudaGraphConfig)."""
    largest = graphs["max_batch_size"]
    padded = [1, 2, 4, *range(8, 129, 8)]
    sizes = padded if graphs.get("enable_padding") else [*range(1, 33), 64, 128]
    sizes = sizes + [2**power for power in range(8, math.ceil(math.log2(largest)))]
    return sorted({*(size for size in sizes if size <= largest), largest})


def graphs_fit_the_batch(package: Package) -> None:
    """A CUDA graph above max_batch_size costs memory and is never used."""
    graphs = package.arguments.get("cuda_graph_config") or {}
    largest = max([*(graphs.get("batch_sizes") or []), graphs.get("max_batch_size") or 0])
    if largest > package.limits.max_batch_size:
        refuse(
            f"cuda_graph_config goes up to {largest} sequences, and engine.max_batch_size is "
            f"{package.limits.max_batch_size}",
            f"Lower it in {_PACKAGE}.cuda_graph_config, or raise engine.max_batch_size.",
        )


def prefill_graphs_are_set_once(package: Package) -> None:
    """prefill_cuda_graph_backend replaced two fields of torch_compile_config: both must agree."""
    backend = package.arguments.get("prefill_cuda_graph_backend")
    compiled = package.arguments.get("torch_compile_config") or {}
    if compiled.get("enable_piecewise_cuda_graph") and backend not in (None, "piecewise"):
        refuse(
            "torch_compile_config.enable_piecewise_cuda_graph is true, and "
            f"prefill_cuda_graph_backend is {backend}",
            f"Remove {_PACKAGE}.torch_compile_config.enable_piecewise_cuda_graph.",
        )
    sizes = package.arguments.get("prefill_capture_num_tokens")
    old_sizes = compiled.get("capture_num_tokens")
    if sizes and old_sizes and set(sizes) != set(old_sizes):
        refuse(
            "torch_compile_config.capture_num_tokens and prefill_capture_num_tokens differ",
            f"Remove {_PACKAGE}.torch_compile_config.capture_num_tokens.",
        )


def breakable_graphs_are_neither_compiled_nor_adapted(package: Package) -> None:
    """The breakable graphs of prompts go with neither torch.compile nor LoRA."""
    arguments = package.arguments
    if arguments.get("prefill_cuda_graph_backend") != "breakable":
        return
    others = ("torch_compile_config", "lora_config", "enable_lora")
    conflicts = [name for name in others if arguments.get(name) not in (None, False)]
    if conflicts:
        refuse(
            f"prefill_cuda_graph_backend is breakable, which excludes {conflicts[0]}",
            f"Remove {_PACKAGE}.{conflicts[0]}, or set {_PACKAGE}.prefill_cuda_graph_backend to "
            "piecewise.",
        )


def experts_fill_the_gpus(package: Package) -> None:
    """moe tensor * expert * cluster parallelism equals the tensor parallelism."""
    names = ("moe_tensor_parallel_size", "moe_expert_parallel_size", "moe_cluster_parallel_size")
    sizes = {name: package.arguments[name] for name in names if package.arguments.get(name)}
    if len(sizes) < 2:  # noqa: PLR2004 - with one size the runtime derives the others
        return
    product = 1
    for size in sizes.values():
        product *= size
    if product != package.limits.tp_size:
        factors = " * ".join(f"{name} {size}" for name, size in sizes.items())
        refuse(
            f"{factors} is {product}, and engine.tp_size is {package.limits.tp_size}",
            f"Let their product be engine.tp_size ({package.limits.tp_size}).",
        )


def arguments_are_not_ignored(package: Package) -> None:
    """The runtime accepts these fields and silently ignores them."""
    for name, _ in ignored_arguments(package.arguments, PYTORCH, package.version):
        refuse(
            f"{name} is set, and the PyTorch runtime of TensorRT-LLM {package.version} ignores it",
            f"Remove {_PACKAGE}.{name}.",
        )


RULES: tuple[Rule, ...] = (
    world_is_pytorch,
    runtime_is_the_llm_api_s_own,
    runtime_reads_unified_checkpoints,
    runtime_executes_the_precision,
    precision_is_that_of_the_checkpoint,
    kv_cache_fits_the_checkpoint,
    kv_cache_type_is_said_once,
    prompt_fits_into_a_step,
    chunks_are_whole_blocks,
    graphs_are_given_in_one_way,
    graphs_fit_the_batch,
    prefill_graphs_are_set_once,
    breakable_graphs_are_neither_compiled_nor_adapted,
    experts_fill_the_gpus,
    arguments_are_not_ignored,
    *CACHE_RULES,
    *SPECULATION_RULES,
    *LORA_RULES,
)


def check(package: Package) -> None:
    """Check every rule.

    Raises:
        BuildError: the first broken rule. Its id ends the problem.
    """
    check_rules(RULES, package)
