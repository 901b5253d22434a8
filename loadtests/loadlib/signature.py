# SPDX-License-Identifier: Apache-2.0
"""A model's inputs and outputs, and the check that a plan fits them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from loadlib.plan_types import GeneratorPlan
from loadlib.refusal import ENDPOINT_REFUSED, RunRefusedError
from loadlib.schema import field_error, suggest

_TEXT = frozenset({"text_input", "messages"})
_TEXT_OUTPUT = "text_output"
_UNAUTHORIZED = 401


@dataclass(frozen=True)
class Signature:
    """A model's inputs and output names."""

    inputs: dict[str, tuple[str, int]]  # datatype and rank by name
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, metadata: Any) -> Signature:
        """Create from a ModelMetadataResponse."""
        return cls(
            {tensor.name: (tensor.datatype, len(tensor.shape)) for tensor in metadata.inputs},
            tuple(tensor.name for tensor in metadata.outputs),
        )

    @classmethod
    def of_json(cls, metadata: dict[str, Any]) -> Signature:
        """Create from the response of /v2/models/M."""
        return cls(
            {
                tensor["name"]: (tensor["datatype"], len(tensor["shape"]))
                for tensor in metadata["inputs"]
            },
            tuple(tensor["name"] for tensor in metadata["outputs"]),
        )


def check_inputs(plan: GeneratorPlan, signature: Signature, tensors: Collection[str] = ()) -> None:
    """Raise RunRefusedError for names that are not inputs of the model.

    `tensors` are the names in the plan's prompts.
    """
    _check_kind(plan, signature, tensors)
    for number, request_class in enumerate(plan.classes):
        for name in request_class.parameters:
            if name not in signature.inputs:
                raise field_error(
                    f"classes[{number}].parameters.{name}",
                    f"not an input of {plan.model}",
                    suggest(name, sorted(signature.inputs)),
                )


def _check_kind(plan: GeneratorPlan, signature: Signature, tensors: Collection[str]) -> None:
    input_names = sorted(signature.inputs)
    if plan.kind == "text" and not _TEXT.intersection(input_names):
        raise field_error(
            "kind",
            f"text, but {plan.model} takes tensors: {', '.join(input_names)}",
            'set kind to tensors, with prompts such as {"inputs": {"X": {"shape": [1], '
            '"datatype": "FP32", "data": [0]}}}',
        )
    if plan.kind == "text" and _TEXT_OUTPUT not in signature.outputs:
        raise field_error(
            "kind",
            f"text, but {plan.model} answers {', '.join(signature.outputs)}",
            "set kind to tensors: a .txt prompt file then has one text per line",
        )
    for name in tensors:
        if name not in input_names:
            raise field_error(
                f"inputs.{name}", f"not an input of {plan.model}", suggest(name, input_names)
            )


def unknown_model_refusal(plan: GeneratorPlan, reason: str) -> RunRefusedError:
    """Return the error for a model that the endpoint does not serve."""
    return RunRefusedError(
        f"model {plan.model!r} is not ready on {plan.endpoint.url}: {reason}",
        remedy="check `model`; `tritonctl status` lists the deployed models",
        exit_code=ENDPOINT_REFUSED,
    )


def unreachable_refusal(plan: GeneratorPlan, reason: str) -> RunRefusedError:
    """Return the error for an endpoint that is not a Triton of the plan's protocol."""
    return RunRefusedError(
        f"no answer from {plan.endpoint.url}: {reason}",
        remedy="start the server with `tritonctl up`, or check endpoint.url: it must be "
        f"the {plan.endpoint.protocol} port",
        exit_code=ENDPOINT_REFUSED,
    )


def _unknown_key_refusal(plan: GeneratorPlan, reason: str) -> RunRefusedError:
    return RunRefusedError(
        f"{plan.endpoint.url} requires a valid API key: {reason}",
        remedy="name your key file: --api-key-file, or endpoint.api_key_file in a plan",
        exit_code=ENDPOINT_REFUSED,
    )


def http_refusal(plan: GeneratorPlan, status: int, reason: str) -> RunRefusedError:
    """Return the error for an HTTP status of the first requests."""
    return (
        _unknown_key_refusal(plan, reason)
        if status == _UNAUTHORIZED
        else unknown_model_refusal(plan, reason)
    )


def grpc_refusal(plan: GeneratorPlan, error: Any) -> RunRefusedError:
    """Return the error for a grpc.RpcError of the first requests."""
    if error.code().name == "UNAUTHENTICATED":
        return _unknown_key_refusal(plan, error.details() or "")
    if error.code().name in {"NOT_FOUND", "INVALID_ARGUMENT"}:
        return unknown_model_refusal(plan, error.details() or "")
    return unreachable_refusal(plan, f"{error.code().name}: {error.details()}")
