# SPDX-License-Identifier: Apache-2.0
"""Reads and checks a request for the stage quantise before torch is imported."""

import json
from dataclasses import dataclass, replace
from typing import Any

from buildlib.builder_toml import require_precision
from buildlib.checkpoint import DecoderCheckpoint
from buildlib.compatibility import kv_cache_dtypes
from buildlib.problems import BuildError, did_you_mean
from buildlib.request import check_keys
from buildlib.request_types import BuilderRequest, RequestedCalibration
from recipes import AWQ_SAMPLES, FOLDER, KV_BITS, MIN_SAMPLES, RECIPES, QuantisationRecipe

BUILDER = "tensorrt_llm"
# Keys of `engine.options.quantise`: the host gives each stage its options.
_OPTIONS = ("awq_block_size", "smoothquant_alpha", "dtype")
AWQ_BLOCK_SIZES = (64, 128)
DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class QuantiseChoices:
    """One checked request of this stage."""

    recipe: QuantisationRecipe
    world: str
    dtype: str  # of tensors that are not quantised
    kv_cache_dtype: str | None
    tp_size: int
    pp_size: int
    awq_block_size: int
    # None: ModelOpt's default, 1.0
    smoothquant_alpha: float | None
    # None: no ranges are measured
    calibration: RequestedCalibration | None


def read_choices(request: BuilderRequest, checkpoint: DecoderCheckpoint) -> QuantiseChoices:
    """Read and check the request.

    Raises:
        BuildError: this stage or the target's world does not support the request.
    """
    require_precision(request, FOLDER)
    recipe = RECIPES[request.precision]
    world = _world(request)
    _check_precision(request, recipe, world)
    options = _options(request)
    choices = QuantiseChoices(
        recipe=recipe,
        world=world,
        dtype=_dtype(request, options, checkpoint),
        kv_cache_dtype=_kv_cache_dtype(request, world),
        tp_size=request.limits.tp_size,
        pp_size=request.limits.pp_size,
        awq_block_size=_awq_block_size(request, options),
        smoothquant_alpha=_smoothquant_alpha(request, options),
        calibration=_calibration(request),
    )
    _check_split(choices, checkpoint)
    return choices


def _world(request: BuilderRequest) -> str:
    if request.target is None:
        raise BuildError(
            "the build request has no target, and checkpoints for compiled engines and for the "
            "PyTorch runtime differ",
            remedy="Set engine.target.world to engine or pytorch.",
        )
    return request.target.world


def _check_precision(request: BuilderRequest, recipe: QuantisationRecipe, world: str) -> None:
    if world in recipe.worlds:
        return
    runtime = {"engine": "compiled engines", "pytorch": "TensorRT-LLM's PyTorch runtime"}[world]
    other_world = "pytorch" if world == "engine" else "engine"
    raise BuildError(
        f"engine.precision {request.precision} has no execution path in {runtime}",
        remedy=f"Set engine.precision to {recipe.instead}, or engine.target.world to {other_world} "
        "(a release up to 26.07).",
    )


def _kv_cache_dtype(request: BuilderRequest, world: str) -> str | None:
    requested = request.kv_cache_dtype
    if requested is None:
        return None
    if requested not in KV_BITS:
        raise BuildError(
            f"engine.kv_cache_dtype is {requested!r}{did_you_mean(requested, KV_BITS)}",
            remedy=f"Use one of: {', '.join(KV_BITS)}; leave it out for the model's own type.",
        )
    if world not in kv_cache_dtypes()[requested].worlds:
        raise BuildError(
            f"engine.kv_cache_dtype {requested} has no execution path in TensorRT-LLM's PyTorch "
            "runtime",
            remedy="Set engine.kv_cache_dtype to fp8, or engine.target.world to engine.",
        )
    return requested


def _options(request: BuilderRequest) -> dict[str, Any]:
    check_keys(request.options, _OPTIONS, "engine.options.quantise")
    return request.options


def _require_precision(request: BuilderRequest, name: str, precisions: tuple[str, ...]) -> None:
    if request.precision not in precisions:
        supported = " and ".join(precisions)
        raise BuildError(
            f"engine.options.quantise sets {name}, which is for {supported}; the precision is "
            f"{request.precision}",
            remedy=f"Remove {name}, or set engine.precision to {precisions[0]}.",
        )


def _dtype(request: BuilderRequest, options: dict[str, Any], checkpoint: DecoderCheckpoint) -> str:
    fixed = {"fp16": "float16", "bf16": "bfloat16"}.get(request.precision)
    requested = options.get("dtype")
    if requested is None:
        # As TensorRT-LLM's `--dtype auto`: it has no fp32 kernels, so fp32 becomes float16.
        return fixed or ("bfloat16" if _stored_dtype(checkpoint) == "bfloat16" else "float16")
    if requested not in DTYPES or (fixed and requested != fixed):
        raise BuildError(
            f"engine.options.quantise.dtype is {requested!r}, and the precision is "
            f"{request.precision}",
            remedy=f"Use {fixed or ' or '.join(DTYPES)}, or leave it out.",
        )
    return str(requested)


