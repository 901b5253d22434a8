# SPDX-License-Identifier: Apache-2.0
"""What follows an encoder, as modules that are exported with it. Importing this imports torch.

Sums are taken of what is already weighted, so that none leaves the range of fp16. A row's tokens
may stand at either end of it: the mask says where.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from buildlib.problems import BuildError
from buildlib.weights import DOWNLOAD_AGAIN
from taskcompile.task import Dense, Normalize, Pooling, Step

_SMALLEST = 1e-9


def _fractions(weights: Any) -> Any:
    """Weights FP32[batch, tokens] of a row, divided by their sum."""
    return weights / weights.sum(1, keepdim=True).clamp(min=_SMALLEST)


def _at(states: Any, index: Any) -> Any:
    """FP32[batch, hidden]: the state at INT64[batch] of each row."""
    wanted = index.view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return torch.gather(states, 1, wanted).squeeze(1)


def _cls(states: Any, mask: Any, _all: Any) -> Any:
    return _at(states, mask.argmax(1))


def _max(states: Any, mask: Any, _all: Any) -> Any:
    return states.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _mean(states: Any, mask: Any, _all: Any) -> Any:
    return (states * _fractions(mask.to(states.dtype)).unsqueeze(-1)).sum(1)


def _mean_sqrt_len(states: Any, mask: Any, _all: Any) -> Any:
    weights = mask.to(states.dtype)
    length = weights.sum(1, keepdim=True).clamp(min=_SMALLEST)
    return (states * (weights / length.sqrt()).unsqueeze(-1)).sum(1)


def _weighted_mean(states: Any, mask: Any, everything: Any) -> Any:
    # The first token of a row weighs 1, whether it is pooled or not.
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device).unsqueeze(0)
    positions = positions - everything.argmax(1, keepdim=True)
    weights = mask.to(states.dtype) * (positions.to(states.dtype) / mask.shape[1])
    return (states * _fractions(weights).unsqueeze(-1)).sum(1)


def _last(states: Any, mask: Any, _all: Any) -> Any:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return _at(states * mask.unsqueeze(-1).to(states.dtype), last)


_MODES = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pooled(states: Any, pooling: Pooling, mask: Any, everything: Any) -> Any:
    """One vector FP32[batch, modes * hidden] of each row's states.

    `mask`: INT64[batch, tokens], what is pooled; `everything`: what is no padding.
    """
    # ONNX Runtime's ArgMax wants small integers.
    masks = (mask.to(torch.int32), everything.to(torch.int32))
    return torch.cat([_MODES[mode](states, *masks) for mode in pooling.modes], dim=-1)


class DenseStep(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer, its activation, and the way around both."""

    def __init__(self, step: Dense) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(step.in_features, step.out_features, bias=step.bias)
        self.activation = getattr(torch.nn, step.activation)()
        self.adds = step.residual
        self.residual: Any = torch.nn.Identity()
        if step.residual and step.in_features != step.out_features:
            self.residual = torch.nn.Linear(step.in_features, step.out_features, bias=False)
        weights = _weights(step.folder)
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            raise BuildError(
                f"{step.folder}: its weights are not those that its config.json describes: {error}",
                remedy=DOWNLOAD_AGAIN,
            ) from error

    def forward(self, vectors: Any) -> Any:
        """FP32[batch, in_features] to FP32[batch, out_features]."""
        made = self.activation(self.linear(vectors))
        return made + self.residual(vectors) if self.adds else made


def _weights(folder: Path) -> dict[str, Any]:
    """The tensors of a Dense; a pickle, which sentence_modules.py has allowed, as data alone."""
    safe = folder / "model.safetensors"
    if safe.is_file():
        weights = load_file(safe)
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return {name: tensor.to(torch.float32) for name, tensor in weights.items()}


class Head(torch.nn.Module):  # type: ignore[misc]  # same
    """The steps after an encoder whose tokens' states become one vector."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = torch.nn.ModuleList(
            DenseStep(step) if isinstance(step, Dense) else torch.nn.Identity() for step in steps
        )

    def forward(self, states: Any, mask: Any, everything: Any) -> Any:
        """FP32[batch, tokens, hidden] to FP32[batch, dimension]."""
        made = states
        for step, layer in zip(self.steps, self.layers, strict=True):
            if isinstance(step, Pooling):
                made = pooled(made, step, mask, everything)
            elif isinstance(step, Normalize):
                made = torch.nn.functional.normalize(made, p=2, dim=-1)
            else:
                made = layer(made)
        return made


def activated(logits: Any, activation: str) -> Any:
    """Scores of logits whose last dimension is the labels."""
    if activation == "softmax":
        return torch.softmax(logits, dim=-1)
    return torch.sigmoid(logits) if activation == "sigmoid" else logits
