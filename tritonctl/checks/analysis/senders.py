# SPDX-License-Identifier: Apache-2.0
"""How a model.py uses its response senders, read off the syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import Call, Function, PythonSource, dotted_name, own_nodes
from tritonctl.checks.repository import Model

Loop = ast.For | ast.AsyncFor | ast.While
FINAL = "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
# What cannot send a response for the model: it knows nothing of Triton.
_STRANGERS = {
    "cupy",
    "numpy",
    "tokenizers",
    "torch",
    "transformers",
    "triton_python_backend_utils",
}


def bound(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """The names that are bound, with what binds them."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node


def _blocks(function: Function, own: Iterable[ast.AST]) -> Iterator[list[ast.stmt]]:
    """The lists of statements that run one after another."""
    inner = (one for one in own if not isinstance(one, Function | ast.ClassDef))
    for one in (function, *inner):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(one, name, None)
            if isinstance(block, list) and block:
                yield block


def is_true(node: ast.expr | None) -> bool:
    """The constant True, or another that counts as true."""
    return isinstance(node, ast.Constant) and bool(node.value)


class Send(NamedTuple):
    """A call of `send`. name: the sender's, as written; sure: it is bound to one in `function`."""

    call: Call
    function: Function
    name: str
    sure: bool
    final: bool


