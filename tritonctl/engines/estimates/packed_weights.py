# SPDX-License-Identifier: Apache-2.0
"""Counts the weights of a quantised checkpoint from the headers of its tensors.

The formats and their definitions:

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

from tritonctl.engines.estimates.checkpoints import CheckpointTensor
from tritonctl.engines.estimates.decoders import WeightBytes
from tritonctl.engines.estimates.quantisation import MODELOPT, TENSORRT_LLM, Quantisation

_WIDTHS = {"I8": 8, "U8": 8, "I16": 16, "I32": 32, "I64": 64, "F16": 16, "BF16": 16, "F32": 32}
_INTEGERS = {"I8", "U8", "I16", "I32", "I64", "BOOL"}
_FOUR_BITS = 4
_MATRIX = 2
_BY_QWEIGHT = {"awq", "gptq", "auto-round"}
_MODELOPT = {MODELOPT, "modelopt_fp4", "modelopt_mixed", TENSORRT_LLM}
_SUPPORTED_METHODS = _BY_QWEIGHT | _MODELOPT
_SUPPORTED_METHODS |= {"fp8", "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "mxfp4"}
# Tensors that accompany weights; the name may follow the name of a fused layer's part.
_SCALE_NAMES = (
    *("scales", "qzeros", "g_idx", "SCB", "weight_format", "weight_shape", "zero_point"),
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale", "output_scale"),
    *("pre_quant_scale", "k_scale", "v_scale", "q_scale", "kv_scale", "global_scale"),
    *("absmax", "quant_map", "bitsandbytes__nf4", "bitsandbytes__fp4", "scaling_factor"),
    *("scaling_factor_2", "scaling_factor_interleaved", "activation_scale"),
)
_BUFFERS = ("bias", "position_ids")
_ROW_PARALLEL = (".dense.bias", ".proj.bias")


def stored_weights(
    ranks: Sequence[Sequence[CheckpointTensor]], quantisation: Quantisation
) -> WeightBytes:
    """Return the weights in the files of each rank (one, if the checkpoint is not split).

    The parameters are None for an unknown format. Tensors that ranks repeat count once; padding of
    the vocabulary and shared heads of keys and values count as stored.
    """
    bytes_of = dict.fromkeys(("linear", "embedding", "head", "other"), 0)
    counts: list[int | None] = []
    for rank, tensors in enumerate(ranks):
        by_name = {tensor.name: tensor for tensor in tensors}
        for tensor in tensors:
            bytes_of[_kind(tensor)] += tensor.stored_bytes
            if not _is_repeated(tensor, rank, quantisation):
                counts.append(_parameters(tensor, by_name, quantisation))
    known_counts = [count for count in counts if count is not None]
    fullest = max(sum(tensor.stored_bytes for tensor in tensors) for tensors in ranks)
    return WeightBytes(
        sum(known_counts) if len(known_counts) == len(counts) else None,
        **bytes_of,
        fullest_device=fullest if quantisation.split else None,
    )


def _kind(tensor: CheckpointTensor) -> str:
    """Return a tensor's kind; scales have the kind of their weights."""
    packed = _is_scale(tensor) or (tensor.dtype in _INTEGERS and len(tensor.shape) >= _MATRIX)
    return replace(tensor, role="linear").kind if packed and tensor.kind == "other" else tensor.kind


def _is_scale(tensor: CheckpointTensor) -> bool:
    leaf = tensor.name.rpartition(".")[2]
    return any(leaf == name or leaf.endswith(f"_{name}") for name in _SCALE_NAMES)


def _is_repeated(tensor: CheckpointTensor, rank: int, quantisation: Quantisation) -> bool:
    """Whether another rank of the same layers stores the same tensor."""
    tp_size = (quantisation.split or (1, 1))[0]
    if rank % tp_size == 0:
        return False
    if tensor.kind == "embedding":
        return not quantisation.parallel_embedding
    if tensor.name.endswith(".bias"):
        return tensor.name.endswith(_ROW_PARALLEL)
    return tensor.kind == "other"


def _parameters(
    tensor: CheckpointTensor, by_name: Mapping[str, CheckpointTensor], quantisation: Quantisation
) -> int | None:
    """Return the number of weights in a tensor; None: unknown."""
    if quantisation.method not in _SUPPORTED_METHODS or _is_sparse(quantisation.record):
        return None
    if _is_scale(tensor):
        return 0
    bits = _bits(tensor, by_name, quantisation)
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


def _bits(
    tensor: CheckpointTensor, by_name: Mapping[str, CheckpointTensor], quantisation: Quantisation
) -> float | None:
    """Return the bits per weight of a packed tensor; None for other tensors."""
    module, _, leaf = tensor.name.rpartition(".")
    method, dtype = quantisation.method, tensor.dtype
    if method in _BY_QWEIGHT:
        return _qweight_bits(module, by_name, quantisation.record) if leaf == "qweight" else None
    if method == "compressed-tensors" and leaf == "weight_packed":
        return _FOUR_BITS if dtype == "U8" else _group_bits(module, quantisation.record)
    if method == "bitsandbytes":
        states = (f"{tensor.name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
        return _FOUR_BITS if any(state in by_name for state in states) else None
    if method == "mxfp4":
        return _FOUR_BITS if leaf.endswith("_blocks") else None
    if method in _MODELOPT and len(tensor.shape) >= _MATRIX:
        # Both store INT8 as I8; ModelOpt stores INT4 as U8, TensorRT-LLM as I8.
        is_four_bits = "W4" in quantisation.algorithm_of(
            module
        ) or "FP4" in quantisation.algorithm_of(module)
        return _FOUR_BITS if dtype == "U8" or (dtype == "I8" and is_four_bits) else None
    return None


def _qweight_bits(
    module: str, by_name: Mapping[str, CheckpointTensor], record: Mapping[str, Any]
) -> float | None:
    """Derive a layer's bits from its zero points: packed like weights, one per scale."""
    zeros, scales = by_name.get(f"{module}.qzeros"), by_name.get(f"{module}.scales")
    if zeros and scales and zeros.dtype in _INTEGERS and scales.elements:
        return _WIDTHS[zeros.dtype] * zeros.elements / scales.elements
    return _positive_integer(record.get("bits", record.get("w_bit")))


def _group_bits(module: str, record: Mapping[str, Any]) -> float | None:
    """Return `num_bits` of the group that targets the module, else of those that target a class."""
    groups = record.get("config_groups")
    groups = [g for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    module_groups = [
        group for group in groups if any(_matches_module(t, module) for t in _targets(group))
    ]
    class_groups = [group for group in groups if any(t.isidentifier() for t in _targets(group))]
    weights = [group.get("weights") for group in module_groups or class_groups]
    bits = {
        _positive_integer(entry.get("num_bits")) for entry in weights if isinstance(entry, dict)
    }
    return bits.pop() if len(bits) == 1 else None


def _targets(group: Mapping[str, Any]) -> list[str]:
    targets = group.get("targets")
    return [str(target) for target in targets] if isinstance(targets, list) else []


def _matches_module(target: str, module: str) -> bool:
    """Whether a target matches a module: by name, or by a `re:` pattern at the name's start."""
    if not target.startswith("re:"):
        return target == module
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error:
        return False


def _positive_integer(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
