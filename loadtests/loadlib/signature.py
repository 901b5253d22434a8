# SPDX-License-Identifier: Apache-2.0
"""What a model says of itself, and whether a plan fits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadlib.plan import Plan
from loadlib.refusal import ENDPOINT_REFUSED, Refusal
from loadlib.schema import nearest, refused

_UNAUTHORIZED = 401


@dataclass(frozen=True)
class Signature:
    """Datatype and number of dimensions of each input; names of the outputs."""

    inputs: dict[str, tuple[str, int]]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, metadata: Any) -> Signature:
        """From a ModelMetadataResponse."""
        return cls(
            {tensor.name: (tensor.datatype, len(tensor.shape)) for tensor in metadata.inputs},
            tuple(tensor.name for tensor in metadata.outputs),
        )

    @classmethod
    def of_json(cls, metadata: dict[str, Any]) -> Signature:
        """From the answer of /v2/models/M."""
        return cls(
            {
                tensor["name"]: (tensor["datatype"], len(tensor["shape"]))
                for tensor in metadata["inputs"]
            },
            tuple(tensor["name"] for tensor in metadata["outputs"]),
        )


def check_inputs(plan: Plan, signature: Signature) -> None:
    """Refusal for a tensor that the model has no input for, before anything is sent."""
    for number, one in enumerate(plan.classes):
        for name in one.parameters:
            if name not in signature.inputs:
                raise refused(
                    f"classes[{number}].parameters.{name}",
                    f"{plan.model} has no such input",
                    nearest(name, sorted(signature.inputs)),
                )


def unknown_model(plan: Plan, told: str) -> Refusal:
    """The endpoint has no such model, or it is not ready."""
    return Refusal(
        f"{plan.url} has no model {plan.model!r} that is ready: {told}",
        remedy="check `model`; `tritonctl status` lists what is served",
        exit_code=ENDPOINT_REFUSED,
    )


def unreachable(plan: Plan, told: str) -> Refusal:
    """Nothing answers there, or no Triton of this protocol."""
    return Refusal(
        f"no answer from {plan.url}: {told}",
        remedy=f"start the server with `tritonctl up`, or check endpoint.url: it must be "
        f"the {plan.protocol} port",
        exit_code=ENDPOINT_REFUSED,
    )


def _unknown_key(plan: Plan, told: str) -> Refusal:
    return Refusal(
        f"{plan.url} lets in only who has an API key that it knows: {told}",
        remedy="name the file of yours: --api-key-file, or endpoint.api_key_file of a plan",
        exit_code=ENDPOINT_REFUSED,
    )


def not_answered(plan: Plan, status: int, told: str) -> Refusal:
    """What an HTTP status at the first questions means."""
    return _unknown_key(plan, told) if status == _UNAUTHORIZED else unknown_model(plan, told)


def unusable(plan: Plan, error: Any) -> Refusal:
    """What a grpc.RpcError at the first questions means, of whichever gRPC."""
    if error.code().name == "UNAUTHENTICATED":
        return _unknown_key(plan, error.details() or "")
    if error.code().name in {"NOT_FOUND", "INVALID_ARGUMENT"}:
        return unknown_model(plan, error.details() or "")
    return unreachable(plan, f"{error.code().name}: {error.details()}")
