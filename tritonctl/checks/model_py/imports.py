# SPDX-License-Identifier: Apache-2.0
"""Find calls in a model.py by the qualified name of the called function."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonCall, PythonSource


class QualifiedCall(NamedTuple):
    """A call with the qualified name of its callee: `np.load(f)` is "numpy.load"."""

    name: str
    call: PythonCall

    def has_constant_keyword(self, keyword: str, value: object) -> bool:
        """Whether the call has that keyword with exactly that constant."""
        for argument in self.call.node.keywords:
            if argument.arg == keyword:
                return isinstance(argument.value, ast.Constant) and argument.value.value is value
        return False

    def has_variable_keyword(self, keyword: str) -> bool:
        """Whether the call has that keyword with a variable value, or may have it through **."""
        return self.has_spread or any(
            argument.arg == keyword and not isinstance(argument.value, ast.Constant)
            for argument in self.call.node.keywords
        )

    @property
    def has_spread(self) -> bool:
        """Whether the call has a ** argument."""
        return any(argument.arg is None for argument in self.call.node.keywords)


def imported_names(code: PythonSource) -> dict[str, str]:
    """Map each imported name to its qualified name: {"np": "numpy", "loads": "pickle.loads"}."""
    return memoized(code, "imported", lambda: dict(_import_bindings(code)))


def _import_bindings(code: PythonSource) -> Iterator[tuple[str, str]]:
    for node in code.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                qualified_name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or qualified_name, qualified_name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def calls_of(code: PythonSource, names: Collection[str]) -> Iterator[QualifiedCall]:
    """Yield the calls of imported functions or builtins with these qualified names, by line."""
    text = code.source.text
    if not any(name.rpartition(".")[2] in text for name in names):
        return
    qualified_names = imported_names(code)
    for call in code.calls:
        first, dot, tail = call.dotted.partition(".")
        name = qualified_names.get(first, first if not dot else "") + dot + tail
        if name in names:
            yield QualifiedCall(name, call)
