# SPDX-License-Identifier: Apache-2.0
"""The input of trtllm-build: a TensorRT-LLM checkpoint, options, sizes and a GPU.

Layout and keys of the checkpoint: TensorRT-LLM docs/source/legacy/architecture/checkpoint.md.
Standard library only.
"""

from dataclasses import dataclass
from pathlib import Path

from arguments import target_version
from build_options import TrtllmBuildOptions
from buildlib.checkpoint import DecoderCheckpoint, SupportedModels, inspect_checkpoint
from buildlib.compatibility import quant_algo
from buildlib.limits import ResolvedLimits
from buildlib.problems import BuildError, read_json_object
from buildlib.request_types import BuilderRequest
from buildlib.weights import check_safetensors

_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


@dataclass(frozen=True)
class QuantisedCheckpoint:
    """The relevant part of a TensorRT-LLM checkpoint's config.json."""

    architecture: str
    dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    pp_size: int
    world_size: int
    weight_only_plugin: bool = True
    num_eagle_layers: int = 0
    max_draft_len: int = 0  # of heads in the checkpoint; 0: no heads
    # ModelOpt writes it into every checkpoint.
    logits_dtype: str = "float16"


@dataclass(frozen=True)
class TrtllmBuildPlan:
    """Everything that decides the command line of trtllm-build."""

    request: BuilderRequest
    checkpoint: DecoderCheckpoint
    quantised: QuantisedCheckpoint
    options: TrtllmBuildOptions
    limits: ResolvedLimits
    compute_capability: str | None  # of the GPU to build on and for; None: unknown yet

    @property
    def version(self) -> str:
        """Return the TensorRT-LLM version that compiles."""
        return target_version(self.request)

    @property
    def draft_len(self) -> int:
        """Return the maximum draft tokens of a sequence in the compiled engine."""
        return self.options.number("max_draft_len") or self.quantised.max_draft_len

    @property
    def sm_version(self) -> int | None:
        """Return the compute capability as TensorRT-LLM's number: 89 for 8.9, 100 for 10.0."""
        return None if self.compute_capability is None else sm_number(self.compute_capability)


def sm_number(compute_capability: str) -> int:
    """Return 89 for 8.9, 100 for 10.0."""
    major, _, minor = compute_capability.partition(".")
    return int(major) * 10 + int(minor or 0)


def inspect_source(request: BuilderRequest) -> DecoderCheckpoint:
    """Read the Hugging Face checkpoint that was quantised.

    Raises:
        BuildError: it is incomplete or damaged.
    """
    path = request.checkpoint / "config.json"
    config = read_json_object(path, remedy=_QUANTISE_AGAIN) if path.is_file() else {}
    # The stage quantise has checked the architecture.
    names = [str(name) for name in config.get("architectures") or []]
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return inspect_checkpoint(
        request.checkpoint,
        SupportedModels("tensorrt_llm", names, [rope]),
        allow_pickle=request.allow_pickle,
    )


def expected_quantised(
    request: BuilderRequest, checkpoint: DecoderCheckpoint
) -> QuantisedCheckpoint:
    """Return the expected result of the stage quantise, for a dry run."""
    cache = request.kv_cache_dtype
    sizes = request.limits
    return QuantisedCheckpoint(
        architecture=checkpoint.architecture,
        dtype="bfloat16" if request.precision == "bf16" else "float16",
        quant_algo=quant_algo(request.precision),
        kv_cache_quant_algo=cache.upper() if cache and cache != "auto" else None,
        tp_size=sizes.tp_size,
        pp_size=sizes.pp_size,
        world_size=sizes.tp_size * sizes.pp_size,
    )


def read_quantised(folder: Path) -> QuantisedCheckpoint:
    """Read the TensorRT-LLM checkpoint in `folder` and check the headers of its weights.

    Raises:
        BuildError: it is incomplete, damaged or of another format.
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
    quantised = QuantisedCheckpoint(
        architecture=config["architecture"],
        dtype=config["dtype"],
        quant_algo=quantisation.get("quant_algo"),
        kv_cache_quant_algo=quantisation.get("kv_cache_quant_algo"),
        tp_size=tp_size,
        pp_size=pp_size,
        world_size=int(mapping.get("world_size", tp_size * pp_size)),
        weight_only_plugin=not config.get("disable_weight_only_quant_plugin", False),
        num_eagle_layers=int(config.get("num_eagle_layers", 0)),
        max_draft_len=int(config.get("max_draft_len", 0)),
        # TensorRT-LLM's default (models/modeling_utils.py).
        logits_dtype=str(config.get("logits_dtype", "float32")),
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
