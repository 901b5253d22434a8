# SPDX-License-Identifier: Apache-2.0
"""A small Llama in numpy, in fp32: what the fake runtime answers with. Not part of the real API."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def read_safetensors(file: Path) -> dict[str, Array]:
    """Every fp32 tensor of a file."""
    data = file.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(
            data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]],
            dtype="<f4",
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


@dataclass(frozen=True)
class Shape:
    """The numbers of a Llama that its weights do not tell."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From config.json of a Hugging Face checkpoint."""
        return cls(
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
            config["rms_norm_eps"],
            config["rope_theta"],
        )


class State:
    """Keys and values of one sequence, [layer][position, kv_head, head_dim]."""

    def __init__(self, layers: int) -> None:
        self.keys: list[Array | None] = [None] * layers
        self.values: list[Array | None] = [None] * layers
        self.length = 0


class NumpyLlama:
    """Logits of the next id; `lora`: weights of an adapter for the q_proj of each layer."""

    def __init__(self, weights: Mapping[str, Array], shape: Shape) -> None:
        self._weights = weights
        self._shape = shape

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return len(self._weights["model.embed_tokens.weight"])

    def new_state(self) -> State:
        """Nothing read yet."""
        return State(self._shape.layers)

    def read(
        self, state: State, ids: Sequence[int], lora: Mapping[str, Array] | None = None
    ) -> Array:
        """Read ids behind what the state has; the logits behind the last one."""
        x = self._weights["model.embed_tokens.weight"][list(ids)]
        positions = np.arange(state.length, state.length + len(ids))
        for layer in range(self._shape.layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(state, layer, self._norm(x, f"{prefix}.input_layernorm"), lora)
            x = x + self._mlp(prefix, self._norm(x, f"{prefix}.post_attention_layernorm"))
        state.length += len(positions)
        logits: Array = self._norm(x[-1:], "model.norm")[0] @ self._weights["lm_head.weight"].T
        return logits

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self._shape.eps)
        return np.asarray(x * scale * self._weights[f"{name}.weight"], dtype=np.float32)

    def _mlp(self, prefix: str, x: Array) -> Array:
        gate = x @ self._weights[f"{prefix}.mlp.gate_proj.weight"].T
        up = x @ self._weights[f"{prefix}.mlp.up_proj.weight"].T
        made: Array = (gate / (1 + np.exp(-gate)) * up) @ self._weights[
            f"{prefix}.mlp.down_proj.weight"
        ].T
        return made

    def _attention(
        self, state: State, layer: int, x: Array, lora: Mapping[str, Array] | None
    ) -> Array:
        shape, prefix = self._shape, f"model.layers.{layer}.self_attn"
        q, k, v = (x @ self._weights[f"{prefix}.{name}_proj.weight"].T for name in "qkv")
        if lora:
            q = q + x @ lora[f"{prefix}.q_proj.lora_A"].T @ lora[f"{prefix}.q_proj.lora_B"].T
        positions = np.arange(state.length, state.length + len(x))
        q = self._rotated(q.reshape(len(x), shape.heads, -1), positions)
        k = self._rotated(k.reshape(len(x), shape.kv_heads, -1), positions)
        keys = _appended(state.keys, layer, k)
        values = _appended(state.values, layer, v.reshape(len(x), shape.kv_heads, -1))
        group = shape.heads // shape.kv_heads
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, keys) / np.sqrt(shape.head_dim)
        future = np.arange(len(keys))[None, :] > positions[:, None]
        scores = np.where(future[None], -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(len(x), -1)
        made: Array = (mixed @ self._weights[f"{prefix}.o_proj.weight"].T).astype(np.float32)
        return made

    def _rotated(self, x: Array, positions: NDArray[np.int64]) -> Array:
        half = self._shape.head_dim // 2
        frequencies = self._shape.theta ** (-np.arange(half) / half)
        angles = positions[:, None] * frequencies
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = x[..., :half], x[..., half:]
        turned = [first * cos - second * sin, second * cos + first * sin]
        return np.concatenate(turned, -1).astype(np.float32)


def _appended(cache: list[Array | None], layer: int, new: Array) -> Array:
    before = cache[layer]
    joined = new if before is None else np.concatenate([before, new])
    cache[layer] = joined
    return joined


def read_lora(folder: Path) -> dict[str, Array]:
    """A PEFT adapter for q_proj alone: A, and B times alpha / r, by module."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    scale = np.float32(config["lora_alpha"] / config["r"])
    found = {}
    for name, tensor in read_safetensors(folder / "adapter_model.safetensors").items():
        module, _, kind = (
            name.removesuffix(".weight").removeprefix("base_model.model.").rpartition(".")
        )
        found[f"{module}.{kind}"] = tensor * scale if kind == "lora_B" else tensor
    return found
