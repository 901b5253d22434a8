# SPDX-License-Identifier: Apache-2.0
"""Dictionaries that stand in a model.py, as far as they are certain to stay as they are written."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tritonctl.checks.model_py.flow import Flow

Entries = Mapping[str, ast.expr]


def entries_of(flow: Flow, node: ast.expr | None) -> Entries | None:
    """What a dictionary has by its keys; None for anything else, or where it may change.

    It stands there itself, or under a name that is given it alone and is only read.
    """
    if isinstance(node, ast.Name):
        node = _value_of(flow, node)
    if isinstance(node, ast.Dict):
        return _written(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        named = {one.arg: one.value for one in node.keywords if one.arg is not None}
        return None if node.args or len(named) < len(node.keywords) else named
    return None


def items_of(flow: Flow, node: ast.expr | None) -> list[ast.expr]:
    """What a list has, under the same conditions; nothing where that is not known."""
    if isinstance(node, ast.Name):
        node = _value_of(flow, node)
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _value_of(flow: Flow, name: ast.Name) -> ast.expr | None:
    function = flow.function(name)
    values = flow.assigned(name.id, function) if function else None
    if function is None or not values or len(values) != 1 or values[0].lineno > name.lineno:
        return None
    uses = (one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == name.id)
    return values[0] if all(_only_reads(flow, use) for use in uses) else None


def _only_reads(flow: Flow, use: ast.Name) -> bool:
    """Whether a use of a name leaves its dictionary or list as it is; methods of others do."""
    around = flow.parent(use)
    if not isinstance(use.ctx, ast.Load) or isinstance(around, ast.For | ast.comprehension):
        return True  # the one assignment, or a loop over it
    if isinstance(around, ast.Subscript):
        return isinstance(around.ctx, ast.Load)
    return isinstance(around, ast.Call) and isinstance(around.func, ast.Attribute)


def _written(node: ast.Dict) -> Entries | None:
    entries: dict[str, ast.expr] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None  # another dictionary's entries, or a key that is worked out
        entries[key.value] = value
    return entries
