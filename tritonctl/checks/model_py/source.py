# SPDX-License-Identifier: Apache-2.0
"""A model.py read as a syntax tree: what it would do, without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tritonctl.checks.places import Source, Span
from tritonctl.checks.small_file import UnreadableError, read_small

Function = ast.FunctionDef | ast.AsyncFunctionDef

_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_KEPT = "_tritonctl_own_nodes"


class Call(NamedTuple):
    """A call by its last name: `pb_utils.Tensor("A", x)` is "Tensor"; dotted: "pb_utils.Tensor".

    Names bound by `from x import y` are dotted as written at the call.
    """

    name: str
    dotted: str
    node: ast.Call

    def text(self, position: int, keyword: str | None = None) -> str | None:
        """An argument that is a string as it stands; None where it is anything else, or absent."""
        node = self.argument(position, keyword)
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None

    def argument(self, position: int, keyword: str | None = None) -> ast.expr | None:
        """An argument by position, or by keyword; None where it is not given so."""
        for given in self.node.keywords:
            if keyword is not None and given.arg == keyword:
                return given.value
        positional = self.node.args[: position + 1]
        if len(positional) <= position or any(isinstance(a, ast.Starred) for a in positional):
            return None
        return positional[position]


@dataclass(frozen=True)
class PythonSource:
    """A Python file. Without `tree`, `broken` says why it could not be read, `span` where."""

    path: Path
    source: Source
    tree: ast.Module | None = None
    broken: str | None = None
    span: Span | None = None

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything in it, in no particular order."""
        return tuple(ast.walk(self.tree)) if self.tree else ()

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every call whose callee is a name or an attribute, by line."""
        calls = [call for node in self.nodes for call in _call(node)]
        return tuple(sorted(calls, key=lambda call: (call.node.lineno, call.node.col_offset)))

    def called(self, name: str) -> tuple[Call, ...]:
        """The calls of that last name."""
        return tuple(call for call in self.calls if call.name == name)

    @cached_property
    def model_class(self) -> ast.ClassDef | None:
        """The class that the backend makes its instances of."""
        named = (
            node
            for node in (self.tree.body if self.tree else ())
            if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel"
        )
        return next(named, None)

    def method(self, name: str) -> Function | None:
        """A method written in the model class itself."""
        for node in self.model_class.body if self.model_class else ():
            if isinstance(node, Function) and node.name == name:
                return node
        return None

    def place(self, node: ast.expr | ast.stmt) -> Span:
        """Where a node stands in `source.text`; columns of `ast` count bytes of UTF-8."""
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(start, end)

    def at(self, node: ast.expr | ast.stmt) -> tuple[Span, Source]:
        """The place of a node, with the text that it is a place in."""
        return self.place(node), self.source

    def _offset(self, line: int, column: int) -> int:
        start = self.source.start(line)
        before = self.source.line(line).encode("utf-8", "surrogateescape")[:column]
        return start + len(before.decode("utf-8", "surrogateescape"))


def _call(node: ast.AST) -> Iterator[Call]:
    if isinstance(node, ast.Call) and (dotted := dotted_name(node.func)):
        yield Call(dotted.rpartition(".")[2], dotted, node)


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as written; of `f().c` only "c"; "" for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def read_python(path: Path, shown: str, largest: int) -> PythonSource:
    """Read a Python file of at most so many bytes; what stops it is in the result."""
    empty = Source(shown, "")
    try:
        content = read_small(path, largest)
    except UnreadableError as error:
        return PythonSource(path, empty, broken=str(error))
    # Lines end as Python reads them, so that `ast` and we count alike.
    text = content.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    source = Source(shown, text)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" and the like: not ours to tell
            return PythonSource(path, source, ast.parse(content))
    except SyntaxError as error:
        return PythonSource(path, source, broken=error.msg, span=_where(source, error))
    except (ValueError, RecursionError, MemoryError) as error:
        return PythonSource(path, source, broken=str(error) or "it is nested too deep")


def _where(source: Source, error: SyntaxError) -> Span:
    line = min(max(error.lineno or 1, 1), source.text.count("\n") + 1)
    end = source.start(line) + len(source.line(line))
    start = min(source.start(line) + max((error.offset or 1) - 1, 0), end)
    return Span(start, max(start + 1, end))


def own_nodes(node: ast.AST) -> tuple[ast.AST, ...]:
    """What runs in it: nothing of the functions and classes that are defined inside."""
    # Kept on the node: rules ask for the same functions and loops again and again.
    known: tuple[ast.AST, ...] | None = getattr(node, _KEPT, None)
    if known is None:
        known = tuple(_own_nodes(node))
        setattr(node, _KEPT, known)
    return known


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, _APART):
            waiting += ast.iter_child_nodes(one)
