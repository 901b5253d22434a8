# SPDX-License-Identifier: Apache-2.0
"""Read dictionary and list literals of a model.py that certainly stay unchanged."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tritonctl.checks.model_py.flow import Flow

Entries = Mapping[str, ast.expr]


def dictionary_entries(flow: Flow, node: ast.expr | None) -> Entries | None:
    """Return the entries of a dictionary; None for anything else, or if it may change.

    The node is the dictionary itself, or a name that is assigned it once and is only read.
    """
    if isinstance(node, ast.Name):
        node = _assigned_value(flow, node)
    if isinstance(node, ast.Dict):
        return _literal_entries(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        values_by_keyword = {
            keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None
        }
        return (
            None if node.args or len(values_by_keyword) < len(node.keywords) else values_by_keyword
        )
    return None


def sequence_items(flow: Flow, node: ast.expr | None) -> list[ast.expr]:
    """Return the elements of a list under the same conditions; [] if unknown."""
    if isinstance(node, ast.Name):
        node = _assigned_value(flow, node)
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _assigned_value(flow: Flow, name: ast.Name) -> ast.expr | None:
    function = flow.function(name)
    values = flow.assigned_values(name.id, function) if function else None
    if function is None or not values or len(values) != 1 or values[0].lineno > name.lineno:
        return None
    uses = (
        node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name.id
    )
    return values[0] if all(_is_read_only_use(flow, use) for use in uses) else None


def _is_read_only_use(flow: Flow, use: ast.Name) -> bool:
    """Whether a use of a name leaves its dictionary or list unchanged.

    Passing it to a method of another object counts as unchanged.
    """
    parent = flow.parent(use)
    if not isinstance(use.ctx, ast.Load) or isinstance(parent, ast.For | ast.comprehension):
        return True  # the only assignment, or a loop over it
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute)


def _literal_entries(node: ast.Dict) -> Entries | None:
    entries: dict[str, ast.expr] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None  # entries of another dictionary, or a computed key
        entries[key.value] = value
    return entries
