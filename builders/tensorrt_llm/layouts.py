# SPDX-License-Identifier: Apache-2.0
"""Which tensors a checkpoint of each world has, and which weights of the original they hold."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from choices import Choices
from formats import Layer

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


class Weights:
    """The tensors of one or several safetensors files, read one at a time."""

    def __init__(self, files: list[Path]) -> None:
        self._files: dict[str, Any] = {}
        for path in files:
            opened = safe_open(path, "pt")
            self._files |= dict.fromkeys(opened.keys(), opened)

    @property
    def names(self) -> set[str]:
        """The names of all the tensors."""
        return set(self._files)

    def get(self, name: str) -> Any:
        """Return a tensor, None for an unknown name."""
        return self._files[name].get_tensor(name) if name in self._files else None

    def layer(self, name: str, world: str) -> Layer:
        """Return the linear layer called `name`."""
        fields = _ENGINE_FIELDS if world == "engine" else _PYTORCH_FIELDS
        tensors = {field: self.get(f"{name}.{suffix}") for suffix, field in fields.items()}
        return Layer(name=name, **tensors)


def safetensors_of(folder: Path) -> list[Path]:
    """Return a Hugging Face folder's weight files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(weight_map.values()))]
    return [folder / "model.safetensors"]


@dataclass(frozen=True)
class Part:
    """One module of the export and what of the original it holds.

    `folded`: the norm before it, whose weights may have taken over its pre_quant_scale.
    """

    name: str
    weight: Any
    bias: Any = None
    linear: bool = False
    folded: str | None = None


class Original:
    """The original checkpoint's weights, rounded to the export's type."""

    def __init__(self, folder: Path, choices: Choices) -> None:
        self._weights = Weights(safetensors_of(folder))
        self._dtype = getattr(torch, choices.dtype)

    def get(self, name: str) -> Any:
        """Return a tensor as fp32, None for an unknown name."""
        tensor = self._weights.get(name)
        if tensor is None and name == "lm_head.weight":
            tensor = self._weights.get("model.embed_tokens.weight")
        return None if tensor is None else tensor.to(self._dtype).float()


def engine_parts(
    original: Original, config: dict[str, Any], choices: Choices, rank: int
) -> Iterator[Part]:
    """Yield the modules in rank{rank}.safetensors. Layers count from 0 in every rank."""
    tp, pp = choices.tp_size, choices.pp_size
    here, stage = rank % tp, rank // tp
    layers = config["num_hidden_layers"] // pp

    def rows(name: str) -> Any:
        tensor = original.get(name)
        return None if tensor is None else tensor.chunk(tp, dim=0)[here]

    if stage == 0:
        table = _padded(original.get("model.embed_tokens.weight"), choices)
        yield Part("transformer.vocab_embedding", table.chunk(tp, dim=0)[here])
    for index in range(layers):
        yield from _engine_layer(original, rows, index, stage * layers + index, (tp, here))
    if stage == pp - 1:
        yield Part("transformer.ln_f", original.get("model.norm.weight"))
        head = _padded(original.get("lm_head.weight"), choices)
        yield Part("lm_head", head.chunk(tp, dim=0)[here])


def _engine_layer(
    original: Original, rows: Any, index: int, source: int, split: tuple[int, int]
) -> Iterator[Part]:
    theirs, ours = f"model.layers.{source}", f"transformer.layers.{index}"
    attention = f"{theirs}.self_attn"
    weights = [rows(f"{attention}.{name}_proj.weight") for name in "qkv"]
    biases = [rows(f"{attention}.{name}_proj.bias") for name in "qkv"]
    bias = None if biases[0] is None else torch.cat(biases)
    yield Part(f"{ours}.input_layernorm", original.get(f"{theirs}.input_layernorm.weight"))
    yield Part(f"{ours}.attention.qkv", torch.cat(weights), bias, linear=True)
    yield Part(
        f"{ours}.attention.dense", _columns(original, f"{attention}.o_proj", split), linear=True
    )
    norm = original.get(f"{theirs}.post_attention_layernorm.weight")
    yield Part(f"{ours}.post_layernorm", norm)
    # TensorRT-LLM's fc goes through the activation, its gate does not: the other way round.
    yield Part(f"{ours}.mlp.fc", rows(f"{theirs}.mlp.gate_proj.weight"), linear=True)
    yield Part(f"{ours}.mlp.gate", rows(f"{theirs}.mlp.up_proj.weight"), linear=True)
    yield Part(
        f"{ours}.mlp.proj", _columns(original, f"{theirs}.mlp.down_proj", split), linear=True
    )


def _columns(original: Original, name: str, split: tuple[int, int]) -> Any:
    return original.get(f"{name}.weight").chunk(split[0], dim=1)[split[1]]


def _padded(table: Any, choices: Choices) -> Any:
    """Return `table` with the rows of zeros that make it divide (AWQ: by 64, too)."""
    rows = table.shape[0]
    if choices.recipe.awq:
        rows += -rows % _AWQ_VOCABULARY
    rows += -rows % choices.tp_size
    return torch.nn.functional.pad(table, (0, 0, 0, rows - table.shape[0]))


def pytorch_parts(original: Original, config: dict[str, Any]) -> Iterator[Part]:
    """Yield the modules of a unified checkpoint: the original's own names."""
    yield Part("model.embed_tokens", original.get("model.embed_tokens.weight"))
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for norm, names in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            yield Part(f"{layer}.{norm}", original.get(f"{layer}.{norm}.weight"))
            for name in names:
                yield _pytorch_linear(original, f"{layer}.{name}", f"{layer}.{norm}")
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            yield _pytorch_linear(original, f"{layer}.{name}", None)
    yield Part("model.norm", original.get("model.norm.weight"))
    if not config.get("tie_word_embeddings"):
        yield Part("lm_head", original.get("lm_head.weight"))


def _pytorch_linear(original: Original, name: str, folded: str | None) -> Part:
    weight, bias = original.get(f"{name}.weight"), original.get(f"{name}.bias")
    return Part(name, weight, bias, linear=True, folded=folded)
