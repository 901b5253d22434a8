# SPDX-License-Identifier: Apache-2.0
"""TC421 to TC429: decoupled models that another model's code calls.

Source: https://github.com/triton-inference-server/python_backend#using-bls-with-decoupled-models
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.response_senders import bound_names
from tritonctl.checks.analysis.streams import is_decoupled
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name, scope_nodes
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import error, warning

_EXEC_METHODS = ("exec", "async_exec")


class _ExecCall(NamedTuple):
    """A call of `exec` or `async_exec`."""

    call: ast.Call
    function: Function
    model: str
    streams: bool | None  # called with decoupled=True; None if unknown


def _exec_calls(code: PythonSource) -> Iterator[_ExecCall]:
    """Yield the calls of models whose names are in the code."""
    for function in (node for node in code.nodes if isinstance(node, Function)):
        requests = dict(_requests(function))
        for node in scope_nodes(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            receiver = node.func.value
            name = _model_name(receiver) or (
                requests.get(receiver.id) if isinstance(receiver, ast.Name) else None
            )
            if node.func.attr in _EXEC_METHODS and name:
                yield _ExecCall(node, function, name, _is_decoupled_call(node))


def _requests(function: Function) -> Iterator[tuple[str, str]]:
    """Yield each name bound only once, to an InferenceRequest, with the model's name."""
    bindings = [name for name, _ in bound_names(scope_nodes(function))]
    for node in scope_nodes(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name, model = dotted_name(node.targets[0]), _model_name(node.value)
            if model and bindings.count(name) == 1:
                yield name, model


def _model_name(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    if dotted_name(node.func).rpartition(".")[2] != "InferenceRequest":
        return None
    for keyword in node.keywords:
        if keyword.arg == "model_name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


def _is_decoupled_call(call: ast.Call) -> bool | None:
    decoupled_arguments = [
        *call.args[:1],
        *(k.value for k in call.keywords if k.arg in ("decoupled", None)),
    ]
    if not decoupled_arguments:
        return False
    return (
        bool(decoupled_arguments[0].value)
        if isinstance(decoupled_arguments[0], ast.Constant)
        else None
    )


@error(
    "TC421 decoupled-model-called",
    summary="a call from model.py that awaits a single response of a decoupled model",
    reason="`exec` and `async_exec` of a decoupled model without decoupled=True return an error.",
    shows="traffic",
    answers=("server#6003",),
)
def refused_call(code: PythonSource, repository: Repository) -> Iterator[Hit]:
    if not any(code.calls_named(name) for name in _EXEC_METHODS):
        return
    for exec_call in _exec_calls(code):
        if exec_call.streams is False and is_decoupled(
            repository.models.get(exec_call.model), repository
        ):
            yield Hit(
                f"{exec_call.model} is decoupled: this call returns an error",
                "call it with decoupled=True, and iterate over the responses",
                *code.node_location(exec_call.call),
            )


@warning(
    "TC422 empty-final-response",
    summary="a loop over a decoupled model's responses that does not expect an empty last one",
    reason="A decoupled model may finish a request with a response without outputs: "
    "`get_output_tensor_by_name` returns None, and a method call on it raises.",
    answers=("server#6463", "tensorrtllm_backend#106"),
)
def empty_final(code: PythonSource) -> Iterator[Hit]:
    if not any(code.calls_named(name) for name in _EXEC_METHODS):
        return
    for function in (node for node in code.nodes if isinstance(node, Function)):
        for loop in scope_nodes(function):
            if isinstance(loop, ast.For | ast.AsyncFor) and _over_responses(loop, function):
                yield from _unchecked_outputs(code, loop)


def _over_responses(loop: ast.For | ast.AsyncFor, function: Function) -> bool:
    if _is_stream(loop.iter):
        return True
    if not isinstance(loop.iter, ast.Name):
        return False
    name = loop.iter.id
    values = [
        node.value
        for node in scope_nodes(function)
        if isinstance(node, ast.Assign)
        and [dotted_name(bound_name) for bound_name in node.targets] == [name]
    ]
    bindings = [
        bound_name for bound_name, _ in bound_names(scope_nodes(function)) if bound_name == name
    ]
    return len(bindings) == 1 and len(values) == 1 and _is_stream(values[0])


def _is_stream(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _EXEC_METHODS and _is_decoupled_call(call) is True


def _unchecked_outputs(code: PythonSource, loop: ast.For | ast.AsyncFor) -> Iterator[Hit]:
    response = dotted_name(loop.target)
    nodes = list(scope_nodes(loop))
    handles_empty = any(isinstance(node, ast.Try) for node in nodes) or any(
        isinstance(node, ast.Attribute) and node.attr == "output_tensors" for node in nodes
    )
    for node in nodes if response and not handles_empty else ():
        output_call = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(output_call, ast.Call) and _output_of(output_call) == response:
            yield Hit(
                "the last response may be empty, and then this is None",
                f"skip a response without outputs: `if not {response}.output_tensors(): continue`",
                *code.node_location(output_call),
            )


def _output_of(call: ast.Call) -> str | None:
    """Return the name of the response that `get_output_tensor_by_name` reads."""
    if dotted_name(call.func).rpartition(".")[2] != "get_output_tensor_by_name" or not call.args:
        return None
    return dotted_name(call.args[0])
