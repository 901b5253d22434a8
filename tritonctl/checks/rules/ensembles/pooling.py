# SPDX-License-Identifier: Apache-2.0
"""TC354: pooling of token vectors in Python that differs from the checkpoint's own files.

sentence-transformers writes modules.json and, in the folder of the module Pooling, config.json:
flags (`pooling_mode_cls_token: true`) or, since version 5, `pooling_mode`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tritonctl.checks.analysis.file_tree import tree_entries
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.flow import Flow, literal_value
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.small_file import UnreadableError, read_small

_MODULES, _MAX_BYTES = "modules.json", 1 << 20
_FLAG = "pooling_mode_"
# Names of the token states in transformers, optimum and sentence-transformers.
_STATES = ("last_hidden_state", "token_embeddings")
_MAX_DEPTH = 12
_FIRST, _LAST, _LARGEST_VALUE, _MEAN = "first", "last", "largest", "mean"
_KIND_TEXTS = {
    _FIRST: "takes the state of the first token",
    _LAST: "takes the state of the last token",
    _LARGEST_VALUE: "takes the largest value of all tokens",
    _MEAN: "adds up the states of all tokens",
}
_KIND_BY_CALL = {
    **dict.fromkeys(("mean", "sum", "average", "einsum"), _MEAN),
    **dict.fromkeys(("max", "amax"), _LARGEST_VALUE),
}
_AXIS, _FROM_THE_END = 1, -2  # of tokens, in [texts, tokens, values]


class _DeclaredPooling(NamedTuple):
    """The pooling that a checkpoint's files declare."""

    modes: tuple[str, ...]
    file: str  # the declaring file, below the repository


