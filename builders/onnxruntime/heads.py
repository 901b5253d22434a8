# SPDX-License-Identifier: Apache-2.0
"""The steps after an encoder as torch modules that are exported with it.

Values are weighted before they are summed, so that no sum leaves the range of fp16. The mask says
at which end of a row its tokens are. Importing this module imports torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from buildlib.problems import BuildError
from buildlib.weights import DOWNLOAD_AGAIN
from taskcompile.task import Dense, EmbeddingStep, Normalize, Pooling

_EPSILON = 1e-9


def _fractions(weights: Any) -> Any:
    """Divide the weights FP32[batch, tokens] of each row by their sum."""
    return weights / weights.sum(1, keepdim=True).clamp(min=_EPSILON)


def _state_at(states: Any, index: Any) -> Any:
    """Return the state FP32[batch, hidden] of each row at `index`, INT64[batch]."""
    indices = index.view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return torch.gather(states, 1, indices).squeeze(1)


def _cls(states: Any, mask: Any, _all: Any) -> Any:
    return _state_at(states, mask.argmax(1))


def _max(states: Any, mask: Any, _all: Any) -> Any:
    return states.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _mean(states: Any, mask: Any, _all: Any) -> Any:
    return (states * _fractions(mask.to(states.dtype)).unsqueeze(-1)).sum(1)


def _mean_sqrt_len(states: Any, mask: Any, _all: Any) -> Any:
    weights = mask.to(states.dtype)
    length = weights.sum(1, keepdim=True).clamp(min=_EPSILON)
    return (states * (weights / length.sqrt()).unsqueeze(-1)).sum(1)


def _weighted_mean(states: Any, mask: Any, attention_mask: Any) -> Any:
    # The first token of a row weighs 1, pooled or not.
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device).unsqueeze(0)
    positions = positions - attention_mask.argmax(1, keepdim=True)
    weights = mask.to(states.dtype) * (positions.to(states.dtype) / mask.shape[1])
    return (states * _fractions(weights).unsqueeze(-1)).sum(1)


def _last(states: Any, mask: Any, _all: Any) -> Any:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return _state_at(states * mask.unsqueeze(-1).to(states.dtype), last)


_MODES = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pool(states: Any, pooling: Pooling, mask: Any, attention_mask: Any) -> Any:
    """Return one vector FP32[batch, modes * hidden] per row of states.

    `mask`: INT64[batch, tokens], the pooled tokens. `attention_mask`: all tokens except padding.
    """
    # ONNX Runtime's ArgMax needs small integers.
    masks = (mask.to(torch.int32), attention_mask.to(torch.int32))
    return torch.cat([_MODES[mode](states, *masks) for mode in pooling.modes], dim=-1)


class DenseStep(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer with activation and optional residual connection."""

    def __init__(self, step: Dense) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(step.in_features, step.out_features, bias=step.bias)
        self.activation = getattr(torch.nn, step.activation)()
        self.adds = step.residual
        self.residual: Any = torch.nn.Identity()
        if step.residual and step.in_features != step.out_features:
            self.residual = torch.nn.Linear(step.in_features, step.out_features, bias=False)
        weights = _load_weights(step.folder)
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            raise BuildError(
                f"{step.folder}: its weights do not match its config.json: {error}",
                remedy=DOWNLOAD_AGAIN,
            ) from error

    def forward(self, vectors: Any) -> Any:
        """Map FP32[batch, in_features] to FP32[batch, out_features]."""
        made = self.activation(self.linear(vectors))
        return made + self.residual(vectors) if self.adds else made


def _load_weights(folder: Path) -> dict[str, Any]:
    """Return the tensors of a Dense. A pickle that sentence_modules.py allows is read as data."""
    safe = folder / "model.safetensors"
    if safe.is_file():
        weights = load_file(safe)
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return {name: tensor.to(torch.float32) for name, tensor in weights.items()}


class PoolingHead(torch.nn.Module):  # type: ignore[misc]  # same
    """The steps that make one vector of an encoder's token states."""

    def __init__(self, steps: Sequence[EmbeddingStep]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = torch.nn.ModuleList(
            DenseStep(step) if isinstance(step, Dense) else torch.nn.Identity() for step in steps
        )

    def forward(self, states: Any, mask: Any, attention_mask: Any) -> Any:
        """Map FP32[batch, tokens, hidden] to FP32[batch, dimension]."""
        values = states
        for step, layer in zip(self.steps, self.layers, strict=True):
            if isinstance(step, Pooling):
                values = pool(values, step, mask, attention_mask)
            elif isinstance(step, Normalize):
                values = torch.nn.functional.normalize(values, p=2, dim=-1)
            else:
                values = layer(values)
        return values


def apply_activation(logits: Any, activation: str) -> Any:
    """Return the scores of logits. Their last dimension is the labels."""
    if activation == "softmax":
        return torch.softmax(logits, dim=-1)
    return torch.sigmoid(logits) if activation == "sigmoid" else logits
