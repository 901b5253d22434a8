# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor of model.py may get into a response."""

from __future__ import annotations

import ast

from tritonctl.checks.model_py.flow import Flow

# Methods that put a value into the list that they are called on.
_COLLECTING = ("append", "extend", "insert", "add")
_MAX_STEPS = 12


def may_be_returned(flow: Flow, node: ast.expr, steps: int = _MAX_STEPS) -> bool:
    """Whether a value may reach a response; False only if the code certainly drops it.

    A value is dropped if only its attributes are used, as in `tensor.to_dlpack()`, or if the only
    name that has it is never used otherwise.
    """
    parent = flow.parent(node)
    if steps == 0:
        return True
    match parent:
        case ast.Expr() | ast.Attribute() | ast.Compare():
            return False
        case ast.Assign(targets=[ast.Name(id=name)]) if parent.value is node:
            return _name_may_be_returned(flow, name, node, steps - 1)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute)):
            is_collected = attribute in _COLLECTING and node in parent.args
            return not is_collected or _name_may_be_returned(flow, name, node, steps - 1)
        case ast.List() | ast.Tuple() | ast.Starred() | ast.IfExp():
            return may_be_returned(flow, parent, steps - 1)
    return True


def _name_may_be_returned(flow: Flow, name: str, node: ast.expr, steps: int) -> bool:
    function = flow.function(node)
    if function is None or flow.shares_names(function):
        return True
    uses = [use for use in flow.names_in(function).get(name, ()) if isinstance(use.ctx, ast.Load)]
    # A list that collects tensors has a use for each, and one that may return it suffices.
    return any(may_be_returned(flow, use, steps) for use in uses if not _is_collecting(flow, use))


def _is_collecting(flow: Flow, use: ast.Name) -> bool:
    """Whether a use of a list only adds to it, as a statement."""
    attribute = flow.parent(use)
    call = flow.parent(attribute) if isinstance(attribute, ast.Attribute) else None
    return (
        isinstance(attribute, ast.Attribute)
        and attribute.attr in _COLLECTING
        and isinstance(call, ast.Call)
        and isinstance(flow.parent(call), ast.Expr)
    )