@warning(
    "TC354 pooling-of-another-model",
    summary="pooling in Python that differs from the checkpoint's modules.json",
    reason="A vector of another pooling has the right shape and length, but finds the wrong texts. "
    "Nothing fails.",
    shows="traffic",
)
def pooling_of_another_model(
    code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    poolings = list(_poolings(code))
    declared = _declared_pooling(model, repository) if poolings else None
    if declared is None:
        return
    declared_kinds = {_kind_of_mode(mode) for mode in declared.modes}
    if declared_kinds.isdisjoint(kind for kind, _ in poolings):
        kind, node = poolings[0]
        yield Hit(
            f"this {_KIND_TEXTS[kind]}, and {declared.file} says {', '.join(declared.modes)}",
            "pool as the checkpoint was trained, or let tritonctl build it (`task: embedding`)",
            *code.node_location(node),
        )


def _kind_of_mode(mode: str) -> str:
    """Return the kind of pooling; a mean may be weighted."""
    return {"cls": _FIRST, "max": _LARGEST_VALUE, "lasttoken": _LAST}.get(mode, _MEAN)


def _poolings(code: PythonSource) -> Iterator[tuple[str, ast.expr]]:
    """Yield each expression that pools token states, by line."""
    if not any(name in code.source.text for name in _STATES):
        return
    flow = Flow.for_source(code)
    places = [
        (kind, node)
        for node in code.nodes
        if isinstance(node, ast.Subscript | ast.Call) and (kind := _pooling_kind(flow, node))
    ]
    yield from sorted(places, key=lambda place: (place[1].lineno, place[1].col_offset))


def _pooling_kind(flow: Flow, node: ast.Subscript | ast.Call) -> str | None:
    if isinstance(node, ast.Subscript):
        return _token_kind(node.slice) if _is_states(flow, node.value) else None
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _KIND_BY_CALL:
        return None
    kind = _KIND_BY_CALL[node.func.attr]
    axis_arguments = [
        *node.args,
        *(argument.value for argument in node.keywords if argument.arg in ("axis", "dim")),
    ]
    if _is_states(flow, node.func.value):  # states.mean(1)
        return kind if any(_is_axis(argument) for argument in axis_arguments[:1]) else None
    of_states = any(_is_states(flow, argument) for argument in node.args)
    if node.func.attr == "einsum":
        return kind if of_states else None
    return (
        kind if of_states and any(_is_axis(argument) for argument in axis_arguments[1:]) else None
    )


def _is_axis(node: ast.expr) -> bool:
    """Whether a node is the number of the token axis."""
    return literal_value(node) in (_AXIS, _FROM_THE_END)


def _token_kind(index: ast.expr) -> str | None:
    """Return the kind of token that an index selects: `[:, 0]`, `[:, -1, :]`."""
    if not isinstance(index, ast.Tuple) or len(index.elts) <= _AXIS:
        return None
    rows, token = index.elts[0], literal_value(index.elts[_AXIS])
    if not isinstance(rows, ast.Slice) or isinstance(token, bool):
        return None
    return {0: _FIRST, -1: _LAST}.get(token) if isinstance(token, int) else None


def _is_states(flow: Flow, node: ast.expr, depth: int = _MAX_DEPTH) -> bool:
    """Whether an expression is the token states by name, possibly masked."""
    if _has_states_name(node):
        return True
    return depth > 0 and any(
        _is_states(flow, operand, depth - 1) for operand in _source_operands(flow, node)
    )


def _has_states_name(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _STATES
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in _STATES
        case ast.Call(func=ast.Attribute(attr="get_input_tensor_by_name"), args=args):
            return any(
                isinstance(argument, ast.Constant) and argument.value in _STATES
                for argument in args
            )
    return False


def _source_operands(flow: Flow, node: ast.expr) -> tuple[ast.expr, ...]:
    """Return the operands that an expression takes its values from, apart from a mask."""
    match node:
        case ast.Name():
            value = flow.resolve_name(node)
            return () if value is node else (value,)
        case ast.BinOp(op=ast.Mult(), left=left_operand, right=right_operand):
            return (left_operand, right_operand)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            # states.as_numpy(), states.astype(np.float32), np.asarray(states)
            return () if name in _KIND_BY_CALL else (value, *args[:1])
    return ()


def _declared_pooling(model: Model, repository: Repository) -> _DeclaredPooling | None:
    """Return the pooling declared in the model's folder, else the one all checkpoints share."""
    if model_pooling := _poolings_below(model):
        return model_pooling[0]
    all_poolings = [
        pooling
        for other_model in repository.models.values()
        for pooling in _poolings_below(other_model)
    ]
    return all_poolings[0] if len({pooling.modes for pooling in all_poolings}) == 1 else None


def _poolings_below(model: Model) -> tuple[_DeclaredPooling, ...]:
    return memoized(model, "pooling", lambda: tuple(_read_poolings(model)))


def _read_poolings(model: Model) -> Iterator[_DeclaredPooling]:
    """Yield the pooling of each modules.json below the model's folder."""
    for entry in tree_entries(model):
        if entry.is_file and entry.path.name == _MODULES:
            for module in _modules(entry.path):
                module_path = PurePosixPath(str(module.get("path", "")))
                is_inside = not module_path.is_absolute() and ".." not in module_path.parts
                if not is_inside or not str(module.get("type")).endswith(".Pooling"):
                    continue
                config_path = (
                    PurePosixPath(entry.relative_path).parent / module_path / "config.json"
                )
                modes = _modes(_read_json(entry.path.parent / module_path / "config.json"))
                if modes:
                    yield _DeclaredPooling(modes, f"{model.path.name}/{config_path}")


def _modules(file: Path) -> list[dict[str, Any]]:
    record = _read_json(file)
    return (
        [module for module in record if isinstance(module, dict)]
        if isinstance(record, list)
        else []
    )


def _modes(record: Any) -> tuple[str, ...]:
    if not isinstance(record, dict):
        return ()
    if configured := record.get("pooling_mode"):
        modes = configured if isinstance(configured, list) else [configured]
        return tuple(str(mode) for mode in modes)
    flags = [key for key, value in record.items() if key.startswith(_FLAG) and value is True]
    return tuple(re.sub("_tokens?$", "", key.removeprefix(_FLAG)) for key in flags)


def _read_json(file: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read."""
    try:
        return json.loads(read_small(file, _MAX_BYTES))
    except (UnreadableError, ValueError, RecursionError):
        return None
