# SPDX-License-Identifier: Apache-2.0
"""The model as it will be: quantisers inserted, ranges measured, weights rounded.

Importing this module imports torch and ModelOpt: seconds, and only after every check that needs
neither.
"""

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Read when the libraries below are imported: the network is never needed here.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import modelopt.torch.quantization as mtq
import torch

from buildlib.problems import BuildError
from buildlib.program import say
from buildlib.reference import THREADS_PAY_OFF_FROM, load_model
from buildlib.request import Request
from calibration import batches
from choices import Choices
from recipes import KV_BITS, KV_LARGEST

_KV_QUANTISERS = ("k_bmm_quantizer", "v_bmm_quantizer")
# Lines of progress while calibrating.
_PROGRESS = 8


def require_device(request: Request) -> None:
    """Refuse what this machine cannot quantise.

    Raises:
        BuildError: nvfp4 without CUDA.
    """
    if request.precision == "nvfp4" and not torch.cuda.is_available():
        raise BuildError(
            "nvfp4 needs CUDA: ModelOpt packs its 4-bit blocks with kernels that a CPU does not "
            "have, and this machine shows no GPU",
            remedy="Build on a machine with an NVIDIA GPU, or set "
            "engine.precision to int4_awq, which a CPU can make.",
        )


def load_original(request: Request, choices: Choices) -> Any:
    """Return the checkpoint as a transformers model whose weights are those of choices.dtype.

    Raises:
        BuildError: the weights do not cover the model: transformers would invent the rest.
    """
    # ModelOpt warns of TensorRT-LLM's absence, which is how this stage runs.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"modelopt\.")
    model = load_model(request, getattr(torch, choices.dtype))
    if model.num_parameters() < THREADS_PAY_OFF_FROM:
        torch.set_num_threads(1)
    # Half precision is slow on a CPU (no kernels) and on a GPU it is what the engine computes in.
    model = model.cuda() if torch.cuda.is_available() else model.float()
    return model.eval()


def quantise(model: Any, choices: Choices, samples: list[list[int]]) -> Any:
    """Return `model` with quantisers inserted and, where the recipe has any, ranges measured."""
    config = _config(choices)
    if config is None:
        return model
    torch.manual_seed(choices.calibration.seed if choices.calibration else 0)
    size = choices.calibration.batch_size if choices.calibration else 1
    grouped = batches(samples, size)

    def measure(measured: Any) -> None:
        every = max(1, len(grouped) // _PROGRESS)
        with torch.inference_mode():
            for number, batch in enumerate(grouped, start=1):
                measured(torch.tensor(batch, device=measured.device))
                if number % every == 0 or number == len(grouped):
                    say(f"calibrated {number} of {len(grouped)} batches")

    quantised = mtq.quantize(model, config, forward_loop=measure if grouped else None)
    if choices.kv_cache_dtype:
        _align_kv_cache(quantised, choices)
    return quantised


def _config(choices: Choices) -> dict[str, Any] | None:
    """Return ModelOpt's configuration; None when it has nothing to do."""
    recipe = choices.recipe
    preset = None if choices.world in recipe.at_build else recipe.preset
    if preset is None and choices.kv_cache_dtype is None:
        return None
    nothing = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": "max"}
    config: dict[str, Any] = copy.deepcopy(getattr(mtq, preset)) if preset else nothing
    if recipe.awq:
        _set_block_size(config, choices.awq_block_size)
    if choices.smoothquant_alpha is not None:
        config["algorithm"] = {"method": "smoothquant", "alpha": choices.smoothquant_alpha}
    if choices.kv_cache_dtype:
        numbers = {"num_bits": KV_BITS[choices.kv_cache_dtype], "axis": None}
        config["quant_cfg"].append({"quantizer_name": "*[kv]_bmm_quantizer", "cfg": numbers})
    return config


def _set_block_size(config: dict[str, Any], size: int) -> None:
    """Set the weights in one AWQ block; w4a8 has two quantisers in a row, the first has blocks."""
    for entry in config["quant_cfg"]:
        if entry["quantizer_name"] == "*weight_quantizer":
            settings = entry["cfg"]
            first = settings[0] if isinstance(settings, list) else settings
            first["block_sizes"][-1] = size


def _align_kv_cache(model: Any, choices: Choices) -> None:
    """Give K and V the ranges that the runtime will use, so that what is evaluated is that.

    An engine has one scale for both, the larger (TensorRT-LLM 1.2, models/modeling_utils.py,
    process_kv_scaling_factor), and ModelOpt exports no FP8 scale below 1 for it.
    """
    if choices.world != "engine" or choices.kv_cache_dtype is None:
        return
    least = KV_LARGEST["fp8"] if choices.kv_cache_dtype == "fp8" else 0.0
    for module in model.modules():
        quantisers = [getattr(module, name) for name in _KV_QUANTISERS if hasattr(module, name)]
        if quantisers:
            largest = max(least, *(float(quantiser.amax) for quantiser in quantisers))
            for quantiser in quantisers:
                quantiser.amax = torch.full_like(quantiser.amax, largest)


@contextmanager
def as_built(model: Any, choices: Choices) -> Iterator[Any]:
    """Lend `model` with the weights that trtllm-build will make of those it is given."""
    if choices.world not in choices.recipe.at_build:
        yield model
        return
    bits = 4 if choices.recipe.format == "int4" else 8
    kept = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            kept.append((module, module.weight.data))
            module.weight.data = round_weight_only(module.weight.data, bits)
    try:
        yield model
    finally:
        for module, weight in kept:
            module.weight.data = weight


def round_weight_only(weight: Any, bits: int) -> Any:
    """Return `weight` as TensorRT-LLM's weight-only kernels see it, one scale for each row.

    Their scale is amax / 2^(bits-1), so that the largest positive weight is clipped to 127 of 128
    (cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp, symmetric_quantize).
    """
    steps = float(2 ** (bits - 1))
    scale = weight.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / steps
    rounded = (weight.float() / scale).round().clamp(-steps, steps - 1)
    return (rounded * scale).to(weight.dtype)


def hardware() -> dict[str, str | None]:
    """Return the GPU that calibrated, if one did."""
    if not torch.cuda.is_available():
        return {"gpu": None, "compute_capability": None}
    major, minor = torch.cuda.get_device_capability()
    return {"gpu": torch.cuda.get_device_name(), "compute_capability": f"{major}.{minor}"}