@dataclass(frozen=True)
class Senders:
    """The senders of a file."""

    code: PythonSource

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every function of the file, methods and inner ones, too."""
        return tuple(node for node in self.code.nodes if isinstance(node, Function))

    @cached_property
    def sends(self) -> tuple[Send, ...]:
        """The calls that certainly, or judging by names, send a response."""
        return tuple(send for function in self.functions for send in self._sends(function))

    def _sends(self, function: Function) -> Iterator[Send]:
        calls = memoized(self, "calls", lambda: {id(c.node): c for c in self.code.called("send")})
        called = [calls[id(node)] for node in own_nodes(function) if id(node) in calls]
        senders = self.names(function) if called else frozenset()
        for call in sorted(called, key=lambda one: (one.node.lineno, one.node.col_offset)):
            of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
            if of is None:
                continue
            name, sure = dotted_name(of), gets_sender(of) or dotted_name(of) in senders
            if sure or "sender" in name.rpartition(".")[2].lower():
                yield Send(call, function, name, sure, self.is_final(call))

    def names(self, function: Function) -> frozenset[str]:
        """The names that are bound to a sender in a function, and to nothing else."""
        bindings: dict[str, set[bool]] = {}
        for name, node in bound(own_nodes(function)):
            bindings.setdefault(name, set()).add(id(node) in self._targets)
        return frozenset(name for name, kinds in bindings.items() if kinds == {True})

    def requests(self, function: Function) -> dict[str, str]:
        """By the name of a sender in a function: the name of its request."""
        names: dict[str, str] = {}
        for node in own_nodes(function):
            if isinstance(node, ast.Assign) and gets_sender(node.value):
                assert isinstance(node.value, ast.Call)  # noqa: S101 - for the type checker
                request = dotted_name(node.value.func).rpartition(".")[0]
                names |= {dotted_name(target): request for target in node.targets}
        return names

    @cached_property
    def after_final(self) -> tuple[tuple[str, ast.Call], ...]:
        """The calls that surely come after a sender's final flag, of it or its request.

        With the name of what is called.
        """
        finals = {id(send.call.node): send for send in self.sends if send.final}
        functions = {id(send.function): send.function for send in finals.values()}
        return tuple(
            use
            for function in functions.values()
            for block in _blocks(function, own_nodes(function))
            for use in _used_after(block, finals, self.requests(function))
        )

    @cached_property
    def _targets(self) -> frozenset[int]:
        assigned = (
            n for n in self.code.nodes if isinstance(n, ast.Assign) and gets_sender(n.value)
        )
        return frozenset(id(target) for node in assigned for target in node.targets)

    def is_final(self, call: Call) -> bool:
        """Whether a `send` says that it is the last one."""
        flags = call.argument(1, "flags")
        if isinstance(flags, ast.Constant):
            return flags.value == 1
        return flags is not None and dotted_name(flags).rpartition(".")[2] in self._final_names

    @cached_property
    def _final_names(self) -> frozenset[str]:
        named = {FINAL}
        for node in self.code.nodes:
            if isinstance(node, ast.Assign) and _last(node.value) == FINAL:
                named |= {_last(target) for target in node.targets}
        return frozenset(named)

    @property
    def may_end(self) -> bool:
        """Whether anything in the file, or that it calls, may send the final flag."""
        if FINAL in self.code.source.text or not self._alone:
            return True
        if any(call.argument(1, "flags") is not None for call in self.code.called("send")):
            return True
        # `partial(sender.send, flags=1)`, or `**options`.
        keywords = (keyword for call in self.code.calls for keyword in call.node.keywords)
        return any(keyword.arg in ("flags", None) for keyword in keywords)

    @cached_property
    def single_response(self) -> bool:
        """Whether a request surely gets one response with tensors at most."""
        with_tensors = [one for one in self.sends if one.call.argument(0, "response") is not None]
        sure = all(one.sure and loop_around(one) is None for one in self.sends)
        seen = 0 < len(self.sends) == len(self.code.called("send"))
        return seen and sure and len(with_tensors) <= 1

    @cached_property
    def _alone(self) -> bool:
        """Whether nothing else that it imports could know what a response sender is."""
        known = sys.stdlib_module_names | _STRANGERS
        for node in self.code.nodes:
            if isinstance(node, ast.ImportFrom) and (node.level or _top(node.module) not in known):
                return False
            if isinstance(node, ast.Import) and any(_top(a.name) not in known for a in node.names):
                return False
        return True


def senders_of(model: Model) -> Senders | None:
    """The senders of a model.py; None where it asks for none, or cannot be read."""
    return memoized(model, "senders", lambda: _senders(model.code))


def _senders(code: PythonSource | None) -> Senders | None:
    return Senders(code) if code is not None and code.called("get_response_sender") else None


def _used_after(
    block: list[ast.stmt], finals: dict[int, Send], requests: dict[str, str]
) -> Iterator[tuple[str, ast.Call]]:
    ended: set[str] = set()
    for statement in block:
        if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return
        if ended:
            yield from ((name, call) for name, call in _uses(statement) if name in ended)
            ended -= {name for name, _ in bound([statement, *own_nodes(statement)])}
        send = finals.get(id(statement.value)) if isinstance(statement, ast.Expr) else None
        if send is not None:
            ended |= {send.name, requests.get(send.name, "")} - {""}


def _uses(statement: ast.stmt) -> Iterator[tuple[str, ast.Call]]:
    """The call of a method that a statement surely makes first, with the name it is called on."""
    expression = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.If | ast.While):
        expression = statement.test
    if isinstance(expression, ast.UnaryOp):
        expression = expression.operand
    if isinstance(expression, ast.Call):
        yield dotted_name(expression.func).rpartition(".")[0], expression


def gets_sender(node: ast.expr) -> bool:
    """`request.get_response_sender()`."""
    return isinstance(node, ast.Call) and _last(node.func) == "get_response_sender"


def _last(node: ast.expr) -> str:
    return dotted_name(node).rpartition(".")[2]


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def loop_around(send: Send) -> Loop | None:
    """The innermost loop that sends again with the same sender; None where none does."""
    if not send.name or "." in send.name:
        return None
    function = send.function
    around = memoized(function, "loops", lambda: _loops_around_calls(function))
    loops = around.get(id(send.call.node), [])
    return next((loop for loop in loops if send.name not in _bound_in(loop)), None)


def _loops_around_calls(function: Function) -> dict[int, list[Loop]]:
    """By the identity of a call: the loops that it stands in, the innermost first."""
    around: dict[int, list[Loop]] = {}
    loops = [node for node in own_nodes(function) if isinstance(node, Loop)]
    for loop in sorted(loops, key=lambda one: -one.lineno):
        for inner in own_nodes(loop):
            if isinstance(inner, ast.Call):
                around.setdefault(id(inner), []).append(loop)
    return around


def _bound_in(loop: Loop) -> set[str]:
    return memoized(loop, "bound", lambda: {name for name, _ in bound(own_nodes(loop))})


def leaves(loop: Loop) -> bool:
    """Whether something in a loop may leave it."""
    exits = ast.Break | ast.Return | ast.Raise
    return any(isinstance(node, exits) for node in own_nodes(loop))
