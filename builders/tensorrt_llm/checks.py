# SPDX-License-Identifier: Apache-2.0
"""The export, read again and compared with the original checkpoint, tensor by tensor.

ModelOpt's exporters write what the next tool takes without asking: a scale that is not finite, a
shard in the wrong order or a missing scale is an engine that answers nonsense.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from choices import Choices
from formats import Layer, expect, needed, restored, wrong
from layouts import Original, Part, Weights, engine_parts, pytorch_parts, safetensors_of
from recipes import Format

_KV_ENGINE = (".k_cache_scaling_factor", ".v_cache_scaling_factor", ".kv_cache_scaling_factor")
_KV_PYTORCH = (".k_scale", ".v_scale")
# The smallest numbers of fp16 are 6e-8 apart.
_SUBNORMAL = 1e-7


def verify_export(
    folder: Path, source: Path, precision: str, choices: Choices
) -> tuple[int, float]:
    """Check the checkpoint in `folder` against the one in `source`.

    Returns:
        The number of tensors, and the largest error as a share of what the format allows.

    Raises:
        BuildError: the export is wrong.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    original = Original(source, choices)
    checker = _Checker(precision, choices)
    if choices.world == "engine":
        _check_engine_config(folder / "config.json", choices)
        for rank in range(choices.tp_size * choices.pp_size):
            weights = Weights([folder / f"rank{rank}.safetensors"])
            checker.check(weights, engine_parts(original, config, choices, rank))
    else:
        _check_pytorch_config(folder, choices)
        weights = Weights(safetensors_of(folder))
        checker.check(weights, pytorch_parts(original, config))
    return checker.tensors, checker.worst


def _check_engine_config(path: Path, choices: Choices) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    world_size = choices.tp_size * choices.pp_size
    expected = {
        "mapping": {"world_size": world_size, "tp_size": choices.tp_size}
        | {"pp_size": choices.pp_size},
        "dtype": choices.dtype,
    }
    for key, value in expected.items():
        if config.get(key) != value:
            raise wrong("config.json", f"has {key} {config.get(key)!r}, expected {value!r}")
    _check_algorithms(path.name, config["quantization"], choices)


def _check_pytorch_config(folder: Path, choices: Choices) -> None:
    path = folder / "hf_quant_config.json"
    if choices.recipe.quant_algo is None and choices.kv_cache_dtype is None:
        if path.exists():
            raise wrong(path.name, "is there, and nothing is quantised")
        return
    if not path.is_file():
        raise wrong(path.name, "is missing")
    config = json.loads(path.read_text(encoding="utf-8"))
    _check_algorithms(path.name, config["quantization"], choices)


def _check_algorithms(name: str, quantisation: dict[str, Any], choices: Choices) -> None:
    kv_cache = choices.kv_cache_dtype.upper() if choices.kv_cache_dtype else None
    asked = {
        "quant_algo": choices.recipe.quant_algo,
        "kv_cache_quant_algo": kv_cache,
    }
    if choices.recipe.awq:
        asked["group_size"] = choices.awq_block_size  # type: ignore[assignment]
    for key, value in asked.items():
        if quantisation.get(key) != value:
            raise wrong(name, f"has {key} {quantisation.get(key)!r}, expected {value!r}")


