# SPDX-License-Identifier: Apache-2.0
"""Writes small graphs of text tasks; run in the ONNX Runtime builder's environment.

    python task_graphs.py FOLDER

Each becomes FOLDER/TASK/model.onnx with its weights beside it, weights.npz: a table of token
vectors, pooled by the mask, and one matrix. They honour their mask, and tell a pair's order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx  # noqa: TID251 - this script runs in the builder's environment
from onnx import TensorProto, helper, numpy_helper  # noqa: TID251 - same

OPSET, IR_VERSION = 20, 10
VOCABULARY, WIDTH, LABELS = 500, 16, 3
SLOW_PRODUCTS, SLOW_SIZE = 4, 1000
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"


def _nodes(*nodes: tuple[str, list[str], str] | tuple[str, list[str], str, dict[str, Any]]) -> Any:
    return [
        helper.make_node(op, inputs, [output], **(attributes[0] if attributes else {}))
        for op, inputs, output, *attributes in nodes
    ]


# [batch, length, width] vectors, and the mask as floats of the same rank.
_TOKENS = _nodes(
    ("Gather", ["table", _IDS], "vectors"),
    ("Cast", [_MASK], "mask", {"to": TensorProto.FLOAT}),
    ("Unsqueeze", ["mask", "last"], "mask3"),
)
_MEAN = _nodes(
    ("Mul", ["vectors", "mask3"], "masked"),
    ("ReduceSum", ["masked", "middle"], "sum", {"keepdims": 0}),
    ("ReduceSum", ["mask3", "middle"], "count", {"keepdims": 0}),
    ("Div", ["sum", "count"], "mean"),
)
_UNIT = _nodes(("LpNormalization", ["mean"], "embedding", {"axis": -1, "p": 2}))
_SCORES = _nodes(
    ("MatMul", ["mean", "matrix"], "logits"),
    ("Softmax", ["logits"], "scores", {"axis": -1}),
)
# Types weigh the second text's tokens, so that the order of a pair counts.
_PAIR = _nodes(
    ("Cast", [_TYPES], "types", {"to": TensorProto.FLOAT}),
    ("Unsqueeze", ["types", "last"], "types3"),
    ("Mul", ["vectors", "types3"], "second"),
    ("Add", ["vectors", "second"], "weighed"),
    ("Mul", ["weighed", "mask3"], "masked"),
    ("ReduceSum", ["masked", "middle"], "sum", {"keepdims": 0}),
    ("MatMul", ["sum", "column"], "logit"),
    ("Sigmoid", ["logit"], "score"),
)
_BY_TOKEN = _nodes(
    ("MatMul", ["vectors", "matrix"], "logits"),
    ("Softmax", ["logits"], "token_scores", {"axis": -1}),
)

# As `embedding`, after a fifth of a second of other work that depends on the request.
_SLOWLY = _nodes(
    ("ReduceSum", ["mask3"], "tokens", {"keepdims": 0}),
    ("Mul", ["large", "tokens"], "product0"),
    *(
        ("MatMul", [f"product{index}", "large"], f"product{index + 1}")
        for index in range(SLOW_PRODUCTS)
    ),
    ("ReduceMax", [f"product{SLOW_PRODUCTS}"], "nothing", {"keepdims": 0}),
    ("Add", ["vectors", "nothing"], "same"),
)
_SLOW_MEAN = _nodes(("Mul", ["same", "mask3"], "masked"))

# By task: nodes, graph inputs, the output and its shape.
GRAPHS: dict[str, tuple[list[Any], list[str], str, list[int | str]]] = {
    "embedding": ([*_TOKENS, *_MEAN, *_UNIT], [_IDS, _MASK], "embedding", ["batch", WIDTH]),
    "slow": (
        [*_TOKENS, *_SLOWLY, *_SLOW_MEAN, *_MEAN[1:], *_UNIT],
        [_IDS, _MASK],
        "embedding",
        ["batch", WIDTH],
    ),
    "classification": (
        [*_TOKENS, *_MEAN, *_SCORES],
        [_IDS, _MASK],
        "scores",
        ["batch", LABELS],
    ),
    "rerank": ([*_TOKENS, *_PAIR], [_IDS, _MASK, _TYPES], "score", ["batch", 1]),
    "token_classification": (
        [*_TOKENS, *_BY_TOKEN],
        [_IDS, _MASK],
        "token_scores",
        ["batch", "length", LABELS],
    ),
}


def weights() -> dict[str, Any]:
    """The same each time."""
    random = np.random.default_rng(19)
    table = random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    return {
        "table": table,
        "matrix": random.standard_normal((WIDTH, LABELS)).astype(np.float32),
        "column": random.standard_normal((WIDTH, 1)).astype(np.float32) / 50,
    }


def main() -> None:
    """Write all of them."""
    folder = Path(sys.argv[1])
    axes = {"last": np.array([2]), "middle": np.array([1])}
    large = np.zeros((SLOW_SIZE, SLOW_SIZE), dtype=np.float32)
    known: dict[str, Any] = {**weights(), **axes, "large": large}
    for task, (nodes, inputs, output, shape) in GRAPHS.items():
        used = {name for node in nodes for name in node.input}
        outputs = [output, "logit"] if task == "rerank" else [output]
        graph = helper.make_graph(
            nodes,
            task,
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
                for name in inputs
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            [numpy_helper.from_array(known[name], name) for name in sorted(used & known.keys())],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model)
        (folder / task).mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / task / "model.onnx")
        np.savez(folder / task / "weights.npz", **weights())


if __name__ == "__main__":
    main()
