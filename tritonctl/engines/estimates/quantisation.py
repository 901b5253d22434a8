# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint whose weights are quantised already says of itself.

Three places: `quantization_config` in the config.json of a Hugging Face folder (transformers,
`utils/quantization_config.py`), `hf_quant_config.json` beside it (NVIDIA ModelOpt's unified
checkpoints), and `quantization` in the config.json of a TensorRT-LLM checkpoint (TensorRT-LLM 1.x,
docs/source/legacy/architecture/checkpoint.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import json_object
from tritonctl.engines.estimates.decoders import Weights

MODELOPT = "modelopt"
TENSORRT_LLM = "tensorrt_llm"
_UNIFIED = "hf_quant_config.json"
_MIXED = "quant_cfg.json"
_KV_ALGORITHMS = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}
_KV_SCHEMES = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4"}
# These rewrite a float checkpoint when an engine is compiled of it, not before.
_ROUNDED_AT_BUILD = {"W8A16", "W4A16"}


@dataclass(frozen=True)
class Quantisation:
    """How the weights of a checkpoint are quantised, in its own words.

    `record` is the object it says so in; `layers` the algorithms of single modules, where they
    differ; `kv_cache_dtype` what the KV cache was calibrated for, None: for nothing;
    `split` tp_size and pp_size of a checkpoint that is divided already.
    """

    method: str
    record: Mapping[str, Any]
    layers: Mapping[str, str] = field(default_factory=dict)
    kv_cache_dtype: str | None = None
    split: tuple[int, int] | None = None
    parallel_embedding: bool = False

    @property
    def label(self) -> str:
        """For a person: `awq, 4 bits`, `modelopt, W4A16_AWQ`."""
        bits = next((self.record[k] for k in ("bits", "w_bit") if k in self.record), None)
        details = [self.record.get("quant_algo"), f"{bits} bits" if bits else None]
        if self.method == "bitsandbytes":
            details.append("4 bits" if self.record.get("load_in_4bit") else "8 bits")
        return ", ".join([self.method, *(str(detail) for detail in details if detail)])

    def algorithm(self, module: str) -> str:
        """Of one module; ModelOpt's and TensorRT-LLM's name for it."""
        return str(self.layers.get(module) or self.record.get("quant_algo"))


def read_quantisation(folder: Path) -> Quantisation | None:
    """Read config.json and what lies beside it; None: nothing is quantised.

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
        kv = _KV_ALGORITHMS.get(str(unified.get("kv_cache_quant_algo")))
        return Quantisation(MODELOPT, unified, _layers(unified), kv_cache_dtype=kv)
    if record is None:
        return None
    method = str(record.get("quant_method") or _unnamed(record)).lower()
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
        kv_cache_dtype=_KV_ALGORITHMS.get(str(record.get("kv_cache_quant_algo"))),
        split=(_size(mapping, "tp_size"), _size(mapping, "pp_size")),
        parallel_embedding=bool(config.get("use_parallel_embedding")),
    )


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


def _unnamed(record: Mapping[str, Any]) -> str:
    """The first writers of bitsandbytes and of ModelOpt left `quant_method` out."""
    if "load_in_4bit" in record or "load_in_8bit" in record:
        return "bitsandbytes"
    return MODELOPT if "quant_algo" in record else "a method without a name"


def described(quantisation: Quantisation, weights: Weights) -> list[str]:
    """What a reader of a plan must know of it and of its weights."""
    label = quantisation.label
    first = (
        f"the checkpoint is quantised already ({label}): its weights are what its files hold, "
        "`engine.precision` does not change them; `tritonctl build` takes the one it was made from"
    )
    notes = [first]
    if weights.parameters is None:
        notes.append(
            f"how {label} packs its weights is not known: the bytes are right, their number is not"
        )
    if quantisation.method == TENSORRT_LLM and quantisation.algorithm("") in _ROUNDED_AT_BUILD:
        notes.append(
            "trtllm-build rounds its weights, which are 16 bits wide: an engine takes less"
        )
    return notes
