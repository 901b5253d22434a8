# SPDX-License-Identifier: Apache-2.0
"""Describes an ONNX graph and refuses one that cannot be served. Standard library only.

The rules use the description that reader.py makes, so tests of them do not need onnx.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from buildlib.problems import BuildError

Dimension = int | str | None  # a size, the name of a variable dimension, or None without a name

# ONNX's names (onnx.proto, TensorProto.DataType) and Triton's (model_config.proto, DataType).
TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FLOAT16": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "STRING": "TYPE_STRING",
}

_QUANTISED = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "ConvInteger"}
)

_BATCH_REMEDY = (
    "Set engine.max_batch_size to 0: the graph then runs once for each request, with its own "
    "shapes. To batch requests, export it with one variable first dimension for all inputs and "
    'outputs: torch.onnx.export(..., dynamic_shapes={"x": {0: Dim("batch")}}).'
)
_ZIPMAP_REMEDY = (
    'Export it without ZipMap: skl2onnx.to_onnx(model, X, options={"zipmap": False}). Then '
    "probabilities are a tensor [rows, classes]."
)


@dataclass(frozen=True)
class OnnxTensor:
    """An input or output of a graph."""

    name: str
    element_type: str
    shape: tuple[Dimension, ...] | None  # None: the rank is unknown
    kind: str = "tensor"  # ONNX's name of the type


@dataclass(frozen=True)
class ExternalData:
    """Weights of one tensor in another file."""

    tensor: str
    location: str
    offset: int  # bytes
    length: int | None  # bytes; None: up to the end


@dataclass(frozen=True)
class OnnxGraph:
    """The description of a graph that the rules check."""

    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    operators: Mapping[str, frozenset[str]]  # types by domain; "" is ONNX's domain


@dataclass(frozen=True)
class RuntimeSupport:
    """The graphs that a runtime reads."""

    name: str
    min_opset: int
    max_opset: int
    max_ir_version: int
    domains: frozenset[str]


def check_graph(
    graph: OnnxGraph, path: Path, runtime: RuntimeSupport, *, batched: bool = True
) -> None:
    """Check that the runtime can load the graph and that Triton can carry its tensors.

    `batched`: requests share runs, along the first dimension of all tensors.

    Raises:
        BuildError: the first reason why not, outermost first.
    """
    check_versions(graph, path, runtime)
    check_operators(graph, path, runtime)
    check_types(graph, path)
    check_ranks(graph, path)
    if not graph.inputs:
        raise BuildError(f"{path}: has no inputs", remedy="Export a graph that takes inputs.")
    if batched:
        check_batch_dimension(graph, path)


def check_versions(graph: OnnxGraph, path: Path, runtime: RuntimeSupport) -> None:
    """Raise BuildError for an opset or IR version that the runtime does not read."""
    opset = graph.opsets.get("", runtime.max_opset)
    if opset > runtime.max_opset or graph.ir_version > runtime.max_ir_version:
        raise BuildError(
            f"{path}: uses opset {opset} and IR version {graph.ir_version}; {runtime.name} reads "
            f"up to opset {runtime.max_opset} and IR version {runtime.max_ir_version}",
            remedy=f"Export it again with opset_version={runtime.max_opset} or lower.",
        )
    if opset < runtime.min_opset:
        raise BuildError(
            f"{path}: uses opset {opset}; {runtime.name} needs {runtime.min_opset} or higher",
            remedy=f"Export it again, or onnx.version_converter.convert_version(model, "
            f"{runtime.min_opset}).",
        )


def check_operators(graph: OnnxGraph, path: Path, runtime: RuntimeSupport) -> None:
    """Raise BuildError for operators of a domain that the runtime does not have."""
    foreign = {d: types for d, types in graph.operators.items() if d not in runtime.domains}
    for domain, types in sorted(foreign.items()):
        raise BuildError(
            f"{path}: uses operators of the domain {domain!r} ({', '.join(sorted(types))}), "
            f"which {runtime.name} does not have",
            remedy="Export the graph with standard operators only: custom ones need a library on "
            "the server.",
        )


def check_types(graph: OnnxGraph, path: Path) -> None:
    """Raise BuildError for inputs or outputs of a type that Triton cannot carry."""
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor.kind != "tensor":
            has_zipmap = "ZipMap" in graph.operators.get("ai.onnx.ml", ())
            raise BuildError(
                f"{path}: {tensor.name} is a {tensor.kind}; Triton carries tensors only",
                remedy=_ZIPMAP_REMEDY
                if has_zipmap
                else "Export the graph with tensors as inputs and outputs.",
            )
        if tensor.element_type not in TRITON_TYPES:
            raise BuildError(
                f"{path}: {tensor.name} is of the ONNX type {tensor.element_type}, which this "
                "path to Triton cannot carry",
                remedy="Add a Cast at the border of the graph, to FLOAT or FLOAT16 for example.",
            )


def check_ranks(graph: OnnxGraph, path: Path) -> None:
    """Raise BuildError for inputs or outputs with an unknown number of dimensions."""
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor.shape is None:
            raise BuildError(
                f"{path}: the number of dimensions of {tensor.name} is unknown, and Triton "
                "needs it in config.pbtxt",
                remedy="Export it with shapes (variable sizes are fine), or run "
                "onnx.shape_inference.infer_shapes and save the result.",
            )


def check_batch_dimension(graph: OnnxGraph, path: Path) -> None:
    """Raise BuildError unless requests can be batched along the first dimension of all tensors."""
    for tensor in (*graph.inputs, *graph.outputs):
        if not tensor.shape:
            raise BuildError(
                f"{path}: {tensor.name} is a scalar and has no batch dimension",
                remedy=_BATCH_REMEDY,
            )
        if isinstance(tensor.shape[0], int):
            raise BuildError(
                f"{path}: the first dimension of {tensor.name} is fixed at {tensor.shape[0]}, so "
                "requests cannot be batched along it",
                remedy=_BATCH_REMEDY,
            )
    batch_dimensions = {tensor.name: _first_dimension(tensor) for tensor in graph.inputs}
    if len({name for name in batch_dimensions.values() if name is not None}) > 1:
        listed = ", ".join(f"{tensor} has {name!r}" for tensor, name in batch_dimensions.items())
        raise BuildError(
            f"{path}: the inputs do not share the batch dimension: {listed}",
            remedy=_BATCH_REMEDY,
        )


def check_not_quantised(graph: OnnxGraph, path: Path) -> None:
    """Raise BuildError if the graph has quantised operators. Quantising again would add errors."""
    standard = graph.operators.get("", frozenset())
    quantised = sorted(standard & _QUANTISED)
    if quantised:
        raise BuildError(
            f"{path}: is quantised already ({', '.join(quantised)})",
            remedy="Give the graph in fp32, or use precision fp32, which serves it unchanged.",
        )


def _first_dimension(tensor: OnnxTensor) -> Dimension:
    return tensor.shape[0] if tensor.shape else None


def tensor_specs(graph: OnnxGraph, *, batched: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return the `tensors` object of the result; -1: variable.

    `batched`: without the batch dimension. Then a tensor of the batch dimension alone, such as a
    classifier's label, has no dims; otherwise a scalar has none.
    """
    sides = {"inputs": graph.inputs, "outputs": graph.outputs}
    return {side: [_spec(tensor, int(batched)) for tensor in sides[side]] for side in sides}


