# SPDX-License-Identifier: Apache-2.0
"""The modules of an exported checkpoint of each world, with the original weights they hold."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from choices import QuantiseChoices
from formats import ExportedLayer

_ENGINE_FIELDS = {
    "weight": "weight",
    "weights_scaling_factor": "scale",
    "weights_scaling_factor_2": "scale_2",
    "activation_scaling_factor": "input_scale",
    "prequant_scaling_factor": "pre_quant_scale",
    "bias": "bias",
}
_PYTORCH_FIELDS = {
    "weight": "weight",
    "weight_scale": "scale",
    "weight_scale_2": "scale_2",
    "input_scale": "input_scale",
    "pre_quant_scale": "pre_quant_scale",
    "bias": "bias",
}
_AWQ_VOCABULARY = 64


class WeightFiles:
    """Reads the tensors of one or several safetensors files one at a time."""

    def __init__(self, files: list[Path]) -> None:
        self._files: dict[str, Any] = {}
        for path in files:
            opened = safe_open(path, "pt")
            self._files |= dict.fromkeys(opened.keys(), opened)

    @property
    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._files)

    def get(self, name: str) -> Any:
        """Return a tensor, or None for an unknown name."""
        return self._files[name].get_tensor(name) if name in self._files else None

    def layer(self, name: str, world: str) -> ExportedLayer:
        """Return the linear layer `name`."""
        fields = _ENGINE_FIELDS if world == "engine" else _PYTORCH_FIELDS
        tensors = {field: self.get(f"{name}.{suffix}") for suffix, field in fields.items()}
        return ExportedLayer(name=name, **tensors)


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a Hugging Face folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(weight_map.values()))]
    return [folder / "model.safetensors"]


@dataclass(frozen=True)
class ExportedModule:
    """One module of the export with the original weights that it holds."""

    name: str
    weight: Any
    bias: Any = None
    linear: bool = False
    folded_norm: str | None = None  # the norm before it, which may include its pre_quant_scale


class OriginalWeights:
    """Reads the weights of the original checkpoint, rounded to the export's type."""

    def __init__(self, folder: Path, choices: QuantiseChoices) -> None:
        self._weights = WeightFiles(weight_files(folder))
        self._dtype = getattr(torch, choices.dtype)

    def get(self, name: str) -> Any:
        """Return a tensor as fp32, or None for an unknown name."""
        tensor = self._weights.get(name)
        if tensor is None and name == "lm_head.weight":
            tensor = self._weights.get("model.embed_tokens.weight")
        return None if tensor is None else tensor.to(self._dtype).float()


def engine_modules(
    original: OriginalWeights, config: dict[str, Any], choices: QuantiseChoices, rank: int
) -> Iterator[ExportedModule]:
    """Yield the modules in rank{rank}.safetensors. Layers count from 0 in every rank."""
    tp, pp = choices.tp_size, choices.pp_size
    tp_rank, stage = rank % tp, rank // tp
    layers = config["num_hidden_layers"] // pp

    def rows(name: str) -> Any:
        tensor = original.get(name)
        return None if tensor is None else tensor.chunk(tp, dim=0)[tp_rank]

    if stage == 0:
        table = _pad_rows(original.get("model.embed_tokens.weight"), choices)
        yield ExportedModule("transformer.vocab_embedding", table.chunk(tp, dim=0)[tp_rank])
    for index in range(layers):
        yield from _engine_layer(original, rows, index, stage * layers + index, (tp, tp_rank))
    if stage == pp - 1:
        yield ExportedModule("transformer.ln_f", original.get("model.norm.weight"))
        head = _pad_rows(original.get("lm_head.weight"), choices)
        yield ExportedModule("lm_head", head.chunk(tp, dim=0)[tp_rank])


def _engine_layer(
    original: OriginalWeights, rows: Any, index: int, source: int, split: tuple[int, int]
) -> Iterator[ExportedModule]:
    source_prefix, engine_prefix = f"model.layers.{source}", f"transformer.layers.{index}"
    attention = f"{source_prefix}.self_attn"
    weights = [rows(f"{attention}.{name}_proj.weight") for name in "qkv"]
    biases = [rows(f"{attention}.{name}_proj.bias") for name in "qkv"]
    bias = None if biases[0] is None else torch.cat(biases)
    yield ExportedModule(
        f"{engine_prefix}.input_layernorm", original.get(f"{source_prefix}.input_layernorm.weight")
    )
    yield ExportedModule(f"{engine_prefix}.attention.qkv", torch.cat(weights), bias, linear=True)
    yield ExportedModule(
        f"{engine_prefix}.attention.dense",
        _columns(original, f"{attention}.o_proj", split),
        linear=True,
    )
    norm = original.get(f"{source_prefix}.post_attention_layernorm.weight")
    yield ExportedModule(f"{engine_prefix}.post_layernorm", norm)
    # In TensorRT-LLM the activation applies to fc, not to gate: the names are swapped.
    yield ExportedModule(
        f"{engine_prefix}.mlp.fc", rows(f"{source_prefix}.mlp.gate_proj.weight"), linear=True
    )
    yield ExportedModule(
        f"{engine_prefix}.mlp.gate", rows(f"{source_prefix}.mlp.up_proj.weight"), linear=True
    )
    yield ExportedModule(
        f"{engine_prefix}.mlp.proj",
        _columns(original, f"{source_prefix}.mlp.down_proj", split),
        linear=True,
    )


def _columns(original: OriginalWeights, name: str, split: tuple[int, int]) -> Any:
    return original.get(f"{name}.weight").chunk(split[0], dim=1)[split[1]]


def _pad_rows(table: Any, choices: QuantiseChoices) -> Any:
    """Pad `table` with rows of zeros to a multiple of tp_size (AWQ: also of 64)."""
    rows = table.shape[0]
    if choices.recipe.awq:
        rows += -rows % _AWQ_VOCABULARY
    rows += -rows % choices.tp_size
    return torch.nn.functional.pad(table, (0, 0, 0, rows - table.shape[0]))


def pytorch_modules(original: OriginalWeights, config: dict[str, Any]) -> Iterator[ExportedModule]:
    """Yield the modules of a unified checkpoint, which keeps the original's names."""
    yield ExportedModule("model.embed_tokens", original.get("model.embed_tokens.weight"))
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for norm, names in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            yield ExportedModule(f"{layer}.{norm}", original.get(f"{layer}.{norm}.weight"))
            for name in names:
                yield _pytorch_linear(original, f"{layer}.{name}", f"{layer}.{norm}")
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            yield _pytorch_linear(original, f"{layer}.{name}", None)
    yield ExportedModule("model.norm", original.get("model.norm.weight"))
    if not config.get("tie_word_embeddings"):
        yield ExportedModule("lm_head", original.get("lm_head.weight"))


def _pytorch_linear(
    original: OriginalWeights, name: str, folded_norm: str | None
) -> ExportedModule:
    weight, bias = original.get(f"{name}.weight"), original.get(f"{name}.bias")
    return ExportedModule(name, weight, bias, linear=True, folded_norm=folded_norm)
