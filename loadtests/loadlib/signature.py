# SPDX-License-Identifier: Apache-2.0
"""A model's inputs and outputs, and whether a plan fits them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from loadlib.plan import Plan
from loadlib.refusal import ENDPOINT_REFUSED, Refusal
from loadlib.schema import nearest, refused

_TEXT = frozenset({"text_input", "messages"})
_TEXT_OUTPUT = "text_output"
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


def check_inputs(plan: Plan, signature: Signature, tensors: Collection[str] = ()) -> None:
    """Refusal for what is not an input of the model, before anything is sent.

    tensors: the names in the plan's prompts.
    """
    _check_kind(plan, signature, tensors)
    for number, one in enumerate(plan.classes):
        for name in one.parameters:
            if name not in signature.inputs:
                raise refused(
                    f"classes[{number}].parameters.{name}",
                    f"not an input of {plan.model}",
                    nearest(name, sorted(signature.inputs)),
                )


def _check_kind(plan: Plan, signature: Signature, tensors: Collection[str]) -> None:
    known = sorted(signature.inputs)
    if plan.kind == "text" and not _TEXT.intersection(known):
        raise refused(
            "kind",
            f"text, but {plan.model} takes tensors: {', '.join(known)}",
            'set kind to tensors, with prompts such as {"inputs": {"X": {"shape": [1], '
            '"datatype": "FP32", "data": [0]}}}',
        )
    if plan.kind == "text" and _TEXT_OUTPUT not in signature.outputs:
        raise refused(
            "kind",
            f"text, but {plan.model} answers {', '.join(signature.outputs)}",
            "set kind to tensors: a .txt file of prompts then has a text on each line",
        )
    for name in tensors:
        if name not in known:
            raise refused(f"inputs.{name}", f"not an input of {plan.model}", nearest(name, known))


def unknown_model(plan: Plan, reason: str) -> Refusal:
    """The endpoint does not serve the model."""
    return Refusal(
        f"model {plan.model!r} is not ready on {plan.url}: {reason}",
        remedy="check `model`; `tritonctl status` lists what is served",
        exit_code=ENDPOINT_REFUSED,
    )


def unreachable(plan: Plan, reason: str) -> Refusal:
    """Nothing answers, or not a Triton of this protocol."""
    return Refusal(
        f"no answer from {plan.url}: {reason}",
        remedy=f"start the server with `tritonctl up`, or check endpoint.url: it must be "
        f"the {plan.protocol} port",
        exit_code=ENDPOINT_REFUSED,
    )


def _unknown_key(plan: Plan, reason: str) -> Refusal:
    return Refusal(
        f"{plan.url} requires an API key that it knows: {reason}",
        remedy="name your key file: --api-key-file, or endpoint.api_key_file in a plan",
        exit_code=ENDPOINT_REFUSED,
    )


def not_answered(plan: Plan, status: int, reason: str) -> Refusal:
    """What an HTTP status of the first requests means."""
    return _unknown_key(plan, reason) if status == _UNAUTHORIZED else unknown_model(plan, reason)


def unusable(plan: Plan, error: Any) -> Refusal:
    """What a grpc.RpcError of the first requests means."""
    if error.code().name == "UNAUTHENTICATED":
        return _unknown_key(plan, error.details() or "")
    if error.code().name in {"NOT_FOUND", "INVALID_ARGUMENT"}:
        return unknown_model(plan, error.details() or "")
    return unreachable(plan, f"{error.code().name}: {error.details()}")
