# SPDX-License-Identifier: Apache-2.0
"""TC354: how Python makes one vector of a text's tokens, against the checkpoint's own files.

sentence-transformers writes modules.json and, in the folder of its module Pooling, config.json:
flags (`pooling_mode_cls_token: true`) or, since its version 5, `pooling_mode`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tritonctl.checks.analysis.file_tree import tree
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.flow import Flow, literal
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import warning
from tritonctl.checks.small_file import UnreadableError, read_small

_MODULES, _LARGEST = "modules.json", 1 << 20
_FLAG = "pooling_mode_"
# What transformers, optimum and sentence-transformers call the states of a text's tokens.
_STATES = ("last_hidden_state", "token_embeddings")
_DEEPEST = 12
_FIRST, _LAST, _LARGEST_VALUE, _MEAN = "first", "last", "largest", "mean"
_CALLED = {
    _FIRST: "takes the state of the first token",
    _LAST: "takes the state of the last token",
    _LARGEST_VALUE: "takes the largest value of all tokens",
    _MEAN: "adds up the states of all tokens",
}
_CALLS = {
    **dict.fromkeys(("mean", "sum", "average", "einsum"), _MEAN),
    **dict.fromkeys(("max", "amax"), _LARGEST_VALUE),
}
_AXIS, _FROM_THE_END = 1, -2  # of tokens, in [texts, tokens, values]


class _Declared(NamedTuple):
    """The pooling that a checkpoint's files name. `file`: which of them, below the repository."""

    modes: tuple[str, ...]
    file: str


@warning(
    "TC354 pooling-of-another-model",
    summary="a text's vector that Python makes otherwise than the checkpoint's modules.json says",
    why="A vector of another pooling has the right shape and length, and finds the wrong texts. "
    "Nothing fails.",
    shows="traffic",
)
def pooling_of_another_model(
    code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    found = list(_poolings(code))
    declared = _declared(model, repository) if found else None
    if declared is None:
        return
    right = {_kind(mode) for mode in declared.modes}
    if right.isdisjoint(kind for kind, _ in found):
        kind, node = found[0]
        yield Hit(
            f"this {_CALLED[kind]}, and {declared.file} says {', '.join(declared.modes)}",
            "pool as the checkpoint was trained, or let tritonctl build it (`task: embedding`)",
            *code.at(node),
        )


def _kind(mode: str) -> str:
    """What it does to the states; a mean may be weighted."""
    return {"cls": _FIRST, "max": _LARGEST_VALUE, "lasttoken": _LAST}.get(mode, _MEAN)


def _poolings(code: PythonSource) -> Iterator[tuple[str, ast.expr]]:
    """Each place where states of tokens become one, by line."""
    if not any(name in code.source.text for name in _STATES):
        return
    flow = Flow.of(code)
    places = [
        (kind, node)
        for node in code.nodes
        if isinstance(node, ast.Subscript | ast.Call) and (kind := _pooled(flow, node))
    ]
    yield from sorted(places, key=lambda place: (place[1].lineno, place[1].col_offset))


def _pooled(flow: Flow, node: ast.Subscript | ast.Call) -> str | None:
    if isinstance(node, ast.Subscript):
        return _taken(node.slice) if _is_states(flow, node.value) else None
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _CALLS:
        return None
    kind = _CALLS[node.func.attr]
    given = [*node.args, *(one.value for one in node.keywords if one.arg in ("axis", "dim"))]
    if _is_states(flow, node.func.value):  # states.mean(1)
        return kind if any(_is_axis(one) for one in given[:1]) else None
    of_states = any(_is_states(flow, one) for one in node.args)
    if node.func.attr == "einsum":
        return kind if of_states else None
    return kind if of_states and any(_is_axis(one) for one in given[1:]) else None


def _is_axis(node: ast.expr) -> bool:
    """Whether it is that of the tokens."""
    return literal(node) in (_AXIS, _FROM_THE_END)


def _taken(index: ast.expr) -> str | None:
    """Which token an index takes: `[:, 0]`, `[:, -1, :]`."""
    if not isinstance(index, ast.Tuple) or len(index.elts) <= _AXIS:
        return None
    rows, token = index.elts[0], literal(index.elts[_AXIS])
    if not isinstance(rows, ast.Slice) or isinstance(token, bool):
        return None
    return {0: _FIRST, -1: _LAST}.get(token) if isinstance(token, int) else None


def _is_states(flow: Flow, node: ast.expr, left: int = _DEEPEST) -> bool:
    """Whether an expression is the states of tokens by the name it has, or masked ones."""
    if _is_named(node):
        return True
    return left > 0 and any(_is_states(flow, one, left - 1) for one in _made_of(flow, node))


def _is_named(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _STATES
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in _STATES
        case ast.Call(func=ast.Attribute(attr="get_input_tensor_by_name"), args=args):
            return any(isinstance(one, ast.Constant) and one.value in _STATES for one in args)
    return False


def _made_of(flow: Flow, node: ast.expr) -> tuple[ast.expr, ...]:
    """What has the same values as an expression, or all of them but those that a mask hides."""
    match node:
        case ast.Name():
            value = flow.only_value(node)
            return () if value is node else (value,)
        case ast.BinOp(op=ast.Mult(), left=one, right=other):
            return (one, other)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            # states.as_numpy(), states.astype(np.float32), np.asarray(states)
            return () if name in _CALLS else (value, *args[:1])
    return ()


def _declared(model: Model, repository: Repository) -> _Declared | None:
    """Of the model's own folder; else what all checkpoints of the repository agree on."""
    if own := _of(model):
        return own[0]
    every = [one for other in repository.models.values() for one in _of(other)]
    return every[0] if len({one.modes for one in every}) == 1 else None


def _of(model: Model) -> tuple[_Declared, ...]:
    return memoized(model, "pooling", lambda: tuple(_read(model)))


def _read(model: Model) -> Iterator[_Declared]:
    """What each modules.json below the model's folder says."""
    for entry in tree(model):
        if entry.is_file and entry.path.name == _MODULES:
            for one in _modules(entry.path):
                place = PurePosixPath(str(one.get("path", "")))
                inside = not place.is_absolute() and ".." not in place.parts
                if not inside or not str(one.get("type")).endswith(".Pooling"):
                    continue
                below = PurePosixPath(entry.place).parent / place / "config.json"
                modes = _modes(_json(entry.path.parent / place / "config.json"))
                if modes:
                    yield _Declared(modes, f"{model.path.name}/{below}")


def _modules(file: Path) -> list[dict[str, Any]]:
    record = _json(file)
    return [one for one in record if isinstance(one, dict)] if isinstance(record, list) else []


def _modes(record: Any) -> tuple[str, ...]:
    if not isinstance(record, dict):
        return ()
    if chosen := record.get("pooling_mode"):
        modes = chosen if isinstance(chosen, list) else [chosen]
        return tuple(str(mode) for mode in modes)
    flags = [key for key, value in record.items() if key.startswith(_FLAG) and value is True]
    return tuple(re.sub("_tokens?$", "", key.removeprefix(_FLAG)) for key in flags)


def _json(file: Path) -> Any:
    """Its content; None where it cannot be read."""
    try:
        return json.loads(read_small(file, _LARGEST))
    except (UnreadableError, ValueError, RecursionError):
        return None
