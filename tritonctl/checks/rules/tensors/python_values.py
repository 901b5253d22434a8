# SPDX-License-Identifier: Apache-2.0
"""TC234 and TC236: the types of what a model.py makes, and what it takes texts for.

Source: https://github.com/triton-inference-server/python_backend#usage; TYPE_STRING is an array of
Python's bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.declared import inputs, outputs
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.python_io import makes_requests

_TYPES = {
    "TYPE_BOOL": {"bool"},
    "TYPE_FP16": {"float16"},
    "TYPE_FP32": {"float32"},
    "TYPE_FP64": {"float64"},
    "TYPE_STRING": {"object", "bytes"},
    **{f"TYPE_{s}INT{n}": {f"{s.lower()}int{n}"} for s in ("", "U") for n in (8, 16, 32, 64)},
}
_DEEPEST = 12


@error(
    "TC234 other-element-type",
    summary="an output made of an array of another type than declared",
    why="Clients see one type in the metadata and receive the bytes of another.",
    shows="traffic",
)
def element_type(code: PythonSource, model: Model) -> Iterator[Hit]:
    calls = code.called("Tensor")
    if not calls or makes_requests(code):
        return
    declared = {tensor.name: tensor for tensor in outputs(model)}
    flow = Flow.of(code)
    for call in calls:
        tensor, array = declared.get(call.text(0) or ""), call.argument(1)
        dtype = flow.element_type(array) if tensor and array else None
        if tensor is None or flow.is_conditional(call.node):
            continue
        if dtype and dtype not in _TYPES.get(tensor.dtype, {dtype}):
            made = "numpy's own strings, which Triton has no type for" if dtype == "str" else dtype
            wanted = sorted(_TYPES[tensor.dtype])[-1]
            yield Hit(
                f"{tensor.name} is declared {tensor.dtype} and made of an array of {made}",
                f"convert it: .astype(np.{'object_' if wanted == 'object' else wanted})",
                *code.at(call.node),
            )


@warning(
    "TC236 bytes-as-text",
    summary="str() of an element of a TYPE_STRING input",
    why="The elements are bytes. str(b'yes') is not yes but b'yes', six characters, and the "
    "model is given those.",
)
def bytes_as_text(code: PythonSource, model: Model) -> Iterator[Hit]:
    texts = {one.name for one in inputs(model) if one.dtype == "TYPE_STRING"}
    if not texts or not code.called("get_input_tensor_by_name"):
        return
    flow = Flow.of(code)
    for node in code.nodes:
        value = _made_text_of(node)
        if value is None or flow.is_conditional(node) or flow.is_tested(value):
            continue
        if (name := _input_of(flow, value)) in texts:
            assert isinstance(node, ast.expr)  # noqa: S101 - for the type checker
            yield Hit(
                f"{name} has bytes, of which this makes the text b'…' with the b and the quotes",
                "decode them: .decode()",
                *code.at(value),
            )


def _made_text_of(node: ast.AST) -> ast.expr | None:
    """What `str(x)` or `f"{x}"` makes a text of."""
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and not node.format_spec:
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return node.args[0] if len(node.args) == 1 and not node.keywords else None
    return None


def _input_of(flow: Flow, node: ast.expr) -> str | None:
    """The input that an expression is an element of: `tensor.as_numpy()[0][0]`."""
    picked = False
    for _ in range(_DEEPEST):
        node = flow.only_value(node)
        if isinstance(node, ast.Subscript):
            node, picked = node.value, True
            continue
        callee = node.func if isinstance(node, ast.Call) else None
        if not isinstance(callee, ast.Attribute):
            return None
        if callee.attr == "as_numpy" and picked:
            return _read_name(flow, flow.only_value(callee.value))
        if callee.attr not in ("item", "flatten", "ravel", "reshape", "squeeze"):
            return None
        node, picked = callee.value, picked or callee.attr == "item"
    return None


def _read_name(flow: Flow, node: ast.expr) -> str | None:
    if not flow.calls_backend(node, "get_input_tensor_by_name"):
        return None
    assert isinstance(node, ast.Call)  # noqa: S101 - for the type checker
    name = node.args[1] if len(node.args) > 1 else None
    value = name.value if isinstance(name, ast.Constant) else None
    return value if isinstance(value, str) else None
