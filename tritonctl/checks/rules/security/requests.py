# SPDX-License-Identifier: Apache-2.0
"""TC913: what a request says, used as the name of a file.

Only where nothing in between could have looked at it: the text is passed on as it came, within one
function that never tests it.

Source: https://github.com/triton-inference-server/python_backend (requests and their tensors)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.imports import imported
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name
from tritonctl.checks.rule import warning

_SOURCE = "get_input_tensor_by_name"
# Calls and methods that hand a text on as it is, or as part of another.
_PASSING = {
    *("as_numpy", "item", "tolist", "flatten", "ravel", "decode", "str", "bytes", "strip"),
    *("join", "format", "Path", "joinpath", "loads", "get"),
}
_OPENING = {"open", "io.open", "numpy.load", "torch.load", "os.remove", "os.unlink"}
_DEEPEST = 50  # levels of an expression
_METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink"}


@warning(
    "TC913 path-from-request",
    summary="a model.py that opens the file that a request names",
    why="Whoever can send a request reads, or overwrites, any file that the server may.",
)
def paths(code: PythonSource) -> Iterator[Hit]:
    if _SOURCE not in code.source.text:
        return
    opened = {id(call.node): file for call in code.calls if (file := _file(code, call.node))}
    if not opened:
        return
    for function in (node for node in code.nodes if isinstance(node, Function)):
        given = _given(function)
        if not given or _tested(function, given):
            continue
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if id(call) in opened and _comes(opened[id(call)], given):
                yield Hit(
                    "the name of this file is what the request says",
                    "keep to a list of names, or to one folder: resolve() and is_relative_to()",
                    *code.at(call),
                )


def _given(function: Function) -> set[str]:
    """The variables that hold what a request says, as it came."""
    names: set[str] = set()
    nodes = list(ast.walk(function))
    while True:
        new = {name for node in nodes for name in _bound(node, names)} - names
        if not new:
            return names
        names |= new


def _bound(node: ast.AST, given: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Assign) and _comes(node.value, given):
        for target in node.targets:
            yield from _names(target)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        if _comes(node.value, given):
            yield from _names(node.target)
    elif isinstance(node, ast.For | ast.comprehension) and _comes(node.iter, given):
        yield from _names(node.target)


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id


def _comes(node: ast.expr, given: set[str], left: int = _DEEPEST) -> bool:
    """Whether a value is what a request says, or a text with that in it."""
    if isinstance(node, ast.Name):
        return node.id in given
    if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == _SOURCE:
        return True
    return left > 0 and any(_comes(part, given, left - 1) for part in _parts(node))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """What a value is made of, as far as text passes through unseen."""
    if isinstance(node, ast.Call):
        if dotted_name(node.func).rpartition(".")[2] in _PASSING:
            yield from node.args
            if isinstance(node.func, ast.Attribute):
                yield node.func.value
    elif isinstance(node, ast.Subscript | ast.Attribute | ast.FormattedValue):
        # Shapes and sizes are numbers, whatever the request says.
        if getattr(node, "attr", None) not in ("shape", "size", "ndim", "dtype"):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Div | ast.Mod):
        yield from (node.left, node.right)


def _tested(function: Function, given: set[str]) -> bool:
    """Whether anything is asked of them, which may be whether they are allowed."""
    tests = [node.test for node in ast.walk(function) if isinstance(node, _TESTS)]
    return any(
        isinstance(node, ast.Name) and node.id in given for test in tests for node in ast.walk(test)
    )


_TESTS = (ast.If, ast.IfExp, ast.Assert, ast.While)


def _file(code: PythonSource, call: ast.Call) -> ast.expr | None:
    """What a call opens; None where it opens nothing."""
    dotted = dotted_name(call.func)
    first, dot, rest = dotted.partition(".")
    name = imported(code).get(first, first) + dot + rest
    if name in _OPENING:
        return call.args[0] if call.args else None
    method = isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS
    return call.func.value if method and isinstance(call.func, ast.Attribute) else None
