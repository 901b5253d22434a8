# SPDX-License-Identifier: Apache-2.0
"""Calls of a model.py by the names that the called things have at home."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import Call, PythonSource


class Named(NamedTuple):
    """A call, with the whole name of what is called: `np.load(f)` is "numpy.load"."""

    name: str
    call: Call

    def keyword_is(self, keyword: str, value: object) -> bool:
        """Whether an argument is given by that keyword, as exactly that constant."""
        for given in self.call.node.keywords:
            if given.arg == keyword:
                return isinstance(given.value, ast.Constant) and given.value.value is value
        return False

    def keyword_varies(self, keyword: str) -> bool:
        """Whether it is given as something else than a constant, or may be given by **."""
        return self.spread or any(
            given.arg == keyword and not isinstance(given.value, ast.Constant)
            for given in self.call.node.keywords
        )

    @property
    def spread(self) -> bool:
        """Whether arguments are given by **."""
        return any(given.arg is None for given in self.call.node.keywords)


def imported(code: PythonSource) -> dict[str, str]:
    """What each imported name stands for: {"np": "numpy", "loads": "pickle.loads"}."""
    return memoized(code, "imported", lambda: dict(_imported(code)))


def _imported(code: PythonSource) -> Iterator[tuple[str, str]]:
    for node in code.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                home = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or home, home
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def called(code: PythonSource, names: Collection[str]) -> Iterator[Named]:
    """The calls of imported things of these names, or of builtins, by line."""
    text = code.source.text
    if not any(name.rpartition(".")[2] in text for name in names):
        return
    homes = imported(code)
    for call in code.calls:
        first, dot, rest = call.dotted.partition(".")
        name = homes.get(first, first if not dot else "") + dot + rest
        if name in names:
            yield Named(name, call)
