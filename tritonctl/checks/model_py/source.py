# SPDX-License-Identifier: Apache-2.0
"""Read a model.py as a syntax tree, without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tritonctl.checks.small_file import UnreadableError, read_small
from tritonctl.checks.source_span import SourceText, Span

Function = ast.FunctionDef | ast.AsyncFunctionDef

_NESTED_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_CACHE_ATTRIBUTE = "_tritonctl_own_nodes"


class PythonCall(NamedTuple):
    """A call whose callee is a name or an attribute."""

    name: str  # the last part: "Tensor" for `pb_utils.Tensor("A", x)`
    dotted: str  # as written at the call: "pb_utils.Tensor"
    node: ast.Call

    def text(self, position: int, keyword: str | None = None) -> str | None:
        """Return an argument that is a string literal; None if it is anything else or missing."""
        node = self.argument(position, keyword)
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None

    def argument(self, position: int, keyword: str | None = None) -> ast.expr | None:
        """Return an argument by position or by keyword; None if the call does not pass it so."""
        for keyword_node in self.node.keywords:
            if keyword is not None and keyword_node.arg == keyword:
                return keyword_node.value
        positional = self.node.args[: position + 1]
        if len(positional) <= position or any(isinstance(a, ast.Starred) for a in positional):
            return None
        return positional[position]


@dataclass(frozen=True)
class PythonSource:
    """A Python file."""

    path: Path
    source: SourceText
    tree: ast.Module | None = None  # None if the file could not be read or parsed
    read_error: str | None = None  # the reason, without `tree`
    error_span: Span | None = None  # of a syntax error

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, in no particular order."""
        return tuple(ast.walk(self.tree)) if self.tree else ()

    @cached_property
    def calls(self) -> tuple[PythonCall, ...]:
        """All calls whose callee is a name or an attribute, by line."""
        calls = [call for node in self.nodes for call in _calls_in(node)]
        return tuple(sorted(calls, key=lambda call: (call.node.lineno, call.node.col_offset)))

    def calls_named(self, name: str) -> tuple[PythonCall, ...]:
        """Return the calls whose callee has that last name."""
        return tuple(call for call in self.calls if call.name == name)

    @cached_property
    def model_class(self) -> ast.ClassDef | None:
        """The class that the backend instantiates."""
        matches = (
            node
            for node in (self.tree.body if self.tree else ())
            if isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel"
        )
        return next(matches, None)

    def method(self, name: str) -> Function | None:
        """Return a method defined in the model class itself."""
        for node in self.model_class.body if self.model_class else ():
            if isinstance(node, Function) and node.name == name:
                return node
        return None

    def node_span(self, node: ast.expr | ast.stmt) -> Span:
        """Return the span of a node in `source.text`; columns of `ast` count bytes of UTF-8."""
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(start, end)

    def node_location(self, node: ast.expr | ast.stmt) -> tuple[Span, SourceText]:
        """Return the span of a node and the source it refers to."""
        return self.node_span(node), self.source

    def _offset(self, line: int, column: int) -> int:
        start = self.source.line_start(line)
        prefix = self.source.line(line).encode("utf-8", "surrogateescape")[:column]
        return start + len(prefix.decode("utf-8", "surrogateescape"))


def _calls_in(node: ast.AST) -> Iterator[PythonCall]:
    if isinstance(node, ast.Call) and (dotted := dotted_name(node.func)):
        yield PythonCall(dotted.rpartition(".")[2], dotted, node)


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as written; only "c" for `f().c`; "" for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def read_python(path: Path, display_path: str, max_bytes: int) -> PythonSource:
    """Read a Python file of limited size; an error is part of the result."""
    empty = SourceText(display_path, "")
    try:
        content = read_small(path, max_bytes)
    except UnreadableError as error:
        return PythonSource(path, empty, read_error=str(error))
    # Normalise line ends as Python does, so that line numbers agree with those of `ast`.
    text = content.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    source = SourceText(display_path, text)
    try:
        with warnings.catch_warnings(action="ignore"):  # of "\d" and the like: not our concern
            return PythonSource(path, source, ast.parse(content))
    except SyntaxError as error:
        return PythonSource(
            path, source, read_error=error.msg, error_span=_error_span(source, error)
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return PythonSource(path, source, read_error=str(error) or "it is nested too deep")


def _error_span(source: SourceText, error: SyntaxError) -> Span:
    line = min(max(error.lineno or 1, 1), source.text.count("\n") + 1)
    end = source.line_start(line) + len(source.line(line))
    start = min(source.line_start(line) + max((error.offset or 1) - 1, 0), end)
    return Span(start, max(start + 1, end))


def scope_nodes(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes below a node, without the bodies of nested functions and classes."""
    # Cached on the node: rules query the same functions and loops repeatedly.
    cached_nodes: tuple[ast.AST, ...] | None = getattr(node, _CACHE_ATTRIBUTE, None)
    if cached_nodes is None:
        cached_nodes = tuple(_walk_scope(node))
        setattr(node, _CACHE_ATTRIBUTE, cached_nodes)
    return cached_nodes


def _walk_scope(node: ast.AST) -> Iterator[ast.AST]:
    stack = list(ast.iter_child_nodes(node))
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, _NESTED_SCOPES):
            stack += ast.iter_child_nodes(current)
