# SPDX-License-Identifier: Apache-2.0
"""Restores quantised weights as numbers, with the tolerance of each format.

`ExportedLayer` has the same names for both checkpoint formats.
"""

from dataclasses import dataclass
from typing import Any

import torch

from buildlib.problems import BuildError
from recipes import WeightFormat

# E4M3 has three bits of mantissa: the nearest number is within 1/16. Below the smallest normal
# number (2^-6) numbers are 2^-9 apart.
_FP8_RELATIVE, _FP8_SMALLEST = 2.0**-4, 2.0**-10
_NVFP4_BLOCK = 16
# E2M1 values by their code without the sign.
_NVFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BAD_EXPORT = (
    "The export is wrong, so the build stopped: please report it with build.log. Another "
    "engine.precision may work."
)


@dataclass(frozen=True)
class ExportedLayer:
    """The exported tensors of one linear layer. A missing tensor is None."""

    name: str
    weight: Any
    scale: Any = None
    scale_2: Any = None
    input_scale: Any = None
    pre_quant_scale: Any = None
    bias: Any = None


def export_error(name: str, problem: str) -> BuildError:
    """Return the BuildError for an export with a wrong tensor or file `name`."""
    return BuildError(f"checkpoint: {name} {problem}", remedy=_BAD_EXPORT)


def required_scales(precision: str, form: WeightFormat) -> set[str]:
    """Return the scales that a quantised layer must have, as fields of ExportedLayer."""
    fields: set[str] = {
        "plain": set[str](),
        "fp8": {"scale", "input_scale"},
        "int8": {"scale"},
        "int4": {"scale"},
        "nvfp4": {"scale", "scale_2", "input_scale"},
    }[form]
    more = {"int8_sq": {"input_scale"}, "w4a8_awq": {"scale_2", "input_scale"}}
    return fields if form == "plain" else fields | more.get(precision, set())


def restore_weights(
    layer: ExportedLayer, form: WeightFormat, shape: tuple[int, ...], dtype: Any
) -> tuple[Any, Any]:
    """Return the layer's weights as numbers, and the format's tolerance for each.

    `dtype`: the type of tensors that are not quantised.

    Raises:
        BuildError: a type or a shape does not match the format.
    """
    if form == "fp8":
        check_tensor(layer.name, layer.weight, shape, torch.float8_e4m3fn)
        scale = layer.scale.float()
        numbers = layer.weight.float() * scale
        return numbers, numbers.abs() * _FP8_RELATIVE + scale * _FP8_SMALLEST
    if form == "int8":
        check_tensor(layer.name, layer.weight, shape, torch.int8)
        check_tensor(f"{layer.name} (scale)", layer.scale, shape[:1])
        step = layer.scale.float()[:, None]
        return layer.weight.float() * step, (step / 2).expand(shape)
    if form == "int4":
        return _restore_int4(layer, shape)
    if form == "nvfp4":
        return _restore_nvfp4(layer, shape)
    check_tensor(layer.name, layer.weight, shape, dtype)
    return layer.weight.float(), torch.zeros(shape)


def _restore_int4(layer: ExportedLayer, shape: tuple[int, ...]) -> tuple[Any, Any]:
    # Two rows share a byte; the even row is in the low half (ModelOpt, pack_int4_in_uint8).
    packed = layer.weight.view(torch.uint8)
    check_tensor(layer.name, packed, (shape[0] // 2, shape[1]))
    rows = torch.stack((packed & 0x0F, packed >> 4), dim=1).reshape(shape).to(torch.int8)
    signed = torch.where(rows > 7, rows - 16, rows).float()  # noqa: PLR2004 - int4 ends at 7
    if layer.scale.dim() != 2 or shape[1] % layer.scale.shape[1]:  # noqa: PLR2004 - a matrix
        raise export_error(layer.name, f"has scales of shape {tuple(layer.scale.shape)}")
    check_tensor(f"{layer.name} (scale)", layer.scale, (shape[0], layer.scale.shape[1]))
    step = layer.scale.float().repeat_interleave(shape[1] // layer.scale.shape[1], dim=1)
    return signed * step, step / 2


def _restore_nvfp4(layer: ExportedLayer, shape: tuple[int, ...]) -> tuple[Any, Any]:
    check_tensor(layer.name, layer.weight, (shape[0], shape[1] // 2), torch.uint8)
    check_tensor(f"{layer.name} (scale)", layer.scale, (shape[0], shape[1] // _NVFP4_BLOCK))
    codes = torch.stack((layer.weight & 0x0F, layer.weight >> 4), dim=-1).reshape(shape).long()
    values = torch.tensor(_NVFP4_VALUES)[codes & 7] * torch.where(codes > 7, -1.0, 1.0)  # noqa: PLR2004
    step = layer.scale.float() * layer.scale_2.float()
    step = step.repeat_interleave(_NVFP4_BLOCK, dim=1)
    # The widest gap is from 4 to 6. The block's scale is rounded to E4M3, and 6 is the maximum.
    return values * step, step + values.abs() * step * _FP8_RELATIVE


def check_tensor(name: str, tensor: Any, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Raise BuildError if a tensor has another shape or type."""
    if tuple(tensor.shape) != tuple(shape):
        raise export_error(name, f"has the shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if dtype is not None and tensor.dtype != dtype:
        raise export_error(name, f"is stored as {tensor.dtype}, expected {dtype}")
