# SPDX-License-Identifier: Apache-2.0
"""Small ensembles with their models, for the rules' examples: a server can load and run them."""

from __future__ import annotations

from collections.abc import Mapping

from tritonctl.checks.examples.files import ExampleFile

# Tensors by name: their type and dims, {"IDS": "INT32 [ 4 ]"}.
Tensors = Mapping[str, str]

ENSEMBLE = """\
name: "m"
platform: "ensemble"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "tokenize"
      model_version: -1
      input_map { key: "TEXT" value: "TEXT" }
      output_map { key: "IDS" value: "ids" }
    },
    {
      model_name: "classify"
      model_version: -1
      input_map { key: "IDS" value: "ids" }
      output_map { key: "SCORES" value: "SCORES" }
    }
  ]
}
"""
_NUMPY = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool_"}
_HEAD = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
"""
_PLAIN = """\
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = []
{body}
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""
_DECOUPLED = """\
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                if sender.is_cancelled():
                    break
                tensors = []
{body}
                sender.send(pb_utils.InferenceResponse(output_tensors=tensors))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


def composing(
    name: str,
    inputs: Tensors,
    outputs: Tensors,
    *,
    batch: int = 8,
    decoupled: bool = False,
    more: str = "",
) -> dict[str, str | ExampleFile]:
    """A model of the Python backend that answers with zeros; decoupled: three times."""
    policy = "model_transaction_policy { decoupled: true }\n" if decoupled else ""
    config = (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: {batch}\n'
        f"input [\n{_tensors(inputs)}\n]\noutput [\n{_tensors(outputs)}\n]\n{policy}{more}"
    )
    indent = " " * (16 if decoupled else 12)
    body = "\n".join(indent + line for line in _lines(inputs, outputs, batch))
    code = _HEAD + (_DECOUPLED if decoupled else _PLAIN).format(body=body)
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.py": code}


def _tensors(tensors: Tensors) -> str:
    return ",\n".join(
        f'  {{ name: "{name}" data_type: TYPE_{said.split(" ", 1)[0]} '
        f"dims: {said.split(' ', 1)[1]} }}"
        for name, said in tensors.items()
    )


def _lines(inputs: Tensors, outputs: Tensors, batch: int) -> list[str]:
    """Reads every input, writes every output."""
    found = [f'given = pb_utils.get_input_tensor_by_name(request, "{name}")' for name in inputs]
    varying = batch or any("-1" in said for said in outputs.values())
    rows = ["rows = 1 if given is None else len(given.as_numpy())"] if varying else []
    return [*found, *rows, *(_written(*output, batch) for output in outputs.items())]


def _written(name: str, said: str, batch: int) -> str:
    dtype, dims = said.split(" ", 1)
    sizes = dims.strip("[] ").replace("-1", "rows").replace(" ", "").split(",")
    shape = ", ".join([*(["rows"] if batch else []), *sizes])
    value = 'b""' if dtype == "STRING" else "0"
    kind = "np.object_" if dtype == "STRING" else f"np.{_NUMPY.get(dtype, dtype.lower())}"
    return f'tensors.append(pb_utils.Tensor("{name}", np.full([{shape}], {value}, {kind})))'


TOKENIZE = composing("tokenize", {"TEXT": "STRING [ 1 ]"}, {"IDS": "INT32 [ 4 ]"})
CLASSIFY = composing("classify", {"IDS": "INT32 [ 4 ]"}, {"SCORES": "FP32 [ 2 ]"})


def ensemble(
    config: str = ENSEMBLE, *models: Mapping[str, str | ExampleFile]
) -> dict[str, str | ExampleFile]:
    """An ensemble `m` of these models; of `tokenize` and `classify` where none are given."""
    files: dict[str, str | ExampleFile] = {"m/config.pbtxt": config, "m/1/.keep": ""}
    for model in models or (TOKENIZE, CLASSIFY):
        files |= model
    return files