def _stored_dtype(checkpoint: DecoderCheckpoint) -> str:
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _awq_block_size(request: BuilderRequest, options: dict[str, Any]) -> int:
    requested = options.get("awq_block_size", AWQ_BLOCK_SIZES[-1])
    if "awq_block_size" in options:
        awq_precisions = tuple(name for name, recipe in RECIPES.items() if recipe.awq)
        _require_precision(request, "awq_block_size", awq_precisions)
    if isinstance(requested, bool) or requested not in AWQ_BLOCK_SIZES:
        raise BuildError(
            f"engine.options.quantise.awq_block_size is {requested!r}",
            remedy="Use 64 or 128 weights: TensorRT-LLM has kernels for no others.",
        )
    return int(requested)


def _smoothquant_alpha(request: BuilderRequest, options: dict[str, Any]) -> float | None:
    requested = options.get("smoothquant_alpha")
    if requested is None:
        return None
    smoothed_precisions = tuple(name for name, recipe in RECIPES.items() if recipe.smoothquant)
    _require_precision(request, "smoothquant_alpha", smoothed_precisions)
    if (
        isinstance(requested, bool)
        or not isinstance(requested, int | float)
        or not 0 <= requested <= 1
    ):
        raise BuildError(
            f"engine.options.quantise.smoothquant_alpha is {requested!r}",
            remedy="Use a number from 0 to 1. A larger one moves more of the outliers to the "
            "weights.",
        )
    return float(requested)


def _calibration(request: BuilderRequest) -> RequestedCalibration | None:
    if not (RECIPES[request.precision].calibrated or request.kv_cache_dtype):
        return None
    requested = request.calibration or _prompts_as_calibration(request)
    if requested.samples < MIN_SAMPLES:
        raise BuildError(
            f"engine.calibration.samples is {requested.samples}, and ranges measured on fewer than "
            f"{MIN_SAMPLES} samples are arbitrary",
            remedy=f"Set engine.calibration.samples to {MIN_SAMPLES} or more (512 is usual).",
        )
    if RECIPES[request.precision].awq and requested.samples > AWQ_SAMPLES:
        return replace(requested, samples=AWQ_SAMPLES)
    return requested


def _prompts_as_calibration(request: BuilderRequest) -> RequestedCalibration:
    if request.evaluation is None:
        subject = request.precision if RECIPES[request.precision].calibrated else "the KV cache"
        raise BuildError(
            f"{subject} needs text to measure the ranges of activations on, and the project has "
            "neither engine.calibration nor evaluation.prompts",
            remedy="Set engine.calibration.data to a text file with a sample per line, like the "
            "requests to the model.",
        )
    return RequestedCalibration(request.evaluation.prompts)


def _check_split(choices: QuantiseChoices, checkpoint: DecoderCheckpoint) -> None:
    if choices.world == "pytorch":
        return  # the runtime splits a unified checkpoint when it loads it
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    tp, pp = choices.tp_size, choices.pp_size
    sizes = {
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": checkpoint.num_key_value_heads,
        "intermediate_size": config["intermediate_size"],
    }
    for name, size in sizes.items():
        _require_divisible(size, name, tp, "tp_size", choices)
    _require_divisible(checkpoint.num_hidden_layers, "num_hidden_layers", pp, "pp_size", choices)
    if choices.recipe.awq:
        width = checkpoint.head_dim * config["num_attention_heads"] // tp
        for name, size in (
            ("hidden_size", config["hidden_size"]),
            ("the attention's width", width),
            ("intermediate_size", config["intermediate_size"] // tp),
        ):
            _require_divisible(
                size, f"{name} of a rank", choices.awq_block_size, "awq_block_size", choices
            )


def _require_divisible(
    size: int, name: str, divisor: int, field: str, choices: QuantiseChoices
) -> None:
    if size % divisor == 0:
        return
    if field == "awq_block_size":
        problem = f"a block of {divisor} weights does not divide {name} ({size})"
        divisors = [block for block in AWQ_BLOCK_SIZES if size % block == 0]
        remedy = (
            f"Set engine.options.quantise.awq_block_size to {divisors[0]}."
            if divisors
            else f"Set engine.precision to {choices.recipe.instead}, or lower engine.tp_size."
        )
        raise BuildError(problem, remedy=remedy)
    divisors = [number for number in range(1, size + 1) if size % number == 0 and number < divisor]
    raise BuildError(
        f"engine.{field} is {divisor}, and does not divide the model's {name} ({size})",
        remedy=f"Set engine.{field} to {divisors[-1]}.",
    )
