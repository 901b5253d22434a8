# SPDX-License-Identifier: Apache-2.0
"""Writes small ONNX graphs; run in the ONNX Runtime builder's environment.

    python onnx_graphs.py FOLDER [NAME...]

Each becomes FOLDER/NAME/model.onnx; all of them without names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 20, 10


def _input(name: str, kind: int, shape: list[int | str] | None) -> Any:
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
        "classlabels_strings": ["spam", "ham", "éggs"],
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
