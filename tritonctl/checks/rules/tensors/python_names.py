# SPDX-License-Identifier: Apache-2.0
"""TC244: undefined names in code that runs when the model is loaded.

Each example was tried on tritonserver 2.51. The rule judges only code that certainly runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tritonctl.checks.analysis.completion import METHOD, auto_complete_method
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow
from tritonctl.checks.model_py.source import Function, PythonSource, scope_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error
from tritonctl.errors import suggest

_LOADING = ("__init__", "initialize", METHOD)
# Code with one of these may define names dynamically.
_MAKE_NAMES = {"exec", "eval", "globals", "vars", "locals", "setattr"}
_COMPOUND = (ast.If, ast.Try, ast.For, ast.While, ast.With, ast.Match, ast.ClassDef, Function)
# Names in these, and in annotations, may never be evaluated.
_CONDITIONAL_NODES = (
    ast.IfExp,
    ast.BoolOp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
# Fields of syntax trees that hold a bound name.
_BINDING = ("name", "asname", "arg", "rest")


@error(
    "TC244 undefined-name",
    summary="a name that model.py defines nowhere, used where the model is loaded",
    reason="Loading runs the import of model.py, auto_complete_config and initialize. For a "
    "NameError the backend refuses the model.",
)
def undefined_name(code: PythonSource, model: Model, repository: Repository) -> Iterator[Hit]:
    defined_names = _defined_names(code)
    for node in (
        _names_read_on_load(code, auto_complete_method(model, repository) is not None)
        if defined_names
        else ()
    ):
        if node.id not in defined_names and not hasattr(builtins, node.id):
            similar_name = suggest(node.id, defined_names)
            yield Hit(
                f"{code.path.name} defines no {node.id}",
                f"did you mean {similar_name}?" if similar_name else f"import or define {node.id}",
                *code.node_location(node),
            )


def undefined_names_in(code: PythonSource, name: str) -> Iterator[Hit]:
    """Yield a hit for each undefined name that a method certainly reads."""
    method, defined_names = code.method(name), _defined_names(code)
    flow = Flow.for_source(code)
    statements = method.body if method is not None and defined_names else ()
    for node in (name_node for statement in statements for name_node in _names_read(statement)):
        if node.id in defined_names or hasattr(builtins, node.id):
            continue
        if method is not None and flow.always_runs(node, method) and not flow.may_fail(node):
            similar_name = suggest(node.id, defined_names)
            yield Hit(
                f"{code.path.name} defines no {node.id}",
                f"did you mean {similar_name}?" if similar_name else f"import or define {node.id}",
                *code.node_location(node),
            )


def _defined_names(code: PythonSource) -> set[str]:
    """Return the names bound anywhere in the file; an empty set if any name may be defined."""
    names = {name for node in code.nodes for name in _bound_names(node)}
    makes_names = any(isinstance(node, ast.Name) and node.id in _MAKE_NAMES for node in code.nodes)
    return set() if makes_names or "*" in names else names


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds in any scope; `import a.b` binds `a`."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    for field in _BINDING:
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield name.partition(".")[0]


def _names_read_on_load(code: PythonSource, completes: bool) -> Iterator[ast.Name]:
    """Yield the names that are certainly read when the model is loaded."""
    flow = Flow.for_source(code)
    for statement in code.tree.body if code.tree else ():
        if not isinstance(statement, _COMPOUND):
            yield from (
                node for node in _names_read(statement) if _is_always_read(flow, node, statement)
            )
    for name in _LOADING:
        method = code.method(name)
        if method is not None and (completes or name != METHOD):
            for node in (
                name_node for statement in method.body for name_node in _names_read(statement)
            ):
                if flow.always_runs(node, method) and not flow.may_fail(node):
                    yield node


def _names_read(statement: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names that a statement reads, without the module's own dunder names."""
    nodes = scope_nodes(statement) if not isinstance(statement, ast.AnnAssign) else ()
    for node in nodes:
        match node:
            case ast.Name(ctx=ast.Load()) if not node.id.startswith("__"):
                yield node


def _is_always_read(flow: Flow, node: ast.AST, statement: ast.stmt) -> bool:
    while node is not statement:
        parent = flow.parent(node)
        if parent is None or isinstance(parent, _CONDITIONAL_NODES):
            return False
        node = parent
    return True
