# SPDX-License-Identifier: Apache-2.0
"""Find the calls to other models (business logic scripting, BLS) in a Python model's source.

Source: https://github.com/triton-inference-server/python_backend#business-logic-scripting
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.nesting import shortest_path, step_models
from tritonctl.checks.model_py.source import Function, PythonCall, PythonSource, scope_nodes
from tritonctl.checks.repository import Model, Repository

_SENDING = ("exec", "async_exec")


class BlsCall(NamedTuple):
    """A `pb_utils.InferenceRequest(...)`."""

    model: str | None  # None: the source does not contain the name
    call: PythonCall
    method: str  # the method of the model class that makes the call; "" for other functions


def bls_calls(model: Model) -> tuple[BlsCall, ...]:
    """Return the requests that a model's code makes, by line; () if it sends none."""
    code = model.code
    if code is None or not code.calls_named("InferenceRequest"):
        return ()
    if not any(code.calls_named(name) for name in _SENDING):
        return ()
    methods = _method_by_node(code)
    return tuple(
        BlsCall(_model_name(code, call), call, methods.get(id(call.node), ""))
        for call in code.calls_named("InferenceRequest")
    )


def _model_name(code: PythonSource, call: PythonCall) -> str | None:
    model_name_node = call.argument(len(call.node.args), "model_name")
    if isinstance(model_name_node, ast.Constant):
        return model_name_node.value if isinstance(model_name_node.value, str) else None
    if isinstance(model_name_node, ast.Name):
        return _string_constant(code, model_name_node.id)
    is_attribute = isinstance(model_name_node, ast.Attribute) and isinstance(
        model_name_node.value, ast.Name
    )
    return (
        _string_constant(code, model_name_node.attr)
        if is_attribute and isinstance(model_name_node, ast.Attribute)
        else None
    )


def _string_constant(code: PythonSource, name: str) -> str | None:
    """Return the value of a variable or attribute that the file sets once, to a string."""
    stored = [node for node in code.nodes if name in _stored_names(node)]
    values = [
        node.value
        for node in code.nodes
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and name in _stored_names(node.targets[0])
    ]
    if len(stored) != 1 or len(values) != 1 or not isinstance(values[0], ast.Constant):
        return None
    value = values[0].value
    return value if isinstance(value, str) else None


def _stored_names(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return (node.id,)
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return (node.attr,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    return ()


def _method_by_node(code: PythonSource) -> dict[int, str]:
    """Map the identity of each node to the name of the method that directly contains it."""
    method_names: dict[int, str] = {}
    for method in code.model_class.body if code.model_class else ():
        if isinstance(method, Function):
            method_names |= dict.fromkeys(map(id, scope_nodes(method)), method.name)
    return method_names


def blocking_calls(model: Model) -> tuple[BlsCall, ...]:
    """Return the calls that block the model's instance.

    A decoupled model may hand a request to a thread. For it, only calls directly in `execute`
    count.
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
    """Edges from each model to the models it waits for: BLS calls and ensemble steps."""

    def __init__(self, repository: Repository) -> None:
        self.calls = {name: blocking_calls(model) for name, model in repository.models.items()}
        self._steps = {name: step_models(m) for name, m in repository.models.items()}

    def dependencies(self, name: str) -> Iterator[str]:
        """Yield the names of the models that a model directly waits for."""
        yield from (call.model for call in self.calls.get(name, ()) if call.model)
        yield from self._steps.get(name, ())

    def wait_path(self, caller: str, end: str) -> list[str]:
        """Return the path from a calling model to `end`, which may be the model itself."""
        for call in self.calls.get(caller, ()):
            if call.model and (path := self.shortest_path(call.model, end)):
                return [caller, *path]
        return []

    def shortest_path(self, start: str, end: str) -> list[str]:
        """Return the shortest path from one model to another, both included; [] if none exists."""
        return [start] if start == end else shortest_path(start, end, self.dependencies)
