# SPDX-License-Identifier: Apache-2.0
"""The quantisation settings of a checkpoint that is already quantised.

Sources: `quantization_config` in the config.json of a Hugging Face folder (transformers,
`utils/quantization_config.py`), `hf_quant_config.json` next to it (NVIDIA ModelOpt's unified
checkpoints), and `quantization` in the config.json of a TensorRT-LLM checkpoint (TensorRT-LLM 1.x,
docs/source/legacy/architecture/checkpoint.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import json_object
from tritonctl.engines.estimates.decoders import WeightBytes
from tritonctl.project.compatibility.table import table

MODELOPT = "modelopt"
TENSORRT_LLM = "tensorrt_llm"
_UNIFIED = "hf_quant_config.json"
_MIXED = "quant_cfg.json"
_KV_SCHEMES = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4"}
# These quantise a float checkpoint only when an engine is compiled.
_ROUNDED_AT_BUILD = {"W8A16", "W4A16"}


@dataclass(frozen=True)
class Quantisation:
    """The quantisation of a checkpoint's weights, in the checkpoint's terms."""

    method: str
    record: Mapping[str, Any]  # the JSON object with the settings
    layers: Mapping[str, str] = field(default_factory=dict)  # algorithms of deviating modules
    kv_cache_dtype: str | None = None  # that the KV cache was calibrated for
    split: tuple[int, int] | None = None  # tp_size and pp_size of a split checkpoint
    parallel_embedding: bool = False

    @property
    def label(self) -> str:
        """Method and algorithm for messages: `awq, 4 bits`, `modelopt, W4A16_AWQ`."""
        bits = next((self.record[k] for k in ("bits", "w_bit") if k in self.record), None)
        details = [self.record.get("quant_algo"), f"{bits} bits" if bits else None]
        if self.method == "bitsandbytes":
            details.append("4 bits" if self.record.get("load_in_4bit") else "8 bits")
        return ", ".join([self.method, *(str(detail) for detail in details if detail)])

    def algorithm_of(self, module: str) -> str:
        """Return the algorithm of one module (ModelOpt, TensorRT-LLM)."""
        return str(self.layers.get(module) or self.record.get("quant_algo"))


def read_quantisation(folder: Path) -> Quantisation | None:
    """Read the quantisation of a checkpoint folder; None: not quantised.

    Raises ConfigurationError.
    """
    config = json_object(folder / "config.json")
    if (folder / "rank0.safetensors").is_file():
        return _tensorrt_llm(folder, config)
    nested = config.get("text_config")
    record = config.get("quantization_config")
    if record is None and isinstance(nested, dict):
        record = nested.get("quantization_config")
    record = record if isinstance(record, dict) or record is None else {}
    if (folder / _UNIFIED).is_file():
        unified = _object(json_object(folder / _UNIFIED), "quantization")
        unified |= {"ignore": (record or {}).get("ignore")}
        kv = _kv_cache_dtype(unified)
        return Quantisation(MODELOPT, unified, _layers(unified), kv_cache_dtype=kv)
    if record is None:
        return None
    method = str(record.get("quant_method") or _infer_method(record)).lower()
    scheme = _object(record, "kv_cache_scheme")
    kv = _KV_SCHEMES.get((str(scheme.get("type")), scheme.get("num_bits") or 0))
    return Quantisation(method, record, kv_cache_dtype=kv)


def _tensorrt_llm(folder: Path, config: Mapping[str, Any]) -> Quantisation:
    record = _object(config, "quantization")
    mapping = _object(config, "mapping")
    mixed = json_object(folder / _MIXED) if (folder / _MIXED).is_file() else {}
    return Quantisation(
        TENSORRT_LLM,
        record,
        _layers(mixed),
        kv_cache_dtype=_kv_cache_dtype(record),
        split=(_size(mapping, "tp_size"), _size(mapping, "pp_size")),
        parallel_embedding=bool(config.get("use_parallel_embedding")),
    )


def _kv_cache_dtype(record: Mapping[str, Any]) -> str | None:
    algorithm = record.get("kv_cache_quant_algo")
    dtypes = table().kv_cache_dtypes.items()
    return next((name for name, dtype in dtypes if dtype.quant_algo == algorithm), None)


def _object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _size(mapping: Mapping[str, Any], key: str) -> int:
    value = mapping.get(key)
    return value if isinstance(value, int) and value > 0 else 1


def _layers(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(layer.get("quant_algo"))
        for name, layer in _object(record, "quantized_layers").items()
        if isinstance(layer, dict)
    }


def _infer_method(record: Mapping[str, Any]) -> str:
    """Infer the method where `quant_method` is missing: early bitsandbytes and ModelOpt."""
    if "load_in_4bit" in record or "load_in_8bit" in record:
        return "bitsandbytes"
    return MODELOPT if "quant_algo" in record else "a method without a name"


def describe(quantisation: Quantisation, weights: WeightBytes) -> list[str]:
    """Return notes for the plan about the quantisation and its weights."""
    label = quantisation.label
    first = (
        f"the checkpoint is already quantised ({label}): its weights count as stored, "
        "`engine.precision` does not change them; `tritonctl build` needs the original checkpoint"
    )
    notes = [first]
    if weights.parameters is None:
        notes.append(
            f"the packing of {label} is unknown: bytes are exact, the number of weights is not"
        )
    if quantisation.method == TENSORRT_LLM and quantisation.algorithm_of("") in _ROUNDED_AT_BUILD:
        notes.append("trtllm-build quantises its 16-bit weights: the engine is smaller")
    return notes
