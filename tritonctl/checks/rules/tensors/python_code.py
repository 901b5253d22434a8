# SPDX-License-Identifier: Apache-2.0
"""TC220 to TC222: whether a model.py is something that the Python backend can load.

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
from tritonctl.formats.graph_file import is_pointer

_CLASS = "TritonPythonModel"
# Which server runs the file is unknown, and its Python may be younger than ours.
_YOUNGER_MESSAGE = re.compile(r"f-string|multiple exception types|too many statically nested")
_YOUNGER_LINE = re.compile(r"\s*(type\s+\w|(async\s+)?(def|class)\s+\w+\s*\[)|.*\bt['\"]")


@error(
    "TC220 invalid-python",
    summary="a model.py that Python cannot parse",
    why="The backend imports it when the model is loaded; a syntax error refuses the model.",
)
def syntax(code: PythonSource) -> Iterator[Hit]:
    if code.broken is None or code.span is None or is_pointer(code.path):
        return
    line = code.source.line(code.source.position(code.span.start)[0])
    if not (_YOUNGER_MESSAGE.match(code.broken) or _YOUNGER_LINE.match(line)):
        yield Hit(
            f"{code.path.name} is not valid Python: {code.broken}",
            "correct it; `python3 -m py_compile` reports the same",
            code.span,
            source=code.source,
        )


@error(
    "TC221 no-model-class",
    summary="a model.py without a class TritonPythonModel",
    why="The backend makes its instances from the class of this name and refuses the model "
    "without.",
)
def no_class(code: PythonSource, model: Model) -> Iterator[Hit]:
    if code.tree is None or code.model_class is not None:
        return
    if any(_may_make(node) for node in code.nodes):
        return
    classes = [node for node in code.tree.body if isinstance(node, ast.ClassDef)]
    near = suggest(_CLASS, [one.name for one in classes], likeness=0.7)
    named = next((one for one in classes if one.name == near), None)
    yield Hit(
        f"{code.path.name} has no class {_CLASS}" + (f", but {near}" if near else ""),
        f"call the class {_CLASS}",
        code.place(named) if named else None,
        source=code.source if named else None,
        place=f"{model.served_version}/{code.path.name}",
    )


def _may_make(node: ast.AST) -> bool:
    """Whether a node could bind the class's name in a way other than a plain class."""
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
    why="The model is loaded and every request fails.",
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
    near = suggest("execute", names)
    yield Hit(
        f"{_CLASS} has no method execute" + (f", but {near}" if near else ""),
        "add def execute(self, requests), which returns a response for each of them",
        *code.at(model_class),
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
