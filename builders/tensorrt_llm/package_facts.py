# SPDX-License-Identifier: Apache-2.0
"""The input of the PyTorch runtime: a unified Hugging Face checkpoint and its arguments.

Layout of the checkpoint: NVIDIA ModelOpt, docs/source/deployment/3_unified_hf.rst: a Hugging Face
folder, with `hf_quant_config.json` if it is quantised. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters import LoraAdapter, target_modules
from arguments import (
    LAST_WITH_ENGINES,
    is_available,
    is_read,
    llm_arguments,
    target_version,
)
from buildlib.checkpoint import DecoderCheckpoint
from buildlib.limits import ResolvedLimits
from buildlib.problems import BuildError, did_you_mean, read_json_object
from buildlib.request_types import BuilderRequest
from buildlib.weights import check_weights
from llm_arguments import PYTORCH, read_arguments, settable_arguments

QUANTISATION = "hf_quant_config.json"

_KEY = "engine.options.package"
# The project may set parts of these; the rest is decided here.
_COMPLETED = ("kv_cache_config", "enable_lora", "lora_config")
_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


@dataclass(frozen=True)
class Package:
    """Everything that decides `llm_args.json`."""

    request: BuilderRequest
    checkpoint: DecoderCheckpoint
    limits: ResolvedLimits
    # From hf_quant_config.json; None: not quantised.
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[LoraAdapter, ...] = ()

    @property
    def version(self) -> str:
        """Return the TensorRT-LLM version that serves it."""
        return target_version(self.request)


def read_package_arguments(
    raw: Mapping[str, Any], version: str = LAST_WITH_ENGINES
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checked arguments of the project, and `extra` ones that pass unchecked.

    `version`: of the TensorRT-LLM that gets them.

    Raises:
        BuildError: an argument is unknown, belongs elsewhere or has an invalid value.
    """
    arguments = {name: value for name, value in raw.items() if name != "extra"}
    extra = raw.get("extra") or {}
    if not isinstance(extra, dict):
        raise BuildError(
            f"{_KEY}.extra is {extra!r}, expected an object of arguments",
            remedy=f"Correct {_KEY}.extra, or leave it out.",
        )
    for name in (*arguments, *extra):
        argument = llm_arguments().get(name)
        if argument and argument.elsewhere:
            raise BuildError(f"{_KEY}.{name} cannot be set", remedy=argument.elsewhere)
    for name in arguments:
        _check_name(name)
    for name in extra:
        _check_extra(name, arguments, version)
    return read_arguments(arguments, PYTORCH, version, _KEY), extra


def _check_name(name: str) -> None:
    supported = settable_arguments(PYTORCH)
    if name not in supported:
        raise BuildError(
            f"{_KEY}.{name} is not an argument of tensorrt_llm.LLM{did_you_mean(name, supported)}",
            remedy="Correct the name; what this tritonctl does not know goes into "
            f"{_KEY}.extra, an object of arguments.",
        )


def _check_extra(name: str, arguments: Mapping[str, Any], version: str) -> None:
    if name in arguments:
        raise BuildError(f"{_KEY}.extra repeats {name}", remedy=f"Remove one of the two {name}.")
    # An unchecked argument would bypass the rules.
    if name in settable_arguments(PYTORCH):
        raise BuildError(
            f"{_KEY}.extra.{name} would pass unchecked",
            remedy=f"Write {_KEY}.{name} instead.",
        )
    argument = llm_arguments().get(name)
    is_missing = argument and is_read(version) and not is_available(argument, version)
    if argument and (PYTORCH not in argument.worlds or is_missing):
        raise BuildError(
            f"{_KEY}.extra.{name} is not an argument of tensorrt_llm.LLM of TensorRT-LLM {version}",
            remedy=f"Remove {_KEY}.extra.{name}, or set engine.target.release to a release that "
            "has it.",
        )


def read_quantisation(folder: Path) -> tuple[str | None, str | None]:
    """Check the checkpoint in `folder` and return its quant_algo and kv_cache_quant_algo.

    Raises:
        BuildError: it is incomplete, damaged or for compiled engines.
    """
    config = read_json_object(folder / "config.json", remedy=_QUANTISE_AGAIN)
    if "architecture" in config:
        raise BuildError(
            f"{folder} is a checkpoint for trtllm-build, not for the PyTorch runtime",
            remedy=_QUANTISE_AGAIN,
        )
    check_weights(folder)
    path = folder / QUANTISATION
    if not path.is_file():
        return None, None
    quantisation = read_json_object(path, remedy=_QUANTISE_AGAIN).get("quantization")
    if not isinstance(quantisation, dict):
        raise BuildError(f"{path}: has no object `quantization`", remedy=_QUANTISE_AGAIN)
    return quantisation.get("quant_algo"), quantisation.get("kv_cache_quant_algo")


def runtime_arguments(package: Package) -> dict[str, Any]:
    """Return the arguments of `tensorrt_llm.LLM`. Serving adds model and tokenizer."""
    arguments, limits = dict(package.arguments), package.limits
    graphs = {"max_batch_size": limits.max_batch_size, "enable_padding": True}
    if "cuda_graph_config" in arguments:
        graph_config = arguments.pop("cuda_graph_config")
        # null: no graphs. Sizes from the project replace the default.
        use_default_sizes = graph_config is not None and not {
            "batch_sizes",
            "max_batch_size",
        } & set(graph_config)
        graphs = {**graphs, **graph_config} if use_default_sizes else graph_config
    return {
        "tensor_parallel_size": limits.tp_size,
        "pipeline_parallel_size": limits.pp_size,
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_seq_len,
        "max_beam_width": limits.max_beam_width,
        "trust_remote_code": package.request.trust_remote_code,
        "kv_cache_config": kv_cache_config(package),
        "cuda_graph_config": graphs,
        **{name: value for name, value in arguments.items() if name not in _COMPLETED},
        **lora_arguments(package),
        "enable_chunked_prefill": uses_chunked_prefill(package),
        **package.extra,
    }


def kv_cache_config(package: Package) -> dict[str, Any]:
    """Return the kv_cache_config. FP8 can be forced on a checkpoint without scales."""
    overrides = package.arguments.get("kv_cache_config") or {}
    requested_dtype = package.request.kv_cache_dtype
    is_forced = requested_dtype == "fp8" and package.kv_cache_quant_algo is None
    dtype = {"dtype": "fp8"} if is_forced else {}
    return {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True, **dtype, **overrides}


def lora_arguments(package: Package) -> dict[str, Any]:
    """Return the arguments for adapters. Serving adds their paths."""
    if not package.adapters:
        return {}
    overrides = package.arguments.get("lora_config") or {}
    config = {
        "max_lora_rank": max(adapter.rank for adapter in package.adapters),
        "max_loras": len(package.adapters),
        "max_cpu_loras": len(package.adapters),
        "lora_target_modules": target_modules(package.adapters),
        **{
            name: value
            for name, value in overrides.items()
            if value is not None and name != "lora_dir"
        },
    }
    return {"enable_lora": True, "lora_config": config}


def uses_chunked_prefill(package: Package) -> bool:
    """Whether long prompts are processed in chunks: as requested, else if necessary."""
    requested = package.arguments.get("enable_chunked_prefill")
    is_longer_than_step = package.limits.max_input_len > package.limits.max_num_tokens
    return is_longer_than_step if requested is None else bool(requested)
