# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints that are headers only, as each format's writer lays its tensors out.

Written from the definitions that packed_weights.py names, and, for compressed-tensors 0.20 and
bitsandbytes 0.50, from what those libraries really wrote of a Llama.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import headers

BITS = {"F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "I64": 64, "I32": 32, "I8": 8, "U8": 8}

# Leaves of a linear layer with so many outputs and inputs: type and shape.
Leaves = dict[str, tuple[str, tuple[int, ...]]]
Layout = Callable[[int, int], Leaves]


def awq(out: int, into: int) -> Leaves:
    """4 bits, groups of 128."""
    return {
        "qweight": ("I32", (into, out // 8)),
        "qzeros": ("I32", (into // 128, out // 8)),
        "scales": ("F16", (into // 128, out)),
    }


def gptq(bits: int) -> Layout:
    """Groups of 128, of as many bits."""

    def leaves(out: int, into: int) -> Leaves:
        return {
            "qweight": ("I32", (into * bits // 32, out)),
            "qzeros": ("I32", (into // 128, out * bits // 32)),
            "scales": ("F16", (into // 128, out)),
            "g_idx": ("I32", (into,)),
        }

    return leaves


def block_fp8(out: int, into: int) -> Leaves:
    """A scale for each block of 128 x 128."""
    blocks = (math.ceil(out / 128), math.ceil(into / 128))
    return {"weight": ("F8_E4M3", (out, into)), "weight_scale_inv": ("F32", blocks)}


def packed(bits: int) -> Layout:
    """compressed-tensors, asymmetric, groups of 128."""

    def leaves(out: int, into: int) -> Leaves:
        return {
            "weight_packed": ("I32", (out, into * bits // 32)),
            "weight_scale": ("BF16", (out, into // 128)),
            "weight_zero_point": ("I32", (out * bits // 32, into // 128)),
            "weight_shape": ("I64", (2,)),
        }

    return leaves


def packed_nvfp4(out: int, into: int) -> Leaves:
    """compressed-tensors."""
    return {
        "weight_packed": ("U8", (out, into // 2)),
        "weight_scale": ("F8_E4M3", (out, into // 16)),
        "weight_global_scale": ("F32", (1,)),
        "input_global_scale": ("F32", (1,)),
    }


def int8(out: int, into: int) -> Leaves:
    """compressed-tensors, W8A8."""
    return {"weight": ("I8", (out, into)), "weight_scale": ("BF16", (out, 1))}


def nf4(out: int, into: int) -> Leaves:
    """bitsandbytes, its scales quantised as well."""
    return {
        "weight": ("U8", (out * into // 2, 1)),
        "weight.absmax": ("U8", (out * into // 64,)),
        "weight.nested_absmax": ("F32", (math.ceil(out * into / 64 / 256),)),
        "weight.nested_quant_map": ("F32", (256,)),
        "weight.quant_map": ("F32", (16,)),
        "weight.quant_state.bitsandbytes__nf4": ("U8", (169,)),
    }


def nf4_in_bf16(out: int, into: int) -> Leaves:
    """The same where `bnb_4bit_quant_storage` is bfloat16."""
    return nf4(out, into) | {"weight": ("BF16", (out * into // 4, 1))}


def llm_int8(out: int, into: int) -> Leaves:
    """bitsandbytes."""
    return {
        "weight": ("I8", (out, into)),
        "SCB": ("F32", (out,)),
        "weight_format": ("U8", ()),
    }


def modelopt_fp8(out: int, into: int) -> Leaves:
    """ModelOpt."""
    return {
        "weight": ("F8_E4M3", (out, into)),
        "weight_scale": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def modelopt_nvfp4(out: int, into: int) -> Leaves:
    """ModelOpt."""
    return {
        "weight": ("U8", (out, into // 2)),
        "weight_scale": ("F8_E4M3", (out, into // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def modelopt_awq(out: int, into: int) -> Leaves:
    """ModelOpt."""
    return {
        "weight": ("U8", (out // 2, into)),
        "weight_scale": ("F32", (out, into // 128)),
        "pre_quant_scale": ("F16", (into,)),
    }


def hqq(out: int, into: int) -> Leaves:
    """A format that plan does not know."""
    return {"W_q": ("U8", (out * into // 2, 1)), "meta": ("F16", (out, into // 64))}


def write(
    folder: Path,
    layout: Layout,
    quantisation: Mapping[str, Any] | None,
    config: Mapping[str, Any] = headers.LLAMA_3_8B,
) -> int:
    """A Llama with its linear layers so laid out; the bytes of its tensors are returned."""
    folder.mkdir(parents=True)
    record = {} if quantisation is None else {"quantization_config": dict(quantisation)}
    (folder / "config.json").write_text(json.dumps(dict(config) | record), encoding="utf-8")
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in headers.llama_shapes(config).items():
        module = name.removesuffix(".weight")
        if module.endswith("_proj"):
            leaves = layout(*shape)
            tensors |= {f"{module}.{leaf}": entry for leaf, entry in leaves.items()}
        else:
            tensors[name] = ("BF16", shape)
    return write_tensors(folder / "model.safetensors", tensors)


def write_tensors(file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """A safetensors file that ends after its header; the bytes that would follow."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return offset
