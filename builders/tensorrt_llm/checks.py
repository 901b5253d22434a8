# SPDX-License-Identifier: Apache-2.0
"""Compares the exported checkpoint with the original one, tensor by tensor.

The next tool accepts whatever ModelOpt exports. A scale that is not finite, a shard in the wrong
order or a missing scale would give an engine that answers nonsense.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from choices import QuantiseChoices
from formats import ExportedLayer, check_tensor, export_error, required_scales, restore_weights
from layouts import (
    ExportedModule,
    OriginalWeights,
    WeightFiles,
    engine_modules,
    pytorch_modules,
    weight_files,
)
from recipes import WeightFormat

_KV_ENGINE = (".k_cache_scaling_factor", ".v_cache_scaling_factor", ".kv_cache_scaling_factor")
_KV_PYTORCH = (".k_scale", ".v_scale")
# The smallest numbers of fp16 are 6e-8 apart.
_SUBNORMAL = 1e-7


def verify_export(
    folder: Path, source: Path, precision: str, choices: QuantiseChoices
) -> tuple[int, float]:
    """Check the checkpoint in `folder` against the one in `source`.

    Returns:
        The number of tensors, and the largest error as a share of the format's tolerance.

    Raises:
        BuildError: the export is wrong.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    original = OriginalWeights(source, choices)
    checker = _Checker(precision, choices)
    if choices.world == "engine":
        _check_engine_config(folder / "config.json", choices)
        for rank in range(choices.tp_size * choices.pp_size):
            weights = WeightFiles([folder / f"rank{rank}.safetensors"])
            checker.check(weights, engine_modules(original, config, choices, rank))
    else:
        _check_pytorch_config(folder, choices)
        weights = WeightFiles(weight_files(folder))
        checker.check(weights, pytorch_modules(original, config))
    return checker.tensors, checker.worst


def _check_engine_config(path: Path, choices: QuantiseChoices) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    world_size = choices.tp_size * choices.pp_size
    expected = {
        "mapping": {"world_size": world_size, "tp_size": choices.tp_size}
        | {"pp_size": choices.pp_size},
        "dtype": choices.dtype,
    }
    for key, value in expected.items():
        if config.get(key) != value:
            raise export_error("config.json", f"has {key} {config.get(key)!r}, expected {value!r}")
    _check_algorithms(path.name, config["quantization"], choices)


def _check_pytorch_config(folder: Path, choices: QuantiseChoices) -> None:
    path = folder / "hf_quant_config.json"
    if choices.recipe.quant_algo is None and choices.kv_cache_dtype is None:
        if path.exists():
            raise export_error(path.name, "is there, and nothing is quantised")
        return
    if not path.is_file():
        raise export_error(path.name, "is missing")
    config = json.loads(path.read_text(encoding="utf-8"))
    _check_algorithms(path.name, config["quantization"], choices)


def _check_algorithms(name: str, quantisation: dict[str, Any], choices: QuantiseChoices) -> None:
    kv_cache = choices.kv_cache_dtype.upper() if choices.kv_cache_dtype else None
    expected = {
        "quant_algo": choices.recipe.quant_algo,
        "kv_cache_quant_algo": kv_cache,
    }
    if choices.recipe.awq:
        expected["group_size"] = choices.awq_block_size  # type: ignore[assignment]
    for key, value in expected.items():
        if quantisation.get(key) != value:
            raise export_error(name, f"has {key} {quantisation.get(key)!r}, expected {value!r}")