def _spec(tensor: OnnxTensor, first: int) -> dict[str, Any]:
    """Return the description of a tensor with the dimensions from index `first`."""
    sizes = (tensor.shape or ())[first:]
    return {
        "name": tensor.name,
        "data_type": TRITON_TYPES[tensor.element_type],
        "dims": [size if isinstance(size, int) else -1 for size in sizes],
    }


def check_external_data(entries: Sequence[ExternalData], model: Path) -> list[str]:
    """Check that the external weights of `model` are present and whole; return their files.

    Raises:
        BuildError: a file is missing or too short, or its path leads out of the model's folder.
    """
    for entry in entries:
        path = PurePosixPath(entry.location)
        if path.is_absolute() or ".." in path.parts:
            raise BuildError(
                f"{model}: keeps {entry.tensor} in {entry.location}, outside its folder",
                remedy="Save the model again with its data next to it: "
                "onnx.save(model, FILE, save_as_external_data=True).",
            )
        _check_file(entry, model)
    return sorted({entry.location for entry in entries})


def _check_file(entry: ExternalData, model: Path) -> None:
    file = model.parent / entry.location
    if not file.is_file():
        raise BuildError(
            f"{model}: keeps its weights in {entry.location}, which is not next to it",
            remedy=f"Copy {entry.location} into {model.parent}: this model has several files.",
        )
    required_bytes, size = entry.offset + (entry.length or 0), file.stat().st_size
    if size < required_bytes:
        raise BuildError(
            f"{file}: is truncated: {size} bytes are there, and {entry.tensor} ends at "
            f"{required_bytes}",
            remedy="Copy or download the file again and let it finish.",
        )
