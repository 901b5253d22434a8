# SPDX-License-Identifier: Apache-2.0
"""Counts the weights in the tensors of a quantised checkpoint, from their headers.

The formats, with where they are defined:

- AWQ (AutoAWQ, `awq/modules/linear/gemm.py`): `qweight` I32 [in, out * bits / 32], `qzeros` I32
  [in / group, out * bits / 32], `scales` F16 [in / group, out].
- GPTQ (AutoGPTQ, `qlinear_cuda.py`; GPTQModel): `qweight` I32 [in * bits / 32, out], `qzeros` I32
  [in / group, out * bits / 32], `scales` F16 [in / group, out], `g_idx` I32 [in]; 2, 3, 4 and 8
  bits. auto-round writes the same.
- FP8 (transformers, `integrations/finegrained_fp8.py`): `weight` F8_E4M3 and `weight_scale_inv`
  F32 per block; fbgemm_fp8: `weight_scale` per row.
- compressed-tensors (`compressors/`): pack-quantized `weight_packed` I32 [out, in * bits / 32] with
  `weight_scale`, `weight_shape` and perhaps `weight_zero_point`, `weight_g_idx`; nvfp4 and mxfp4
  `weight_packed` U8 [out, in / 2]; int and float-quantized `weight` in 8 bits.
- bitsandbytes (`nn/modules.py`): 4 bits `weight` [out * in / 2, 1] U8 (or another storage type of
  as many bytes) with `weight.absmax`, `weight.quant_map`, `weight.quant_state.bitsandbytes__nf4`;
  8 bits `weight` I8 with `SCB`.
- ModelOpt (`torch/export/quant_utils.py`): NVFP4 `weight` U8 [out, in / 2], INT4 `weight` U8
  [out / 2, in], 8 bits F8_E4M3 or I8; `weight_scale`, `weight_scale_2`, `input_scale`,
  `pre_quant_scale`. TensorRT-LLM checkpoints: the same with other names, INT4 as I8.
- MXFP4 (transformers, `integrations/mxfp4.py`): `*_blocks` U8 and `*_scales` U8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritonctl.engines.estimates.checkpoints import Tensor
from tritonctl.engines.estimates.decoders import Weights
from tritonctl.engines.estimates.quantisation import MODELOPT, TENSORRT_LLM, Quantisation

_WIDTHS = {"I8": 8, "U8": 8, "I16": 16, "I32": 32, "I64": 64, "F16": 16, "BF16": 16, "F32": 32}
_INTEGERS = {"I8", "U8", "I16", "I32", "I64", "BOOL"}
_FOUR_BITS = 4
_MATRIX = 2
_BY_QWEIGHT = {"awq", "gptq", "auto-round"}
_MODELOPT = {MODELOPT, "modelopt_fp4", "modelopt_mixed", TENSORRT_LLM}
_KNOWN = _BY_QWEIGHT | _MODELOPT
_KNOWN |= {"fp8", "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "mxfp4"}
# What stands beside the weights; alone or behind the name of a fused layer's part.
_BESIDE = (
    *("scales", "qzeros", "g_idx", "SCB", "weight_format", "weight_shape", "zero_point"),
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale", "output_scale"),
    *("pre_quant_scale", "k_scale", "v_scale", "q_scale", "kv_scale", "global_scale"),
    *("absmax", "quant_map", "bitsandbytes__nf4", "bitsandbytes__fp4", "scaling_factor"),
    *("scaling_factor_2", "scaling_factor_interleaved", "activation_scale"),
)
_BUFFERS = ("bias", "position_ids")
_ROW_PARALLEL = (".dense.bias", ".proj.bias")


def stored_weights(ranks: Sequence[Sequence[Tensor]], quantisation: Quantisation) -> Weights:
    """The weights as they lie in the files of each rank (one, if nothing is divided).

    The parameters are None where the format is not known. Of a divided checkpoint they are counted
    once; padding of the vocabulary, and heads of keys and values that ranks share, as stored.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0)
    counts: list[int | None] = []
    for rank, tensors in enumerate(ranks):
        named = {tensor.name: tensor for tensor in tensors}
        for tensor in tensors:
            bytes_of[_kind(tensor)] += tensor.stored
            if not _repeated(tensor, rank, quantisation):
                counts.append(_parameters(tensor, named, quantisation))
    known = [count for count in counts if count is not None]
    fullest = max(sum(tensor.stored for tensor in tensors) for tensors in ranks)
    return Weights(
        sum(known) if len(known) == len(counts) else None,
        **bytes_of,
        fullest=fullest if quantisation.split else None,
    )


