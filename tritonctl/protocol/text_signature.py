# SPDX-License-Identifier: Apache-2.0
"""Requests for text models of other makers: with the tensors that the model declares.

Our models declare all tensors of `ensembles/text_generation.yaml`; Triton refuses a request that
names another, or has another number of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.errors import RequestRejectedError

# What Triton says of such a request.
_MISMATCHES = ("unexpected inference output", "unexpected inference input", "unexpected shape for")
_TEXT = "text_output"
_IMPLIED = ("stream",)  # sent whether or not the caller chose it


def is_mismatch(error: RequestRejectedError) -> bool:
    """Whether Triton refused the tensors of a request, not their values."""
    return any(words in error.problem for words in _MISMATCHES)


@dataclass(frozen=True)
class TextSignature:
    """The tensors of a text model; `inputs`: data type and number of dimensions by name."""

    model: str
    inputs: Mapping[str, tuple[str, int]]
    outputs: frozenset[str]

    @classmethod
    def of(cls, metadata: Any) -> TextSignature | None:
        """Read a ModelMetadataResponse; None for a model that does not answer with text."""
        outputs = frozenset(tensor.name for tensor in metadata.outputs)
        if _TEXT not in outputs:
            return None
        inputs = {tensor.name: (tensor.datatype, len(tensor.shape)) for tensor in metadata.inputs}
        return cls(metadata.name, inputs, outputs)

    def adapt(self, request: Any) -> Any:
        """Return the request with the model's tensors only, in its number of dimensions.

        Raises RequestRejectedError for a tensor that the caller chose and the model lacks.
        """
        adapted = type(request)()
        adapted.CopyFrom(request)
        for part in ("inputs", "outputs", "raw_input_contents"):
            adapted.ClearField(part)
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
            if tensor.name not in self.inputs and tensor.name in _IMPLIED:
                continue
            rank = self._rank(tensor)
            shape = [1] * (rank - 1) + [tensor.shape[-1]]
            adapted.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
            adapted.raw_input_contents.append(content)
        for output in request.outputs:
            if output.name in self.outputs:
                adapted.outputs.add(name=output.name)
        return adapted

    def _rank(self, tensor: Any) -> int:
        datatype, rank = self.inputs.get(tensor.name, ("", 0))
        if datatype == tensor.datatype:
            return rank
        problem = f"takes {tensor.name} as {datatype}" if datatype else f"has no {tensor.name}"
        raise RequestRejectedError(
            f"{self.model} {problem}, and the request has {tensor.name} as {tensor.datatype}"
            if datatype
            else f"{self.model} {problem}",
            remedy=f"leave it out, or use `tritonctl infer`; its inputs: {', '.join(self.inputs)}",
        )