class _Checker:
    """Compares exported files with the original and keeps the largest error."""

    def __init__(self, precision: str, choices: QuantiseChoices) -> None:
        self._precision = precision
        self._choices = choices
        at_build = choices.world in choices.recipe.at_build
        self._format: WeightFormat = "plain" if at_build else choices.recipe.format
        # By norm: its weights divided by the original's.
        self._folds: dict[str, Any] = {}
        # Relative: pre_quant_scale and the smoothed weights are rounded to the export's type.
        self._dtype = getattr(torch, choices.dtype)
        self._slack = 4 * torch.finfo(self._dtype).eps
        self.tensors = 0
        self.worst = 0.0

    def check(self, weights: WeightFiles, parts: Iterable[ExportedModule]) -> None:
        """Check that a set of files has every module, correct, and nothing else."""
        seen: set[str] = set()
        for part in parts:
            layer = weights.layer(part.name, self._choices.world)
            seen |= self._check_part(layer, part, weights)
        seen |= self._check_kv_cache(weights)
        unexpected = sorted(weights.names - seen)
        if unexpected:
            raise export_error(unexpected[0], "is an unexpected tensor")
        self.tensors += len(seen)

    def _check_part(
        self, layer: ExportedLayer, part: ExportedModule, weights: WeightFiles
    ) -> set[str]:
        form = self._format if part.linear else "plain"
        self._check_fields(layer, part, form)
        if form == "plain" and self._is_folded_norm(part):
            # Compared together with the layers after it: their product equals the original's.
            check_tensor(part.name, layer.weight, tuple(part.weight.shape), self._dtype)
            _check_finite(part.name, layer.weight, positive=False)
            self._folds[part.name] = _ratio(layer.weight.float(), part.weight)
        else:
            self._compare(layer, part, form)
        tensor_names = {name for name in weights.names if name.rpartition(".")[0] == part.name}
        return {name for name in tensor_names if not name.endswith(_KV_PYTORCH)}

    def _check_fields(self, layer: ExportedLayer, part: ExportedModule, form: WeightFormat) -> None:
        available = {
            field.name for field in fields(ExportedLayer) if getattr(layer, field.name) is not None
        }
        expected = {"name", "weight"} | required_scales(self._precision, form)
        if part.bias is not None:
            expected.add("bias")
        if part.name.startswith("transformer.") and form != "plain" and self._has_input_scales:
            expected.add("pre_quant_scale")
        optional = {"pre_quant_scale"} if form != "plain" and self._has_input_scales else set()
        if expected - available or available - expected - optional:
            actual, required = (sorted(names - {"name"}) for names in (available, expected))
            raise export_error(part.name, f"has {actual}, expected {required}")
        if layer.pre_quant_scale is not None:
            check_tensor(part.name, layer.pre_quant_scale, part.weight.shape[1:], self._dtype)
        for name in available - {"name", "weight"}:
            _check_finite(f"{part.name} ({name})", getattr(layer, name), positive=name != "bias")

    @property
    def _has_input_scales(self) -> bool:
        """Whether each input of a layer is multiplied by a scale."""
        return self._choices.recipe.awq or self._choices.recipe.smoothquant

    def _is_folded_norm(self, part: ExportedModule) -> bool:
        """Whether the module is a norm that takes over the scales of the layers after it."""
        inside = part.name.startswith("model.layers.")
        return (
            self._choices.world == "pytorch"
            and self._has_input_scales
            and inside
            and not part.linear
        )

    def _compare(self, layer: ExportedLayer, part: ExportedModule, form: WeightFormat) -> None:
        numbers, error = restore_weights(layer, form, tuple(part.weight.shape), self._dtype)
        smoothed = self._input_factors(layer, part)
        slack = part.weight.abs() * self._slack + _SUBNORMAL
        distance = (numbers * smoothed - part.weight).abs()
        share = float((distance / (error * smoothed + slack)).max())
        if not share <= 1.0:  # NaN is not, either
            raise export_error(
                part.name,
                f"is not the original's weight in {form}: off by {float(distance.max()):.3g}, "
                f"{share:.3g} times the format's tolerance",
            )
        if form != "plain":
            self.worst = max(self.worst, share)
        if layer.bias is not None and not torch.allclose(layer.bias.float(), part.bias):
            raise export_error(f"{part.name}.bias", "is not the original's")

    def _input_factors(self, layer: ExportedLayer, part: ExportedModule) -> Any:
        """Return the factors of the layer's inputs."""
        if layer.pre_quant_scale is not None:
            return layer.pre_quant_scale.float()
        return self._folds.get(part.folded_norm or "", torch.ones(1))

    def _check_kv_cache(self, weights: WeightFiles) -> set[str]:
        engine = self._choices.world == "engine"
        suffixes = _KV_ENGINE if engine else _KV_PYTORCH
        after = ".input_layernorm.weight"
        layers = len([name for name in weights.names if name.endswith(after)])
        expected = layers * len(suffixes) if self._choices.kv_cache_dtype else 0
        names = {name for name in weights.names if name.endswith(suffixes)}
        if len(names) != expected:
            raise export_error("the KV cache", f"has {len(names)} scales, expected {expected}")
        for name in names:
            _check_finite(name, weights.get(name), positive=True)
        return names


def _ratio(numbers: Any, original: Any) -> Any:
    return torch.where(original == 0, torch.ones(()), numbers / original)


def _check_finite(name: str, tensor: Any, *, positive: bool) -> None:
    numbers = tensor.float()
    if not bool(torch.isfinite(numbers).all()):
        raise export_error(name, "has numbers that are not finite")
    if positive and not bool((numbers > 0).all()):
        raise export_error(name, "has scales that are not positive")