class _Checker:
    """Compares exported files with the original, and keeps the worst error seen."""

    def __init__(self, precision: str, choices: Choices) -> None:
        self._precision = precision
        self._choices = choices
        at_build = choices.world in choices.recipe.at_build
        self._format: Format = "plain" if at_build else choices.recipe.format
        # By norm: what it multiplies each input with, over what the original does.
        self._folds: dict[str, Any] = {}
        # Relative: pre_quant_scale and the smoothed weights are rounded to the export's type.
        self._dtype = getattr(torch, choices.dtype)
        self._slack = 4 * torch.finfo(self._dtype).eps
        self.tensors = 0
        self.worst = 0.0

    def check(self, weights: Weights, parts: Iterable[Part]) -> None:
        """Check one set of files: every part is there and right, and nothing else is there."""
        seen: set[str] = set()
        for part in parts:
            layer = weights.layer(part.name, self._choices.world)
            seen |= self._check_part(layer, part, weights)
        seen |= self._check_kv_cache(weights)
        more = sorted(weights.names - seen)
        if more:
            raise wrong(more[0], "is a tensor that nothing asks for")
        self.tensors += len(seen)

    def _check_part(self, layer: Layer, part: Part, weights: Weights) -> set[str]:
        form = self._format if part.linear else "plain"
        self._check_fields(layer, part, form)
        if form == "plain" and self._takes_folds(part):
            # Compared with the layers after it: their product is the original's.
            expect(part.name, layer.weight, tuple(part.weight.shape), self._dtype)
            _check_finite(part.name, layer.weight, positive=False)
            self._folds[part.name] = _ratio(layer.weight.float(), part.weight)
        else:
            self._compare(layer, part, form)
        mine = {name for name in weights.names if name.rpartition(".")[0] == part.name}
        return {name for name in mine if not name.endswith(_KV_PYTORCH)}

    def _check_fields(self, layer: Layer, part: Part, form: Format) -> None:
        present = {field.name for field in fields(Layer) if getattr(layer, field.name) is not None}
        expected = {"name", "weight"} | needed(self._precision, form)
        if part.bias is not None:
            expected.add("bias")
        if part.name.startswith("transformer.") and form != "plain" and self._smooths:
            expected.add("pre_quant_scale")
        optional = {"pre_quant_scale"} if form != "plain" and self._smooths else set()
        if expected - present or present - expected - optional:
            actual, right = (sorted(names - {"name"}) for names in (present, expected))
            raise wrong(part.name, f"has {actual}, expected {right}")
        if layer.pre_quant_scale is not None:
            expect(part.name, layer.pre_quant_scale, part.weight.shape[1:], self._dtype)
        for name in present - {"name", "weight"}:
            _check_finite(f"{part.name} ({name})", getattr(layer, name), positive=name != "bias")

    @property
    def _smooths(self) -> bool:
        """Whether inputs are multiplied by a scale each before the layer."""
        return self._choices.recipe.awq or self._precision == "int8_sq"

    def _takes_folds(self, part: Part) -> bool:
        """Tell whether the part is a norm that takes over the scales of the layers after it."""
        inside = part.name.startswith("model.layers.")
        return self._choices.world == "pytorch" and self._smooths and inside and not part.linear

    def _compare(self, layer: Layer, part: Part, form: Format) -> None:
        numbers, error = restored(layer, form, tuple(part.weight.shape), self._dtype)
        smoothed = self._smoothing(layer, part)
        slack = part.weight.abs() * self._slack + _SUBNORMAL
        distance = (numbers * smoothed - part.weight).abs()
        share = float((distance / (error * smoothed + slack)).max())
        if not share <= 1.0:  # NaN is not, either
            raise wrong(
                part.name,
                f"is not the original's weight in {form}: off by {float(distance.max()):.3g}, "
                f"{share:.3g} times what the format allows",
            )
        if form != "plain":
            self.worst = max(self.worst, share)
        if layer.bias is not None and not torch.allclose(layer.bias.float(), part.bias):
            raise wrong(f"{part.name}.bias", "is not the original's")

    def _smoothing(self, layer: Layer, part: Part) -> Any:
        """Return what each input of the layer is multiplied with before it reaches the weights."""
        if layer.pre_quant_scale is not None:
            return layer.pre_quant_scale.float()
        return self._folds.get(part.folded or "", torch.ones(1))

    def _check_kv_cache(self, weights: Weights) -> set[str]:
        engine = self._choices.world == "engine"
        suffixes = _KV_ENGINE if engine else _KV_PYTORCH
        after = ".input_layernorm.weight"
        layers = len([name for name in weights.names if name.endswith(after)])
        expected = layers * len(suffixes) if self._choices.kv_cache_dtype else 0
        names = {name for name in weights.names if name.endswith(suffixes)}
        if len(names) != expected:
            raise wrong("the KV cache", f"has {len(names)} scales, expected {expected}")
        for name in names:
            _check_finite(name, weights.get(name), positive=True)
        return names


def _ratio(numbers: Any, original: Any) -> Any:
    return torch.where(original == 0, torch.ones(()), numbers / original)


def _check_finite(name: str, tensor: Any, *, positive: bool) -> None:
    numbers = tensor.float()
    if not bool(torch.isfinite(numbers).all()):
        raise wrong(name, "has numbers that are not finite")
    if positive and not bool((numbers > 0).all()):
        raise wrong(name, "has scales that are not positive")
