# SPDX-License-Identifier: Apache-2.0
"""Find how a model.py uses its response senders, from the syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import (
    Function,
    PythonCall,
    PythonSource,
    dotted_name,
    scope_nodes,
)
from tritonctl.checks.repository import Model

Loop = ast.For | ast.AsyncFor | ast.While
FINAL_FLAG = "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
# Modules that cannot send a response: they know nothing of Triton's senders.
_UNRELATED_MODULES = {
    "cupy",
    "numpy",
    "tokenizers",
    "torch",
    "transformers",
    "triton_python_backend_utils",
}


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield each name that a node stores, with the node."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node


def _statement_blocks(function: Function, nodes: Iterable[ast.AST]) -> Iterator[list[ast.stmt]]:
    """Yield the lists of consecutive statements of a function."""
    inner = (node for node in nodes if not isinstance(node, Function | ast.ClassDef))
    for node in (function, *inner):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def is_true(node: ast.expr | None) -> bool:
    """Whether a node is a constant that is true."""
    return isinstance(node, ast.Constant) and bool(node.value)


class SendCall(NamedTuple):
    """A call of `send` on a response sender."""

    call: PythonCall
    function: Function
    name: str  # of the sender, as written
    is_certain: bool  # `function` binds the name to a sender and to nothing else
    is_final: bool  # the call sets the final flag


@dataclass(frozen=True)
class Senders:
    """The response senders of a file and their calls."""

    code: PythonSource

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every function of the file, including methods and nested functions."""
        return tuple(node for node in self.code.nodes if isinstance(node, Function))

    @cached_property
    def sends(self) -> tuple[SendCall, ...]:
        """The calls that send a response, certainly or judging by the sender's name."""
        return tuple(send for function in self.functions for send in self._sends(function))

    def _sends(self, function: Function) -> Iterator[SendCall]:
        calls = memoized(
            self, "calls", lambda: {id(c.node): c for c in self.code.calls_named("send")}
        )
        send_calls = [calls[id(node)] for node in scope_nodes(function) if id(node) in calls]
        senders = self.sender_names(function) if send_calls else frozenset()
        for call in sorted(send_calls, key=lambda item: (item.node.lineno, item.node.col_offset)):
            receiver = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
            if receiver is None:
                continue
            name, is_certain = (
                dotted_name(receiver),
                gets_sender(receiver) or dotted_name(receiver) in senders,
            )
            if is_certain or "sender" in name.rpartition(".")[2].lower():
                yield SendCall(call, function, name, is_certain, self.is_final(call))

    def sender_names(self, function: Function) -> frozenset[str]:
        """Return the names that a function binds to a sender and to nothing else."""
        bindings: dict[str, set[bool]] = {}
        for name, node in bound_names(scope_nodes(function)):
            bindings.setdefault(name, set()).add(id(node) in self._targets)
        return frozenset(name for name, kinds in bindings.items() if kinds == {True})

    def request_by_sender(self, function: Function) -> dict[str, str]:
        """Map the name of each sender in a function to the name of its request."""
        names: dict[str, str] = {}
        for node in scope_nodes(function):
            if isinstance(node, ast.Assign) and gets_sender(node.value):
                assert isinstance(node.value, ast.Call)  # noqa: S101 - for the type checker
                request = dotted_name(node.value.func).rpartition(".")[0]
                names |= {dotted_name(target): request for target in node.targets}
        return names

    @cached_property
    def calls_after_final(self) -> tuple[tuple[str, ast.Call], ...]:
        """The calls on a sender or its request that certainly follow the final flag.

        Each call has the name of the object it is called on.
        """
        finals = {id(send.call.node): send for send in self.sends if send.is_final}
        functions = {id(send.function): send.function for send in finals.values()}
        return tuple(
            use
            for function in functions.values()
            for block in _statement_blocks(function, scope_nodes(function))
            for use in _calls_after_final(block, finals, self.request_by_sender(function))
        )

    @cached_property
    def _targets(self) -> frozenset[int]:
        assigned = (
            n for n in self.code.nodes if isinstance(n, ast.Assign) and gets_sender(n.value)
        )
        return frozenset(id(target) for node in assigned for target in node.targets)

    def is_final(self, call: PythonCall) -> bool:
        """Whether a `send` sets the final flag."""
        flags = call.argument(1, "flags")
        if isinstance(flags, ast.Constant):
            return flags.value == 1
        return flags is not None and dotted_name(flags).rpartition(".")[2] in self._final_names

    @cached_property
    def _final_names(self) -> frozenset[str]:
        final_names = {FINAL_FLAG}
        for node in self.code.nodes:
            if isinstance(node, ast.Assign) and _last_part(node.value) == FINAL_FLAG:
                final_names |= {_last_part(target) for target in node.targets}
        return frozenset(final_names)

    @property
    def may_send_final(self) -> bool:
        """Whether the file or any code it calls may send the final flag."""
        if FINAL_FLAG in self.code.source.text or not self._imports_are_harmless:
            return True
        if any(call.argument(1, "flags") is not None for call in self.code.calls_named("send")):
            return True
        # `partial(sender.send, flags=1)`, or `**options`.
        keywords = (keyword for call in self.code.calls for keyword in call.node.keywords)
        return any(keyword.arg in ("flags", None) for keyword in keywords)

    @cached_property
    def sends_single_response(self) -> bool:
        """Whether each request certainly gets at most one response with tensors."""
        with_tensors = [
            send for send in self.sends if send.call.argument(0, "response") is not None
        ]
        all_certain = all(send.is_certain and resending_loop(send) is None for send in self.sends)
        all_seen = 0 < len(self.sends) == len(self.code.calls_named("send"))
        return all_seen and all_certain and len(with_tensors) <= 1

    @cached_property
    def _imports_are_harmless(self) -> bool:
        """Whether no imported module can use a response sender."""
        harmless_modules = sys.stdlib_module_names | _UNRELATED_MODULES
        for node in self.code.nodes:
            if isinstance(node, ast.ImportFrom) and (
                node.level or _top_module(node.module) not in harmless_modules
            ):
                return False
            if isinstance(node, ast.Import) and any(
                _top_module(a.name) not in harmless_modules for a in node.names
            ):
                return False
        return True


