# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch runtime is given: a unified Hugging Face checkpoint, and arguments for it.

Layout of the checkpoint: NVIDIA ModelOpt, docs/source/deployment/3_unified_hf.rst: a Hugging Face
folder with `hf_quant_config.json`; not quantised, a plain one. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters import Adapter, target_modules
from arguments import LAST_WITH_ENGINES, exists, llm_arguments, version_of
from buildlib.checkpoint import Checkpoint
from buildlib.limits import ResolvedLimits
from buildlib.problems import BuildError, nearest, read_json_object
from buildlib.request import Request
from buildlib.weights import check_weights
from llm_arguments import PYTORCH, arguments_of, read_arguments

QUANTISATION = "hf_quant_config.json"

_WHERE = "engine.options.package"
# Given in part: the rest is decided here.
_COMPLETED = ("kv_cache_config", "enable_lora", "lora_config")
_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


@dataclass(frozen=True)
class Package:
    """Everything that decides `llm_args.json`.

    `quant_algo` and `kv_cache_quant_algo` as hf_quant_config.json has them; None: not quantised.
    """

    request: Request
    checkpoint: Checkpoint
    limits: ResolvedLimits
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    given: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()

    @property
    def version(self) -> str:
        """Return the version of TensorRT-LLM that serves it."""
        return version_of(self.request)


def read_given(
    raw: Mapping[str, Any], version: str = LAST_WITH_ENGINES
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checked arguments of the project, and those that are passed through unseen.

    `version`: of the TensorRT-LLM that gets them.

    Raises:
        BuildError: one is unknown, set elsewhere, or not what the runtime takes.
    """
    given = {name: value for name, value in raw.items() if name != "extra"}
    extra = raw.get("extra") or {}
    if not isinstance(extra, dict):
        raise BuildError(
            f"{_WHERE}.extra is {extra!r}, expected an object of arguments",
            remedy=f"Correct {_WHERE}.extra, or leave it out.",
        )
    for name in (*given, *extra):
        known = llm_arguments().get(name)
        if known and known.elsewhere:
            raise BuildError(f"{_WHERE}.{name} cannot be set", remedy=known.elsewhere)
    for name in given:
        _check_name(name)
    for name in extra:
        _check_unseen(name, given, version)
    return read_arguments(given, PYTORCH, version, _WHERE), extra


def _check_name(name: str) -> None:
    known = arguments_of(PYTORCH)
    if name not in known:
        raise BuildError(
            f"{_WHERE}.{name} is not an argument of tensorrt_llm.LLM{nearest(name, known)}",
            remedy="Correct the name; what this tritonctl does not know goes into "
            f"{_WHERE}.extra, an object of arguments.",
        )


def _check_unseen(name: str, given: Mapping[str, Any], version: str) -> None:
    if name in given:
        raise BuildError(f"{_WHERE}.extra repeats {name}", remedy=f"Remove one of the two {name}.")
    # What passed through unseen would go round the rules.
    if name in arguments_of(PYTORCH):
        raise BuildError(
            f"{_WHERE}.extra.{name} would be passed through unseen",
            remedy=f"Write {_WHERE}.{name} instead.",
        )
    known = llm_arguments().get(name)
    if known and (PYTORCH not in known.worlds or not exists(known, version)):
        raise BuildError(
            f"{_WHERE}.extra.{name} is not an argument of tensorrt_llm.LLM of TensorRT-LLM "
            f"{version}",
            remedy=f"Remove {_WHERE}.extra.{name}, or set engine.target.release to a release that "
            "has it.",
        )


def read_quantisation(folder: Path) -> tuple[str | None, str | None]:
    """Return quant_algo and kv_cache_quant_algo of the checkpoint in `folder`, weights checked.

    Raises:
        BuildError: it is incomplete, damaged, or for compiled engines.
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


def served_arguments(package: Package) -> dict[str, Any]:
    """Return the arguments of `tensorrt_llm.LLM`; model and tokenizer are the serving side's."""
    given, limits = dict(package.given), package.limits
    graphs = {"max_batch_size": limits.max_batch_size, "enable_padding": True}
    if "cuda_graph_config" in given:
        own = given.pop("cuda_graph_config")
        # null: no graphs. Sizes of the project's own exclude ours.
        sized = own is not None and not {"batch_sizes", "max_batch_size"} & set(own)
        graphs = {**graphs, **own} if sized else own
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
        **{name: value for name, value in given.items() if name not in _COMPLETED},
        **lora(package),
        "enable_chunked_prefill": chunked_prefill(package),
        **package.extra,
    }


def kv_cache_config(package: Package) -> dict[str, Any]:
    """Return how the KV cache is kept; an FP8 one can be forced on a checkpoint without scales."""
    own = package.given.get("kv_cache_config") or {}
    asked = package.request.kv_cache_dtype
    forced = asked == "fp8" and package.kv_cache_quant_algo is None
    dtype = {"dtype": "fp8"} if forced else {}
    return {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True, **dtype, **own}


def lora(package: Package) -> dict[str, Any]:
    """Return what the runtime has to know of adapters; their places are the serving side's."""
    if not package.adapters:
        return {}
    own = package.given.get("lora_config") or {}
    config = {
        "max_lora_rank": max(adapter.rank for adapter in package.adapters),
        "max_loras": len(package.adapters),
        "max_cpu_loras": len(package.adapters),
        "lora_target_modules": target_modules(package.adapters),
        **{name: value for name, value in own.items() if value is not None and name != "lora_dir"},
    }
    return {"enable_lora": True, "lora_config": config}


def chunked_prefill(package: Package) -> bool:
    """Return whether long prompts are processed in chunks: as asked, else where needed."""
    asked = package.given.get("enable_chunked_prefill")
    needed = package.limits.max_input_len > package.limits.max_num_tokens
    return needed if asked is None else bool(asked)
