# SPDX-License-Identifier: Apache-2.0
"""The input of trtllm-build: a checkpoint in its own format, sizes, a GPU.

Layout and keys of the checkpoint: TensorRT-LLM docs/source/legacy/architecture/checkpoint.md.
Standard library only.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_options import Options
from buildlib.checkpoint import Checkpoint, Supported, inspect_checkpoint
from buildlib.compatibility import quant_algo
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.problems import BuildError, read_json_object
from buildlib.request import Limits, Request
from buildlib.weights import check_safetensors
from llm_arguments import DEFAULT_MAX_NUM_TOKENS

# The factor of these does not stretch max_position_embeddings (tensorrt_llm/builder.py).
_UNSTRETCHED = ("su", "longrope", "llama3")
_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


@dataclass(frozen=True)
class Quantised:
    """A TensorRT-LLM checkpoint's config.json, as far as it matters here."""

    architecture: str
    dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    pp_size: int
    world_size: int
    weight_only_plugin: bool = True
    num_eagle_layers: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that decides the command line, before any of it runs.

    `compute_capability` is that of the GPU to build on and for; None: not known yet.
    """

    request: Request
    checkpoint: Checkpoint
    quantised: Quantised
    options: Options
    limits: ResolvedLimits
    compute_capability: str | None

    @property
    def sm(self) -> int | None:
        """Return the compute capability as TensorRT-LLM counts: 89 for 8.9, 100 for 10.0."""
        return None if self.compute_capability is None else sm_of(self.compute_capability)


def sm_of(compute_capability: str) -> int:
    """Return 89 for 8.9, 100 for 10.0."""
    major, _, minor = compute_capability.partition(".")
    return int(major) * 10 + int(minor or 0)


def inspect_source(request: Request) -> Checkpoint:
    """Return the facts of the Hugging Face checkpoint that was quantised.

    Raises:
        BuildError: it is incomplete or damaged.
    """
    path = request.checkpoint / "config.json"
    config = read_json_object(path, remedy=_QUANTISE_AGAIN) if path.is_file() else {}
    # What is supported was decided when it was quantised.
    names = [str(name) for name in config.get("architectures") or []]
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return inspect_checkpoint(
        request.checkpoint,
        Supported("tensorrt_llm", names, [rope]),
        allow_pickle=request.allow_pickle,
    )


def expected_quantised(request: Request, checkpoint: Checkpoint) -> Quantised:
    """Return what the stage quantise will leave, for a command that is only shown."""
    cache = request.kv_cache_dtype
    sizes = request.limits
    return Quantised(
        architecture=checkpoint.architecture,
        dtype="bfloat16" if request.precision == "bf16" else "float16",
        quant_algo=quant_algo(request.precision),
        kv_cache_quant_algo=cache.upper() if cache and cache != "auto" else None,
        tp_size=sizes.tp_size,
        pp_size=sizes.pp_size,
        world_size=sizes.tp_size * sizes.pp_size,
    )


def read_quantised(folder: Path) -> Quantised:
    """Return the facts of the TensorRT-LLM checkpoint in `folder`, its weights' headers checked.

    Raises:
        BuildError: it is incomplete, damaged or not of this format.
    """
    path = folder / "config.json"
    config = read_json_object(path, remedy=_QUANTISE_AGAIN)
    for name in ("architecture", "dtype"):
        if not isinstance(config.get(name), str):
            raise BuildError(
                f"{path}: has no {name}, so it is not a TensorRT-LLM checkpoint",
                remedy=_QUANTISE_AGAIN,
            )
    mapping = config.get("mapping") or {}
    tp_size, pp_size = int(mapping.get("tp_size", 1)), int(mapping.get("pp_size", 1))
    quantisation = config.get("quantization") or {}
    quantised = Quantised(
        architecture=config["architecture"],
        dtype=config["dtype"],
        quant_algo=quantisation.get("quant_algo"),
        kv_cache_quant_algo=quantisation.get("kv_cache_quant_algo"),
        tp_size=tp_size,
        pp_size=pp_size,
        world_size=int(mapping.get("world_size", tp_size * pp_size)),
        weight_only_plugin=not config.get("disable_weight_only_quant_plugin", False),
        num_eagle_layers=int(config.get("num_eagle_layers", 0)),
    )
    _check_ranks(folder, quantised.world_size)
    return quantised


def _check_ranks(folder: Path, world_size: int) -> None:
    for rank in range(world_size):
        path = folder / f"rank{rank}.safetensors"
        if not path.is_file():
            raise BuildError(
                f"{folder} is for {world_size} GPUs (mapping.world_size) and has no {path.name}",
                remedy=_QUANTISE_AGAIN,
            )
        check_safetensors(path)


def size_engine(limits: Limits, checkpoint: Checkpoint, options: Options) -> ResolvedLimits:
    """Return the sizes of the engine, with what was left open filled in as the tool would.

    Raises:
        BuildError: they contradict each other or the checkpoint.
    """
    stretched = dataclasses.replace(
        checkpoint, max_position_embeddings=longest_sequence(checkpoint)
    )
    resolved = resolve_limits(limits, stretched, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS)
    if limits.max_num_tokens is None:
        # The tool clips to what a full batch can bring, and rounds up to a block.
        most = resolved.max_batch_size * resolved.max_seq_len
        fitting = max(min(DEFAULT_MAX_NUM_TOKENS, most), options.number("tokens_per_block"))
        resolved = dataclasses.replace(
            resolved, max_num_tokens=max(fitting, resolved.max_batch_size)
        )
    return resolved


def longest_sequence(checkpoint: Checkpoint) -> int:
    """Return max_position_embeddings, stretched by a linear position scaling."""
    config: dict[str, Any] = read_json_object(
        checkpoint.folder / "config.json", remedy=_QUANTISE_AGAIN
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    factor = float(rope.get("factor") or 1.0) if kind not in _UNSTRETCHED else 1.0
    return math.ceil(checkpoint.max_position_embeddings * factor)
