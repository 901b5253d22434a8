# SPDX-License-Identifier: Apache-2.0
"""What Python models ask of other models (business logic scripting), read off their source.

Source: https://github.com/triton-inference-server/python_backend#business-logic-scripting
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.nesting import models_in, way_back
from tritonctl.checks.model_py.source import Call, Function, PythonSource, own_nodes
from tritonctl.checks.repository import Model, Repository

_SENDING = ("exec", "async_exec")


class BlsCall(NamedTuple):
    """A `pb_utils.InferenceRequest`. Without `model` the name is not written in the source.

    method: of the model class, whose body it stands in; "" elsewhere, as in a function within.
    """

    model: str | None
    call: Call
    method: str


def bls_calls(model: Model) -> tuple[BlsCall, ...]:
    """The requests that a model's code makes, by line; () where it sends none."""
    code = model.code
    if code is None or not code.called("InferenceRequest"):
        return ()
    if not any(code.called(name) for name in _SENDING):
        return ()
    methods = _methods(code)
    return tuple(
        BlsCall(_name(code, call), call, methods.get(id(call.node), ""))
        for call in code.called("InferenceRequest")
    )


def _name(code: PythonSource, call: Call) -> str | None:
    given = call.argument(len(call.node.args), "model_name")
    if isinstance(given, ast.Constant):
        return given.value if isinstance(given.value, str) else None
    if isinstance(given, ast.Name):
        return _constant(code, given.id)
    of_self = isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name)
    return _constant(code, given.attr) if of_self and isinstance(given, ast.Attribute) else None


def _constant(code: PythonSource, name: str) -> str | None:
    """What a variable or attribute is, if it is set once in the file, to a string."""
    stored = [node for node in code.nodes if name in _stored(node)]
    parent = [
        node.value
        for node in code.nodes
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and name in _stored(node.targets[0])
    ]
    if len(stored) != 1 or len(parent) != 1 or not isinstance(parent[0], ast.Constant):
        return None
    value = parent[0].value
    return value if isinstance(value, str) else None


def _stored(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return (node.id,)
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return (node.attr,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    return ()


def _methods(code: PythonSource) -> dict[int, str]:
    """The method whose own body each node stands in, by the node's identity."""
    methods: dict[int, str] = {}
    for method in code.model_class.body if code.model_class else ():
        if isinstance(method, Function):
            methods |= dict.fromkeys(map(id, own_nodes(method)), method.name)
    return methods


def holding_calls(model: Model) -> tuple[BlsCall, ...]:
    """The calls during which the model's instance can do nothing else.

    A decoupled model may hand a request to a thread and be free, so only what stands in its
    `execute` itself counts.
    """
    if model.code is None:
        return ()
    calls = [c for c in bls_calls(model) if c.method not in ("initialize", "finalize")]
    if model.config.message.model_transaction_policy.decoupled:
        if not isinstance(model.code.method("execute"), ast.FunctionDef):
            return ()
        calls = [call for call in calls if call.method == "execute"]
    return tuple(calls)


class CallGraph:
    """Which model waits for which, over BLS and the steps of ensembles."""

    def __init__(self, repository: Repository) -> None:
        self.calls = {name: holding_calls(model) for name, model in repository.models.items()}
        self._steps = {name: models_in(m) for name, m in repository.models.items()}

    def needs(self, name: str) -> Iterator[str]:
        """The models that this one waits for, directly."""
        yield from (call.model for call in self.calls.get(name, ()) if call.model)
        yield from self._steps.get(name, ())

    def way(self, caller: str, end: str) -> list[str]:
        """From a model that calls, over what it waits for, to another or back to itself."""
        for call in self.calls.get(caller, ()):
            if call.model and (path := self.path(call.model, end)):
                return [caller, *path]
        return []

    def path(self, start: str, end: str) -> list[str]:
        """The shortest way from one model to another, both included; [] without one."""
        came: dict[str, str] = {}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            if here == end:
                return way_back(end, start, came)
            for name in self.needs(here):
                if name not in came and name != start:
                    came[name] = here
                    waiting.append(name)
        return []
