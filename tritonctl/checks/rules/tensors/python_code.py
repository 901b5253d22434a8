# SPDX-License-Identifier: Apache-2.0
"""TC220 to TC222: a model.py that the Python backend cannot load or run.

Source: https://github.com/triton-inference-server/python_backend#usage
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Function, PythonSource
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest
from tritonctl.formats.graph_file import is_lfs_pointer

_CLASS = "TritonPythonModel"
# The server's Python may be newer than ours: syntax that only newer versions accept.
_YOUNGER_MESSAGE = re.compile(r"f-string|multiple exception types|too many statically nested")
_YOUNGER_LINE = re.compile(r"\s*(type\s+\w|(async\s+)?(def|class)\s+\w+\s*\[)|.*\bt['\"]")


@error(
    "TC220 invalid-python",
    summary="a model.py that Python cannot parse",
    reason="The backend imports it when it loads the model, and refuses the model for a syntax "
    "error.",
)
def invalid_python(code: PythonSource) -> Iterator[Hit]:
    if code.read_error is None or code.error_span is None or is_lfs_pointer(code.path):
        return
    line = code.source.line(code.source.position(code.error_span.start)[0])
    if not (_YOUNGER_MESSAGE.match(code.read_error) or _YOUNGER_LINE.match(line)):
        yield Hit(
            f"{code.path.name} is not valid Python: {code.read_error}",
            "correct it; `python3 -m py_compile` reports the same",
            code.error_span,
            source=code.source,
        )


@error(
    "TC221 no-model-class",
    summary="a model.py without a class TritonPythonModel",
    reason="The backend instantiates the class of this name and refuses the model without it.",
)
def no_model_class(code: PythonSource, model: Model) -> Iterator[Hit]:
    if code.tree is None or code.model_class is not None:
        return
    if any(_may_bind_class(node) for node in code.nodes):
        return
    classes = [node for node in code.tree.body if isinstance(node, ast.ClassDef)]
    similar_name = suggest(_CLASS, [class_node.name for class_node in classes], cutoff=0.7)
    similar_class = next(
        (class_node for class_node in classes if class_node.name == similar_name), None
    )
    yield Hit(
        f"{code.path.name} has no class {_CLASS}"
        + (f", but {similar_name}" if similar_name else ""),
        f"name the class {_CLASS}",
        code.node_span(similar_class) if similar_class else None,
        source=code.source if similar_class else None,
        relative_path=f"{model.served_version}/{code.path.name}",
    )


def _may_bind_class(node: ast.AST) -> bool:
    """Whether a node may bind the class's name other than by a class definition."""
    match node:
        case ast.ImportFrom():
            return any(
                alias.name == "*" or _CLASS in (alias.name, alias.asname) for alias in node.names
            )
        case ast.Import():
            return any(alias.asname == _CLASS for alias in node.names)
        case ast.ClassDef() | ast.FunctionDef():
            return node.name in (_CLASS, "__getattr__")
        case ast.Name():
            return node.id in (_CLASS, "exec", "globals")
        case ast.Constant():
            return node.value == _CLASS
    return False


@error(
    "TC222 no-execute",
    summary="a TritonPythonModel without the method execute",
    reason="The model is loaded and every request fails.",
    shows="traffic",
)
def no_execute(code: PythonSource) -> Iterator[Hit]:
    model_class = code.model_class
    if (
        model_class is None
        or model_class.bases
        or model_class.keywords
        or model_class.decorator_list
    ):
        return
    if code.method("execute") or any(_names_execute(node) for node in code.nodes):
        return
    names = [node.name for node in model_class.body if isinstance(node, Function)]
    similar_name = suggest("execute", names)
    yield Hit(
        f"{_CLASS} has no method execute" + (f", but {similar_name}" if similar_name else ""),
        "add def execute(self, requests), which returns a response for each of them",
        *code.node_location(model_class),
    )


def _names_execute(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name in ("execute", "__getattr__")
        case ast.Name():
            return node.id == "execute"
        case ast.alias():
            return (node.asname or node.name) in ("execute", "*")
        case ast.Attribute():
            return node.attr == "execute"
        case ast.Constant():
            return node.value == "execute"
    return False
