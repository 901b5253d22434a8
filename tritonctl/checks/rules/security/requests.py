# SPDX-License-Identifier: Apache-2.0
"""TC913: a request's text used as a file name.

The rule reports only text that reaches the call unchanged and untested within one function.

Source: https://github.com/triton-inference-server/python_backend (requests and their tensors)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import imported_names
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name
from tritonctl.checks.rule import warning

_INPUT_READER = "get_input_tensor_by_name"
# Calls and methods that pass a text on unchanged, or as part of another text.
_PASSING_CALLS = {
    *("as_numpy", "item", "tolist", "flatten", "ravel", "decode", "str", "bytes", "strip"),
    *("join", "format", "Path", "joinpath", "loads", "get"),
}
_OPENING_CALLS = {"open", "io.open", "numpy.load", "torch.load", "os.remove", "os.unlink"}
_MAX_DEPTH = 50  # levels of an expression
_OPENING_METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink"}


@warning(
    "TC913 path-from-request",
    summary="a model.py that opens a file named by a request",
    reason="Any client can read or overwrite every file that the server may access.",
)
def path_from_request(code: PythonSource) -> Iterator[Hit]:
    if _INPUT_READER not in code.source.text:
        return
    path_by_call = {
        id(call.node): file for call in code.calls if (file := _opened_path(code, call.node))
    }
    if not path_by_call:
        return
    for function in (node for node in code.nodes if isinstance(node, Function)):
        request_names = _request_names(function)
        if not request_names or _is_tested(function, request_names):
            continue
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if id(call) in path_by_call and _is_from_request(path_by_call[id(call)], request_names):
                yield Hit(
                    "the request determines the name of this file",
                    "allow only listed names, or one folder: resolve() and is_relative_to()",
                    *code.node_location(call),
                )


def _request_names(function: Function) -> set[str]:
    """Return the names of the variables that hold unchanged text of a request."""
    names: set[str] = set()
    nodes = list(ast.walk(function))
    while True:
        new = {name for node in nodes for name in _newly_bound_names(node, names)} - names
        if not new:
            return names
        names |= new


def _newly_bound_names(node: ast.AST, request_names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Assign) and _is_from_request(node.value, request_names):
        for target in node.targets:
            yield from _names(target)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        if _is_from_request(node.value, request_names):
            yield from _names(node.target)
    elif isinstance(node, ast.For | ast.comprehension) and _is_from_request(
        node.iter, request_names
    ):
        yield from _names(node.target)


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id


def _is_from_request(node: ast.expr, request_names: set[str], depth: int = _MAX_DEPTH) -> bool:
    """Whether a value is text of a request, or contains it."""
    if isinstance(node, ast.Name):
        return node.id in request_names
    if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == _INPUT_READER:
        return True
    return depth > 0 and any(
        _is_from_request(part, request_names, depth - 1) for part in _parts(node)
    )


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands of a value whose text passes through unchanged."""
    if isinstance(node, ast.Call):
        if dotted_name(node.func).rpartition(".")[2] in _PASSING_CALLS:
            yield from node.args
            if isinstance(node.func, ast.Attribute):
                yield node.func.value
    elif isinstance(node, ast.Subscript | ast.Attribute | ast.FormattedValue):
        # Shapes and sizes are always numbers.
        if getattr(node, "attr", None) not in ("shape", "size", "ndim", "dtype"):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div | ast.Mod):
        yield from (node.left, node.right)


def _is_tested(function: Function, request_names: set[str]) -> bool:
    """Whether a condition tests one of the names, possibly for permission."""
    tests = [node.test for node in ast.walk(function) if isinstance(node, _TESTS)]
    return any(
        isinstance(node, ast.Name) and node.id in request_names
        for test in tests
        for node in ast.walk(test)
    )


_TESTS = (ast.If, ast.IfExp, ast.Assert, ast.While)


def _opened_path(code: PythonSource, call: ast.Call) -> ast.expr | None:
    """Return the path that a call opens; None if it opens nothing."""
    dotted = dotted_name(call.func)
    first, dot, tail = dotted.partition(".")
    name = imported_names(code).get(first, first) + dot + tail
    if name in _OPENING_CALLS:
        return call.args[0] if call.args else None
    method = isinstance(call.func, ast.Attribute) and call.func.attr in _OPENING_METHODS
    return call.func.value if method and isinstance(call.func, ast.Attribute) else None
