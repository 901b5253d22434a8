# SPDX-License-Identifier: Apache-2.0
"""Writes small ONNX graphs; run in the ONNX Runtime builder's environment.

    python onnx_graphs.py FOLDER [NAME...]

Each becomes FOLDER/NAME/model.onnx; all of them without names.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 20, 10


LABELS = ["spam", "ham", "éggs"]


def _input(name: str, kind: int, shape: Sequence[int | str | None] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: Any) -> Any:
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model


def mixed() -> Any:
    """Floats, ids, texts and a sequence: scores, rows of a table, the same text, a mean."""
    random = np.random.default_rng(3)
    return _model(
        [
            helper.make_node("MatMul", ["features", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["scores"]),
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Identity", ["name"], ["same_name"]),
            helper.make_node("ReduceMean", ["sequence", "axis"], ["mean"], keepdims=1),
        ],
        [
            _input("features", TensorProto.FLOAT, ["batch", 16]),
            _input("ids", TensorProto.INT64, ["batch", 2]),
            _input("name", TensorProto.STRING, ["batch", 1]),
            _input("sequence", TensorProto.FLOAT, ["batch", "length"]),
        ],
        [
            _input("scores", TensorProto.FLOAT, ["batch", 5]),
            _input("rows", TensorProto.FLOAT, ["batch", 2, 3]),
            _input("same_name", TensorProto.STRING, ["batch", 1]),
            _input("mean", TensorProto.FLOAT, ["batch", 1]),
        ],
        weights=random.standard_normal((16, 5)).astype(np.float32),
        bias=random.standard_normal(5).astype(np.float32),
        table=random.standard_normal((10, 3)).astype(np.float32),
        axis=np.array([1], dtype=np.int64),
    )


def _copy(x: list[int | str] | None, y: list[int | str] | None, kind: int, op: str = "Abs") -> Any:
    nodes = [helper.make_node(op, ["x"], ["y"])]
    return _model(nodes, [_input("x", kind, x)], [_input("y", kind, y)])


def plain() -> Any:
    """y = |x|: a whole graph in one operator."""
    return _copy(["batch", 3], ["batch", 3], TensorProto.FLOAT)


def negated() -> Any:
    """y = -x: the tensors of `plain`, and other answers."""
    return _copy(["batch", 3], ["batch", 3], TensorProto.FLOAT, "Neg")


def classifier() -> Any:
    """As skl2onnx writes a classifier, with a weight for each row: three tensors [batch]."""
    attributes = {
        "coefficients": np.random.default_rng(7).standard_normal(12).tolist(),
        "intercepts": [0.1, -0.2, 0.0],
        "classlabels_strings": LABELS,
        "multi_class": 1,
        "post_transform": "NONE",
    }
    model = _model(
        [
            helper.make_node(
                "LinearClassifier", ["x"], ["label", "raw"], domain="ai.onnx.ml", **attributes
            ),
            helper.make_node("Softmax", ["raw"], ["probabilities"], axis=1),
            helper.make_node("ReduceMax", ["probabilities", "axis"], ["best"], keepdims=0),
            helper.make_node("Mul", ["best", "weight"], ["score"]),
        ],
        [
            _input("x", TensorProto.FLOAT, ["batch", 4]),
            _input("weight", TensorProto.FLOAT, ["batch"]),
        ],
        [
            _input("label", TensorProto.STRING, ["batch"]),
            _input("probabilities", TensorProto.FLOAT, ["batch", 3]),
            _input("score", TensorProto.FLOAT, ["batch"]),
        ],
        axis=np.array([1], dtype=np.int64),
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


# Sizes and names of the dimensions of a tensor, by axis.
_SIZES, _NAMES = (2, 3, 4, 5), ("a", "b", "c", "d")
_KINDS = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL)


def shapes(first: Sequence[str]) -> list[tuple[str, list[int | str | None]]]:
    """Every shape of rank 0 to 4 with its name: each dimension fixed, named or neither.

    `first`: the kinds of the first dimension; only with `fixed` there are scalars.
    """
    made: list[tuple[str, list[int | str | None]]] = []
    for rank in range(0 if "fixed" in first else 1, len(_SIZES) + 1):
        kinds = [first, *[("fixed", "named", "open")] * (rank - 1)][:rank]
        for chosen in itertools.product(*kinds):
            sizes = [_size(axis, kind) for axis, kind in enumerate(chosen)]
            made.append(("_".join(("x", *chosen)), sizes))
    return made


def _size(axis: int, kind: str) -> int | str | None:
    if kind == "open":
        return None
    return _SIZES[axis] if kind == "fixed" else _NAMES[axis]


def _copies(tensors: list[tuple[str, list[int | str | None]]]) -> Any:
    """Each input as an output, under the name `y...`, in four types."""
    kinds = [_KINDS[at % len(_KINDS)] for at in range(len(tensors))]
    copies = [(name.replace("x", "y", 1), shape) for name, shape in tensors]
    return _model(
        [
            helper.make_node("Identity", [x], [y])
            for (x, _), (y, _) in zip(tensors, copies, strict=True)
        ],
        [_input(name, kind, shape) for kind, (name, shape) in zip(kinds, tensors, strict=True)],
        [_input(name, kind, shape) for kind, (name, shape) in zip(kinds, copies, strict=True)],
    )


def every_shape() -> Any:
    """Every shape of rank 0 to 4."""
    return _copies(shapes(("fixed", "named", "open")))


def every_batch() -> Any:
    """Every shape of rank 1 to 4 that has a batch dimension."""
    return _copies(shapes(("named", "open")))


def scalars() -> Any:
    """Rows, and a threshold and a note without a dimension; so are the sum and the count."""
    return _model(
        [
            helper.make_node("Greater", ["x", "threshold"], ["above"]),
            helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
            helper.make_node("Size", ["x"], ["count"]),
            helper.make_node("Identity", ["note"], ["same_note"]),
        ],
        [
            _input("x", TensorProto.FLOAT, ["n", 3]),
            _input("threshold", TensorProto.FLOAT, []),
            _input("note", TensorProto.STRING, []),
        ],
        [
            _input("above", TensorProto.BOOL, ["n", 3]),
            _input("total", TensorProto.FLOAT, []),
            _input("count", TensorProto.INT64, []),
            _input("same_note", TensorProto.STRING, []),
        ],
    )


def distances() -> Any:
    """Every row of x against every row of y: two first dimensions."""
    return _model(
        [
            helper.make_node("Transpose", ["y"], ["columns"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "columns"], ["z"]),
        ],
        [_input("x", TensorProto.FLOAT, ["n", 3]), _input("y", TensorProto.FLOAT, ["m", 3])],
        [_input("z", TensorProto.FLOAT, ["n", "m"])],
    )


def waveform() -> Any:
    """Samples and their running sum: the only dimension is no batch."""
    return _model(
        [helper.make_node("CumSum", ["x", "axis"], ["y"])],
        [_input("x", TensorProto.FLOAT, ["samples"])],
        [_input("y", TensorProto.FLOAT, ["samples"])],
        axis=np.array(0, dtype=np.int64),
    )


def open_ranks() -> Any:
    """As `classifier`; its outputs have no shape in the file."""
    model = classifier()
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


def zipmap() -> Any:
    """As skl2onnx writes a classifier by default: probabilities as a sequence of maps."""
    model = classifier()
    node = helper.make_node(
        "ZipMap", ["probabilities"], ["maps"], domain="ai.onnx.ml", classlabels_strings=LABELS
    )
    model.graph.node.append(node)
    kind = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    maps = helper.make_value_info("maps", helper.make_sequence_type_proto(kind))
    model.graph.output[1].CopyFrom(maps)
    return model


def categories() -> Any:
    """A text in one of three categories; ONNX Runtime refuses others."""
    node = helper.make_node(
        "OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_strings=LABELS, zeros=0
    )
    inputs = [_input("x", TensorProto.STRING, ["batch", 1])]
    model = _model([node], inputs, [_input("y", TensorProto.FLOAT, ["batch", 1, 3])])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def newer_opset() -> Any:
    """An operator set that no runtime reads yet."""
    model = plain()
    model.opset_import[0].version = 99
    return model


def unknown_rank() -> Any:
    """No shape at all."""
    return _copy(None, None, TensorProto.FLOAT)


def complex_numbers() -> Any:
    """A type that Triton has not."""
    return _copy(["batch", 3], ["batch", 3], TensorProto.COMPLEX64, "Identity")


def fixed_batch() -> Any:
    """Exported for one request at a time."""
    return _copy([1, 3], [1, 3], TensorProto.FLOAT)


def two_batches() -> Any:
    """Inputs that do not share their first dimension."""
    return _model(
        [helper.make_node("MatMul", ["x", "y"], ["z"])],
        [_input("x", TensorProto.FLOAT, ["n", 3]), _input("y", TensorProto.FLOAT, ["m", 3])],
        [_input("z", TensorProto.FLOAT, ["n", 3])],
    )


def summed() -> Any:
    """An output whose first dimension is not the batch, though it says so."""
    return _model(
        [helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=1)],
        [_input("x", TensorProto.FLOAT, ["batch", 3])],
        [_input("y", TensorProto.FLOAT, ["batch", 3])],
        axis=np.array([0], dtype=np.int64),
    )


def custom_operator() -> Any:
    """An operator of somebody's own library."""
    model = plain()
    model.graph.node[0].domain, model.graph.node[0].op_type = "com.acme", "Polish"
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    return model


def external() -> Any:
    """Weights in a file of their own."""
    return _model(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        [_input("x", TensorProto.FLOAT, ["batch", 64])],
        [_input("y", TensorProto.FLOAT, ["batch", 64])],
        weights=np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32),
    )


GRAPHS: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (
        mixed,
        plain,
        negated,
        classifier,
        every_shape,
        every_batch,
        scalars,
        distances,
        waveform,
        open_ranks,
        zipmap,
        categories,
        newer_opset,
        unknown_rank,
        complex_numbers,
        fixed_batch,
        two_batches,
        summed,
        custom_operator,
        external,
    )
}


def main() -> None:
    """Write the graphs that are asked for."""
    for name in sys.argv[2:] or GRAPHS:
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True)
        outside = name == external.__name__
        onnx.save(
            GRAPHS[name](),
            folder / "model.onnx",
            save_as_external_data=outside,
            location="model.onnx.data",
            size_threshold=0,
        )


if __name__ == "__main__":
    main()
