# SPDX-License-Identifier: Apache-2.0
"""TC244: names that a model.py defines nowhere, where it runs when the model is loaded.

Each example tried on tritonserver 2.51. Only what surely runs is judged.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tritonctl.checks.analysis.completion import METHOD, completing
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow
from tritonctl.checks.model_py.source import Function, PythonSource, own_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error
from tritonctl.errors import suggest

_LOADING = ("__init__", "initialize", METHOD)
# With one of these, names may come from anywhere.
_MAKE_NAMES = {"exec", "eval", "globals", "vars", "locals", "setattr"}
_COMPOUND = (ast.If, ast.Try, ast.For, ast.While, ast.With, ast.Match, ast.ClassDef, Function)
# What is in these may never be looked up; nor may annotations.
_MAYBE = (ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Fields of syntax trees that hold a name which is bound.
_BINDING = ("name", "asname", "arg", "rest")


@error(
    "TC244 undefined-name",
    summary="a name that model.py defines nowhere, used where the model is loaded",
    why="Importing model.py, auto_complete_config and initialize are part of loading: a NameError "
    "refuses the model.",
)
def undefined_name(code: PythonSource, model: Model, repository: Repository) -> Iterator[Hit]:
    known = _defined(code)
    for node in _looked_up(code, completing(model, repository) is not None) if known else ():
        if node.id not in known and not hasattr(builtins, node.id):
            near = suggest(node.id, known)
            yield Hit(
                f"{code.path.name} defines no {node.id}",
                f"did you mean {near}?" if near else f"import or define {node.id}",
                *code.at(node),
            )


def _defined(code: PythonSource) -> set[str]:
    """The names that are bound anywhere in the file; none where any may be."""
    names = {name for node in code.nodes for name in _bound(node)}
    makes = any(isinstance(node, ast.Name) and node.id in _MAKE_NAMES for node in code.nodes)
    return set() if makes or "*" in names else names


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node binds, in whatever scope; `import a.b` binds `a`."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    for field in _BINDING:
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield name.partition(".")[0]


def _looked_up(code: PythonSource, completes: bool) -> Iterator[ast.Name]:
    """The names that are surely looked up when the model is loaded, module names aside."""
    flow = Flow.of(code)
    for statement in code.tree.body if code.tree else ():
        if not isinstance(statement, _COMPOUND):
            yield from (node for node in _names(statement) if _always(flow, node, statement))
    for name in _LOADING:
        method = code.method(name)
        if method is not None and (completes or name != METHOD):
            for node in (one for statement in method.body for one in _names(statement)):
                if flow.surely_runs(node, method) and not flow.may_fail(node):
                    yield node


def _names(statement: ast.stmt) -> Iterator[ast.Name]:
    """The names that it reads. Those with two underscores are the module's own."""
    nodes = own_nodes(statement) if not isinstance(statement, ast.AnnAssign) else ()
    for node in nodes:
        match node:
            case ast.Name(ctx=ast.Load()) if not node.id.startswith("__"):
                yield node


def _always(flow: Flow, node: ast.AST, statement: ast.stmt) -> bool:
    while node is not statement:
        above = flow.parent(node)
        if above is None or isinstance(above, _MAYBE):
            return False
        node = above
    return True
