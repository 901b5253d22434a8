# SPDX-License-Identifier: Apache-2.0
"""What a request asks of the stage quantise, checked before torch is imported."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib.checkpoint import Checkpoint
from buildlib.compatibility import kv_cache_dtypes
from buildlib.problems import BuildError, nearest
from buildlib.request import Calibration, Request, World, known_keys, known_precision
from recipes import AWQ_SAMPLES, KV_BITS, LEAST_SAMPLES, RECIPES, Recipe

BUILDER = "tensorrt_llm"
# Those of `engine.options.quantise`: the host hands each stage its own.
_OPTIONS = ("awq_block_size", "smoothquant_alpha", "dtype")
AWQ_BLOCK_SIZES = (64, 128)
DTYPES = ("float16", "bfloat16")
# What tritonctl asks for when the project says nothing about calibration.
_SAMPLES, _MAX_SEQ_LEN, _BATCH_SIZE, _SEED = 512, 512, 1, 1234


@dataclass(frozen=True)
class Choices:
    """One checked request of this stage. `dtype`: of what is not quantised."""

    recipe: Recipe
    world: World
    dtype: str
    kv_cache_dtype: str | None
    tp_size: int
    pp_size: int
    awq_block_size: int
    # None: ModelOpt's own, which is 1.0
    smoothquant_alpha: float | None
    # None: nothing is measured
    calibration: Calibration | None


def read_choices(request: Request, checkpoint: Checkpoint) -> Choices:
    """Return what the request asks for.

    Raises:
        BuildError: it asks for what this stage, or the target's world, cannot do.
    """
    known_precision(request, BUILDER, tuple(RECIPES))
    recipe = RECIPES[request.precision]
    world = _world(request)
    _check_precision(request, recipe, world)
    options = _options(request)
    choices = Choices(
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


def _world(request: Request) -> World:
    if request.target is None:
        raise BuildError(
            "the build request has no target, and a checkpoint for compiled engines is not one for "
            "the PyTorch runtime",
            remedy="Set engine.target.world to engine or pytorch.",
        )
    return request.target.world


def _check_precision(request: Request, recipe: Recipe, world: World) -> None:
    if world in recipe.worlds:
        return
    runtime = {"engine": "compiled engines", "pytorch": "TensorRT-LLM's PyTorch runtime"}[world]
    other = "pytorch" if world == "engine" else "engine"
    raise BuildError(
        f"engine.precision {request.precision} has no execution path in {runtime}",
        remedy=f"Set engine.precision to {recipe.instead}, or engine.target.world to {other} "
        "(a release up to 26.07).",
    )


def _kv_cache_dtype(request: Request, world: World) -> str | None:
    asked = request.kv_cache_dtype
    if asked is None:
        return None
    if asked not in KV_BITS:
        raise BuildError(
            f"engine.kv_cache_dtype is {asked!r}{nearest(asked, KV_BITS)}",
            remedy=f"Use one of: {', '.join(KV_BITS)}; leave it out for the model's own type.",
        )
    if world not in kv_cache_dtypes()[asked].worlds:
        raise BuildError(
            f"engine.kv_cache_dtype {asked} has no execution path in TensorRT-LLM's PyTorch "
            "runtime",
            remedy="Set engine.kv_cache_dtype to fp8, or engine.target.world to engine.",
        )
    return asked


def _options(request: Request) -> dict[str, Any]:
    known_keys(request.options, _OPTIONS, "engine.options.quantise")
    return request.options


def _only_for(request: Request, name: str, precisions: tuple[str, ...]) -> None:
    if request.precision not in precisions:
        which = " and ".join(precisions)
        raise BuildError(
            f"engine.options.quantise sets {name}, which is for {which}; the precision is "
            f"{request.precision}",
            remedy=f"Remove {name}, or set engine.precision to {precisions[0]}.",
        )


def _dtype(request: Request, options: dict[str, Any], checkpoint: Checkpoint) -> str:
    fixed = {"fp16": "float16", "bf16": "bfloat16"}.get(request.precision)
    asked = options.get("dtype")
    if asked is None:
        # As TensorRT-LLM's `--dtype auto`: fp32 has no kernels there and becomes float16.
        return fixed or ("bfloat16" if _stored_as(checkpoint) == "bfloat16" else "float16")
    if asked not in DTYPES or (fixed and asked != fixed):
        raise BuildError(
            f"engine.options.quantise.dtype is {asked!r}, and the precision is {request.precision}",
            remedy=f"Use {fixed or ' or '.join(DTYPES)}, or leave it out.",
        )
    return str(asked)


def _stored_as(checkpoint: Checkpoint) -> str:
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _awq_block_size(request: Request, options: dict[str, Any]) -> int:
    asked = options.get("awq_block_size", AWQ_BLOCK_SIZES[-1])
    if "awq_block_size" in options:
        searched = tuple(name for name, recipe in RECIPES.items() if recipe.awq)
        _only_for(request, "awq_block_size", searched)
    if isinstance(asked, bool) or asked not in AWQ_BLOCK_SIZES:
        raise BuildError(
            f"engine.options.quantise.awq_block_size is {asked!r}",
            remedy="Use 64 or 128 weights: TensorRT-LLM has kernels for no others.",
        )
    return int(asked)


def _smoothquant_alpha(request: Request, options: dict[str, Any]) -> float | None:
    asked = options.get("smoothquant_alpha")
    if asked is None:
        return None
    _only_for(request, "smoothquant_alpha", ("int8_sq",))
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 <= asked <= 1:
        raise BuildError(
            f"engine.options.quantise.smoothquant_alpha is {asked!r}",
            remedy="Use a number from 0 to 1; the larger, the more of the outliers goes to the "
            "weights.",
        )
    return float(asked)


def _calibration(request: Request) -> Calibration | None:
    if not (RECIPES[request.precision].calibrated or request.kv_cache_dtype):
        return None
    asked = request.calibration or _prompts_as_calibration(request)
    if asked.samples < LEAST_SAMPLES:
        raise BuildError(
            f"engine.calibration.samples is {asked.samples}, and ranges measured on fewer than "
            f"{LEAST_SAMPLES} samples are chance",
            remedy=f"Set engine.calibration.samples to {LEAST_SAMPLES} or more (512 is usual).",
        )
    if RECIPES[request.precision].awq and asked.samples > AWQ_SAMPLES:
        return Calibration(asked.data, AWQ_SAMPLES, asked.max_seq_len, asked.batch_size, asked.seed)
    return asked


def _prompts_as_calibration(request: Request) -> Calibration:
    if request.evaluation is None:
        what = request.precision if RECIPES[request.precision].calibrated else "the KV cache"
        raise BuildError(
            f"{what} needs text to measure the ranges of activations on, and the project has "
            "neither engine.calibration nor evaluation.prompts",
            remedy="Set engine.calibration.data to a text file with a sample per line, like what "
            "the model will be asked.",
        )
    return Calibration(Path(request.evaluation.prompts), _SAMPLES, _MAX_SEQ_LEN, _BATCH_SIZE, _SEED)


def _check_split(choices: Choices, checkpoint: Checkpoint) -> None:
    if choices.world == "pytorch":
        return  # the runtime splits a unified checkpoint itself, when it loads it
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    tp, pp = choices.tp_size, choices.pp_size
    sizes = {
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": checkpoint.num_key_value_heads,
        "intermediate_size": config["intermediate_size"],
    }
    for name, size in sizes.items():
        _divides(size, name, tp, "tp_size", choices)
    _divides(checkpoint.num_hidden_layers, "num_hidden_layers", pp, "pp_size", choices)
    if choices.recipe.awq:
        width = checkpoint.head_dim * config["num_attention_heads"] // tp
        for name, size in (
            ("hidden_size", config["hidden_size"]),
            ("the attention's width", width),
            ("intermediate_size", config["intermediate_size"] // tp),
        ):
            _divides(size, f"{name} of a rank", choices.awq_block_size, "awq_block_size", choices)


def _divides(size: int, name: str, by: int, field: str, choices: Choices) -> None:
    if size % by == 0:
        return
    if field == "awq_block_size":
        problem = f"a block of {by} weights does not divide {name} ({size})"
        fits = [block for block in AWQ_BLOCK_SIZES if size % block == 0]
        remedy = (
            f"Set engine.options.quantise.awq_block_size to {fits[0]}."
            if fits
            else f"Set engine.precision to {choices.recipe.instead}, or lower engine.tp_size."
        )
        raise BuildError(problem, remedy=remedy)
    fits = [number for number in range(1, size + 1) if size % number == 0 and number < by]
    raise BuildError(
        f"engine.{field} is {by}, and does not divide the model's {name} ({size})",
        remedy=f"Set engine.{field} to {fits[-1]}.",
    )