def senders_of(model: Model) -> Senders | None:
    """Return the senders of a model.py; None if it gets none or cannot be read."""
    return memoized(model, "senders", lambda: _senders(model.code))


def _senders(code: PythonSource | None) -> Senders | None:
    return Senders(code) if code is not None and code.calls_named("get_response_sender") else None


def _calls_after_final(
    block: list[ast.stmt], finals: dict[int, SendCall], requests: dict[str, str]
) -> Iterator[tuple[str, ast.Call]]:
    finished_names: set[str] = set()
    for statement in block:
        if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return
        if finished_names:
            yield from (
                (name, call)
                for name, call in _first_method_call(statement)
                if name in finished_names
            )
            finished_names -= {
                name for name, _ in bound_names([statement, *scope_nodes(statement)])
            }
        send = finals.get(id(statement.value)) if isinstance(statement, ast.Expr) else None
        if send is not None:
            finished_names |= {send.name, requests.get(send.name, "")} - {""}


def _first_method_call(statement: ast.stmt) -> Iterator[tuple[str, ast.Call]]:
    """Yield the method call that a statement certainly makes first, with its object's name."""
    expression = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.If | ast.While):
        expression = statement.test
    if isinstance(expression, ast.UnaryOp):
        expression = expression.operand
    if isinstance(expression, ast.Call):
        yield dotted_name(expression.func).rpartition(".")[0], expression


def gets_sender(node: ast.expr) -> bool:
    """Whether an expression is `request.get_response_sender()`."""
    return isinstance(node, ast.Call) and _last_part(node.func) == "get_response_sender"


def _last_part(node: ast.expr) -> str:
    return dotted_name(node).rpartition(".")[2]


def _top_module(module: str | None) -> str:
    return (module or "").partition(".")[0]


def resending_loop(send: SendCall) -> Loop | None:
    """Return the innermost loop that reuses the sender of a call; None without such a loop."""
    if not send.name or "." in send.name:
        return None
    function = send.function
    around = memoized(function, "loops", lambda: _loops_around_calls(function))
    loops = around.get(id(send.call.node), [])
    return next((loop for loop in loops if send.name not in _names_bound_in(loop)), None)


def _loops_around_calls(function: Function) -> dict[int, list[Loop]]:
    """Map the identity of each call to the loops around it, innermost first."""
    around: dict[int, list[Loop]] = {}
    loops = [node for node in scope_nodes(function) if isinstance(node, Loop)]
    for loop in sorted(loops, key=lambda item: -item.lineno):
        for inner in scope_nodes(loop):
            if isinstance(inner, ast.Call):
                around.setdefault(id(inner), []).append(loop)
    return around


def _names_bound_in(loop: Loop) -> set[str]:
    return memoized(loop, "bound", lambda: {name for name, _ in bound_names(scope_nodes(loop))})


def may_leave(loop: Loop) -> bool:
    """Whether a statement in a loop may leave it."""
    exits = ast.Break | ast.Return | ast.Raise
    return any(isinstance(node, exits) for node in scope_nodes(loop))
