# SPDX-License-Identifier: Apache-2.0
"""TC234 and TC236: wrong element types in a model.py, and bytes used as text.

Source: https://github.com/triton-inference-server/python_backend#usage; TYPE_STRING is an array of
Python bytes.
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
from tritonctl.checks.rules.tensors.python_io import sends_bls_requests

_TYPES = {
    "TYPE_BOOL": {"bool"},
    "TYPE_FP16": {"float16"},
    "TYPE_FP32": {"float32"},
    "TYPE_FP64": {"float64"},
    "TYPE_STRING": {"object", "bytes"},
    **{f"TYPE_{s}INT{n}": {f"{s.lower()}int{n}"} for s in ("", "U") for n in (8, 16, 32, 64)},
}
_MAX_STEPS = 12


@error(
    "TC234 other-element-type",
    summary="an output from an array whose type differs from the declaration",
    reason="The metadata shows clients one type, and they receive the bytes of another.",
    shows="traffic",
)
def element_type(code: PythonSource, model: Model) -> Iterator[Hit]:
    calls = code.calls_named("Tensor")
    if not calls or sends_bls_requests(code):
        return
    declared = {tensor.name: tensor for tensor in outputs(model)}
    flow = Flow.for_source(code)
    for call in calls:
        tensor, array = declared.get(call.text(0) or ""), call.argument(1)
        dtype = flow.element_type(array) if tensor and array else None
        if tensor is None or flow.is_conditional(call.node):
            continue
        if dtype and dtype not in _TYPES.get(tensor.dtype, {dtype}):
            made_type = "numpy strings, for which Triton has no type" if dtype == "str" else dtype
            expected_type = sorted(_TYPES[tensor.dtype])[-1]
            yield Hit(
                f"{tensor.name} is declared {tensor.dtype} and gets an array of {made_type}",
                "convert it: "
                f".astype(np.{'object_' if expected_type == 'object' else expected_type})",
                *code.node_location(call.node),
            )


@warning(
    "TC236 bytes-as-text",
    summary="str() of an element of a TYPE_STRING input",
    reason="The elements are bytes. str(b'yes') is the six characters b'yes', not yes, and the "
    "model gets those.",
)
def bytes_as_text(code: PythonSource, model: Model) -> Iterator[Hit]:
    texts = {tensor.name for tensor in inputs(model) if tensor.dtype == "TYPE_STRING"}
    if not texts or not code.calls_named("get_input_tensor_by_name"):
        return
    flow = Flow.for_source(code)
    for node in code.nodes:
        value = _stringified_value(node)
        if value is None or flow.is_conditional(node) or flow.has_type_test(value):
            continue
        if (name := _input_name(flow, value)) in texts:
            assert isinstance(node, ast.expr)  # noqa: S101 - for the type checker
            yield Hit(
                f"{name} has bytes, which this turns into the text b'…' with the b and the quotes",
                "decode them: .decode()",
                *code.node_location(value),
            )


def _stringified_value(node: ast.AST) -> ast.expr | None:
    """Return the value that `str(x)` or `f"{x}"` converts; None for other nodes."""
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and not node.format_spec:
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return node.args[0] if len(node.args) == 1 and not node.keywords else None
    return None


def _input_name(flow: Flow, node: ast.expr) -> str | None:
    """Return the input that an expression is an element of: `tensor.as_numpy()[0][0]`."""
    is_element = False
    for _ in range(_MAX_STEPS):
        node = flow.resolve_name(node)
        if isinstance(node, ast.Subscript):
            node, is_element = node.value, True
            continue
        callee = node.func if isinstance(node, ast.Call) else None
        if not isinstance(callee, ast.Attribute):
            return None
        if callee.attr == "as_numpy" and is_element:
            return _read_input_name(flow, flow.resolve_name(callee.value))
        if callee.attr not in ("item", "flatten", "ravel", "reshape", "squeeze"):
            return None
        node, is_element = callee.value, is_element or callee.attr == "item"
    return None


def _read_input_name(flow: Flow, node: ast.expr) -> str | None:
    if not flow.is_backend_call(node, "get_input_tensor_by_name"):
        return None
    assert isinstance(node, ast.Call)  # noqa: S101 - for the type checker
    name = node.args[1] if len(node.args) > 1 else None
    value = name.value if isinstance(name, ast.Constant) else None
    return value if isinstance(value, str) else None