def _kind(tensor: Tensor) -> str:
    """Scales are divided among devices as what they belong to is."""
    packed = _is_beside(tensor) or (tensor.dtype in _INTEGERS and len(tensor.shape) >= _MATRIX)
    return replace(tensor, role="linear").kind if packed and tensor.kind == "other" else tensor.kind


def _is_beside(tensor: Tensor) -> bool:
    leaf = tensor.name.rpartition(".")[2]
    return any(leaf == name or leaf.endswith(f"_{name}") for name in _BESIDE)


def _repeated(tensor: Tensor, rank: int, quantisation: Quantisation) -> bool:
    """Whether another rank of the same layers has the same numbers."""
    tp_size = (quantisation.split or (1, 1))[0]
    if rank % tp_size == 0:
        return False
    if tensor.kind == "embedding":
        return not quantisation.parallel_embedding
    if tensor.name.endswith(".bias"):
        return tensor.name.endswith(_ROW_PARALLEL)
    return tensor.kind == "other"


def _parameters(
    tensor: Tensor, named: Mapping[str, Tensor], quantisation: Quantisation
) -> int | None:
    """Weights in a tensor; None: unknown."""
    if quantisation.method not in _KNOWN or _is_sparse(quantisation.record):
        return None
    if _is_beside(tensor):
        return 0
    bits = _bits(tensor, named, quantisation)
    if bits is not None:
        return round(tensor.elements * _WIDTHS[tensor.dtype] / bits)
    if tensor.dtype not in _INTEGERS:
        return tensor.elements
    if len(tensor.shape) < _MATRIX or tensor.name.endswith(_BUFFERS):
        return 0
    algorithm_is_8_bits = quantisation.method in {*_MODELOPT, "bitsandbytes", "compressed-tensors"}
    return tensor.elements if tensor.dtype == "I8" and algorithm_is_8_bits else None


def _is_sparse(record: Mapping[str, Any]) -> bool:
    sparsity = record.get("sparsity_config")
    form = sparsity.get("format") if isinstance(sparsity, dict) else None
    return form not in (None, "dense") or record.get("format") == "marlin-24"


def _bits(tensor: Tensor, named: Mapping[str, Tensor], quantisation: Quantisation) -> float | None:
    """Bits of one weight in a tensor that packs several into an element."""
    module, _, leaf = tensor.name.rpartition(".")
    method, dtype = quantisation.method, tensor.dtype
    if method in _BY_QWEIGHT:
        return _of_qweight(module, named, quantisation.record) if leaf == "qweight" else None
    if method == "compressed-tensors" and leaf == "weight_packed":
        return _FOUR_BITS if dtype == "U8" else _of_group(module, quantisation.record)
    if method == "bitsandbytes":
        states = (f"{tensor.name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
        return _FOUR_BITS if any(state in named for state in states) else None
    if method == "mxfp4":
        return _FOUR_BITS if leaf.endswith("_blocks") else None
    if method in _MODELOPT and len(tensor.shape) >= _MATRIX:
        # INT8 is stored as I8 by both; INT4 as U8 by one, as I8 by the other.
        four = "W4" in quantisation.algorithm(module) or "FP4" in quantisation.algorithm(module)
        return _FOUR_BITS if dtype == "U8" or (dtype == "I8" and four) else None
    return None


def _of_qweight(
    module: str, named: Mapping[str, Tensor], record: Mapping[str, Any]
) -> float | None:
    """Layers may differ, and zero points are packed as the weights are, one for each scale."""
    zeros, scales = named.get(f"{module}.qzeros"), named.get(f"{module}.scales")
    if zeros and scales and zeros.dtype in _INTEGERS and scales.elements:
        return _WIDTHS[zeros.dtype] * zeros.elements / scales.elements
    return _whole(record.get("bits", record.get("w_bit")))


def _of_group(module: str, record: Mapping[str, Any]) -> float | None:
    """`num_bits` of the group whose targets name the module, else of those that name a class."""
    groups = record.get("config_groups")
    groups = [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    named = [group for group in groups if any(_names(t, module) for t in _targets(group))]
    classes = [group for group in groups if any(t.isidentifier() for t in _targets(group))]
    weights = [group.get("weights") for group in named or classes]
    bits = {_whole(entry.get("num_bits")) for entry in weights if isinstance(entry, dict)}
    return bits.pop() if len(bits) == 1 else None


def _targets(group: Mapping[str, Any]) -> list[str]:
    targets = group.get("targets")
    return [str(target) for target in targets] if isinstance(targets, list) else []


def _names(target: str, module: str) -> bool:
    """Whether a target is a module's name, or a pattern behind `re:` that the name begins with."""
    if not target.startswith("re:"):
        return target == module
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error:
        return False


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
