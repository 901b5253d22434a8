# SPDX-License-Identifier: Apache-2.0
"""Inserts quantisers into the model, measures ranges and rounds weights.

Importing this module imports torch and ModelOpt, which takes seconds. The build does it after all
other checks.
"""

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import modelopt.torch.quantization as mtq
import torch

from buildlib.problems import BuildError
from buildlib.program import print_line
from buildlib.reference import THREADS_PAY_OFF_FROM, load_model
from buildlib.request_types import BuilderRequest
from calibration import group_by_length
from choices import QuantiseChoices
from recipes import KV_BITS, KV_LARGEST

_KV_QUANTISERS = ("k_bmm_quantizer", "v_bmm_quantizer")
# Lines of progress while calibrating.
_PROGRESS_LINES = 8


def require_device(request: BuilderRequest) -> None:
    """Raise BuildError for nvfp4 without CUDA."""
    if request.precision == "nvfp4" and not torch.cuda.is_available():
        raise BuildError(
            "nvfp4 needs CUDA, because ModelOpt packs its 4-bit blocks with GPU kernels, and this "
            "machine shows no GPU",
            remedy="Build on a machine with an NVIDIA GPU, or set "
            "engine.precision to int4_awq, which a CPU can make.",
        )


def load_original(request: BuilderRequest, choices: QuantiseChoices) -> Any:
    """Return the checkpoint as a transformers model with weights rounded to choices.dtype.

    Raises:
        BuildError: tensors are missing. transformers would initialise them randomly.
    """
    # ModelOpt warns that TensorRT-LLM is missing. This stage runs without it.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"modelopt\.")
    model = load_model(request, getattr(torch, choices.dtype))
    if model.num_parameters() < THREADS_PAY_OFF_FROM:
        torch.set_num_threads(1)
    # On a CPU half precision is slow (no kernels). On a GPU the engine computes in it.
    model = model.cuda() if torch.cuda.is_available() else model.float()
    return model.eval()


def quantise(model: Any, choices: QuantiseChoices, samples: list[list[int]]) -> Any:
    """Return `model` with quantisers and, if the recipe has any, measured ranges."""
    config = _modelopt_config(choices)
    if config is None:
        return model
    torch.manual_seed(choices.calibration.seed if choices.calibration else 0)
    size = choices.calibration.batch_size if choices.calibration else 1
    grouped = group_by_length(samples, size)

    def measure(quantised_model: Any) -> None:
        interval = max(1, len(grouped) // _PROGRESS_LINES)
        with torch.inference_mode():
            for number, batch in enumerate(grouped, start=1):
                quantised_model(torch.tensor(batch, device=quantised_model.device))
                if number % interval == 0 or number == len(grouped):
                    print_line(f"calibrated {number} of {len(grouped)} batches")

    quantised = mtq.quantize(model, config, forward_loop=measure if grouped else None)
    if choices.kv_cache_dtype:
        _align_kv_cache(quantised, choices)
    return quantised


def _modelopt_config(choices: QuantiseChoices) -> dict[str, Any] | None:
    """Return ModelOpt's configuration, or None if it has nothing to do."""
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
    """Set the size of AWQ blocks. Of w4a8's two quantisers in a row the first has blocks."""
    for entry in config["quant_cfg"]:
        if entry["quantizer_name"] == "*weight_quantizer":
            settings = entry["cfg"]
            first = settings[0] if isinstance(settings, list) else settings
            first["block_sizes"][-1] = size


def _align_kv_cache(model: Any, choices: QuantiseChoices) -> None:
    """Give K and V the ranges that the runtime will use, so that the evaluation matches it.

    An engine uses the larger scale for both (TensorRT-LLM 1.2, models/modeling_utils.py,
    process_kv_scaling_factor), and ModelOpt exports no FP8 scale below 1 for it.
    """
    if choices.world != "engine" or choices.kv_cache_dtype is None:
        return
    min_range = KV_LARGEST["fp8"] if choices.kv_cache_dtype == "fp8" else 0.0
    for module in model.modules():
        quantisers = [getattr(module, name) for name in _KV_QUANTISERS if hasattr(module, name)]
        if quantisers:
            largest = max(min_range, *(float(quantiser.amax) for quantiser in quantisers))
            for quantiser in quantisers:
                quantiser.amax = torch.full_like(quantiser.amax, largest)


@contextmanager
def with_built_weights(model: Any, choices: QuantiseChoices) -> Iterator[Any]:
    """Yield `model` with the weights that trtllm-build will make, then restore it."""
    if choices.world not in choices.recipe.at_build:
        yield model
        return
    bits = 4 if choices.recipe.format == "int4" else 8
    original_weights = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            original_weights.append((module, module.weight.data))
            module.weight.data = round_weight_only(module.weight.data, bits)
    try:
        yield model
    finally:
        for module, weight in original_weights:
            module.weight.data = weight


def round_weight_only(weight: Any, bits: int) -> Any:
    """Round `weight` like TensorRT-LLM's weight-only kernels, with one scale per row.

    Their scale is amax / 2^(bits-1), so that the largest positive weight is clipped to 127 of 128
    (cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp, symmetric_quantize).
    """
    steps = float(2 ** (bits - 1))
    scale = weight.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / steps
    rounded = (weight.float() / scale).round().clamp(-steps, steps - 1)
    return (rounded * scale).to(weight.dtype)


def hardware() -> dict[str, str | None]:
    """Return the GPU that calibrated; None on a CPU."""
    if not torch.cuda.is_available():
        return {"gpu": None, "compute_capability": None}
    major, minor = torch.cuda.get_device_capability()
    return {"gpu": torch.cuda.get_device_name(), "compute_capability": f"{major}.{minor}"}
