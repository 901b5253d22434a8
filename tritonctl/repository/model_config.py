# SPDX-License-Identifier: Apache-2.0
"""Triton's model configuration as typed values with Triton's field names.

It models only the fields that tritonctl writes. Other fields come from the project's raw
`serving.config`, validated by the protobuf schema. Source: Triton's `model_config.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ConfigTensor:
    """An input or output of a model."""

    name: str
    data_type: str
    dims: tuple[int, ...]  # without the batch dimension; -1: variable
    optional: bool = False
    allow_ragged_batch: bool = False  # a batch may mix requests of different shapes
    reshape: tuple[int, ...] | None = None  # the dims that the backend sees

    def as_dict(self) -> dict[str, Any]:
        """Return the tensor in protobuf's JSON form."""
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
        """Return the step in protobuf's JSON form; version -1 is the latest."""
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
    inputs: tuple[ConfigTensor, ...]
    outputs: tuple[ConfigTensor, ...]
    backend: str | None = None
    instance_group: tuple[dict[str, Any], ...] = ()
    dynamic_batching: dict[str, Any] | None = None
    decoupled: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    steps: tuple[EnsembleStep, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration in protobuf's JSON form without unset fields."""
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
        # Keep an empty `dynamic_batching {}`: it enables batching with the defaults.
        return {
            "name": self.name,
            "max_batch_size": self.max_batch_size,
            "input": [tensor.as_dict() for tensor in self.inputs],
            "output": [tensor.as_dict() for tensor in self.outputs],
        } | {k: v for k, v in optional.items() if v or (k == "dynamic_batching" and v is not None)}
