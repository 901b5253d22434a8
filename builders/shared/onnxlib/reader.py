# SPDX-License-Identifier: Apache-2.0
"""Reads and writes ONNX files. Importing this module imports onnx."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from buildlib.problems import BuildError
from onnxlib.graph import ExternalData, OnnxGraph, OnnxTensor

# ONNX's domain has two names.
_STANDARD = {"ai.onnx": ""}


def read_model(path: Path) -> Any:
    """Return the ModelProto in `path` without loading external weights.

    Raises:
        BuildError: the file cannot be read, is truncated, or is not ONNX.
    """
    remedy = "Copy or download the file again, or export it again."
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from error
    except Exception as error:  # protobuf's DecodeError, whose module moved between versions
        problem = f"{path}: is not a whole ONNX file ({error})"
        raise BuildError(problem, remedy=remedy) from error
    # Protobuf reads many other files as an empty message.
    if not model.graph.node or not model.ir_version:
        raise BuildError(f"{path}: holds no ONNX graph", remedy=remedy)
    return model


def describe_graph(model: Any) -> OnnxGraph:
    """Return the description of a ModelProto.

    Outputs of unknown rank, which scikit-learn's converters write, get the inferred shape.
    """
    if any(_tensor(value).shape is None for value in model.graph.output):
        model = _infer_shapes(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    operators: dict[str, set[str]] = defaultdict(set)
    functions = {(function.domain, function.name) for function in model.functions}
    for node in _nodes(model.graph):
        if (node.domain, node.op_type) not in functions:
            operators[_STANDARD.get(node.domain, node.domain)].add(node.op_type)
    return OnnxGraph(
        ir_version=model.ir_version,
        opsets={_STANDARD.get(o.domain, o.domain): o.version for o in model.opset_import},
        # Old files list their weights among the inputs.
        inputs=tuple(_tensor(value) for value in model.graph.input if value.name not in constants),
        outputs=tuple(_tensor(value) for value in model.graph.output),
        operators={domain: frozenset(types) for domain, types in operators.items()},
    )


def _infer_shapes(model: Any) -> Any:
    """Return a copy of a ModelProto with the shapes that its operators determine."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # its errors have no common base; a malformed graph fails in a later check
        return model


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _tensor(value: Any) -> OnnxTensor:
    kind = value.type.WhichOneof("value") or "value without a type"
    if kind != "tensor_type":
        return OnnxTensor(value.name, "", None, kind.removesuffix("_type"))
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_dimension(dimension) for dimension in tensor.shape.dim)
    return OnnxTensor(value.name, onnx.TensorProto.DataType.Name(tensor.elem_type), shape)


def _dimension(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        # Old exporters write 0 or -1 for "any".
        return int(dimension.dim_value) if dimension.dim_value > 0 else None
    return str(dimension.dim_param) or None


def external_data(model: Any) -> list[ExternalData]:
    """Return the weights of a ModelProto that lie in other files."""
    external_tensors = (
        t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL
    )
    weights = []
    for tensor in external_tensors:
        fields = {entry.key: entry.value for entry in tensor.external_data}
        length = int(fields["length"]) if "length" in fields else None
        offset = int(fields.get("offset", 0))
        weights.append(ExternalData(tensor.name, fields.get("location", ""), offset, length))
    return weights


def write_model(model: Any, path: Path, *, external: bool) -> None:
    """Write a ModelProto. `external`: write its weights to PATH.data."""
    if not external:
        onnx.save(model, path)
        return
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{path.name}.data",
    )
