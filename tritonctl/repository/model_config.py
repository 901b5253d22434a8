# SPDX-License-Identifier: Apache-2.0
"""Triton's model configuration as typed values, with Triton's own field names.

Only what tritonctl writes is modelled; anything else reaches config.pbtxt through the project's
raw `serving.config`, validated by the protobuf schema. Source: Triton's `model_config.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tensor:
    """An input or output; `dims` without the batch dimension, -1 for a variable one.

    allow_ragged_batch: requests whose shapes differ may be in one batch. reshape: the dims that the
    backend sees instead.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    allow_ragged_batch: bool = False
    reshape: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The tensor in protobuf's JSON form."""
        record: dict[str, Any] = {
            "name": self.name,
            "data_type": self.data_type,
            "dims": list(self.dims),
        }
        if self.reshape is not None:
            record["reshape"] = {"shape": list(self.reshape)}
        flags = {"optional": self.optional, "allow_ragged_batch": self.allow_ragged_batch}
        return record | {name: True for name, is_set in flags.items() if is_set}


@dataclass(frozen=True)
class EnsembleStep:
    """A composing model; maps go from its tensor names to the ensemble's."""

    model_name: str
    input_map: dict[str, str]
    output_map: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The step in protobuf's JSON form; -1 is "the latest version"."""
        return {
            "model_name": self.model_name,
            "model_version": -1,
            "input_map": self.input_map,
            "output_map": self.output_map,
        }


@dataclass(frozen=True)
class ModelConfig:
    """A config.pbtxt. A model has either a `backend` or, as an ensemble, `steps`."""

    name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backend: str | None = None
    instance_group: tuple[dict[str, Any], ...] = ()
    dynamic_batching: dict[str, Any] | None = None
    decoupled: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    steps: tuple[EnsembleStep, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The configuration in protobuf's JSON form, unset fields left out."""
        optional = {
            "backend": self.backend,
            "instance_group": list(self.instance_group),
            "dynamic_batching": self.dynamic_batching,
            "model_transaction_policy": {"decoupled": True} if self.decoupled else None,
            "parameters": {k: {"string_value": v} for k, v in self.parameters.items()},
            "platform": "ensemble" if self.steps else None,
            "ensemble_scheduling": {"step": [step.as_dict() for step in self.steps]},
        }
        if not self.steps:
            del optional["ensemble_scheduling"]
        # `dynamic_batching {}` says "batch, with the defaults": empty, yet not absent.
        return {
            "name": self.name,
            "max_batch_size": self.max_batch_size,
            "input": [tensor.as_dict() for tensor in self.inputs],
            "output": [tensor.as_dict() for tensor in self.outputs],
        } | {k: v for k, v in optional.items() if v or (k == "dynamic_batching" and v is not None)}
