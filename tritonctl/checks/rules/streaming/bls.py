# SPDX-License-Identifier: Apache-2.0
"""TC421 to TC429: decoupled models that another model's code calls.

Source: https://github.com/triton-inference-server/python_backend#using-bls-with-decoupled-models
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.senders import bound
from tritonctl.checks.analysis.streams import decoupled
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name, own_nodes
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import error, warning

_EXEC = ("exec", "async_exec")


class _Exec(NamedTuple):
    """A call of `exec` or `async_exec`. streams: whether with decoupled=True; None: not known."""

    call: ast.Call
    function: Function
    model: str
    streams: bool | None


def _execs(code: PythonSource) -> Iterator[_Exec]:
    """The calls of models that are named in the code."""
    for function in (node for node in code.nodes if isinstance(node, Function)):
        requests = dict(_requests(function))
        for node in own_nodes(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of = node.func.value
            name = _model_name(of) or (requests.get(of.id) if isinstance(of, ast.Name) else None)
            if node.func.attr in _EXEC and name:
                yield _Exec(node, function, name, _streams(node))


def _requests(function: Function) -> Iterator[tuple[str, str]]:
    """The names that are bound once, to an InferenceRequest with a model's name."""
    bindings = [name for name, _ in bound(own_nodes(function))]
    for node in own_nodes(function):
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


def _streams(call: ast.Call) -> bool | None:
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("decoupled", None))]
    if not given:
        return False
    return bool(given[0].value) if isinstance(given[0], ast.Constant) else None


@error(
    "TC421 decoupled-model-called",
    summary="a call from model.py that awaits a single response of a decoupled model",
    why="The Python backend answers `exec` and `async_exec` with an error where the model "
    "called is decoupled and decoupled=True is missing.",
    shows="traffic",
    answers=("server#6003",),
)
def refused_call(code: PythonSource, repository: Repository) -> Iterator[Hit]:
    if not any(code.called(name) for name in _EXEC):
        return
    for one in _execs(code):
        if one.streams is False and decoupled(repository.models.get(one.model), repository):
            yield Hit(
                f"{one.model} is decoupled: this call is answered with an error",
                "call it with decoupled=True, and go through the responses",
                *code.at(one.call),
            )


@warning(
    "TC422 empty-final-response",
    summary="a loop over a decoupled model's responses that does not expect an empty last one",
    why="A decoupled model may end a request with a response that has no outputs: "
    "`get_output_tensor_by_name` returns None, and what is called on it raises.",
    answers=("server#6463", "tensorrtllm_backend#106"),
)
def empty_final(code: PythonSource) -> Iterator[Hit]:
    if not any(code.called(name) for name in _EXEC):
        return
    for function in (node for node in code.nodes if isinstance(node, Function)):
        for loop in own_nodes(function):
            if isinstance(loop, ast.For | ast.AsyncFor) and _over_responses(loop, function):
                yield from _careless(code, loop)


def _over_responses(loop: ast.For | ast.AsyncFor, function: Function) -> bool:
    if _is_stream(loop.iter):
        return True
    if not isinstance(loop.iter, ast.Name):
        return False
    name = loop.iter.id
    values = [
        node.value
        for node in own_nodes(function)
        if isinstance(node, ast.Assign) and [dotted_name(one) for one in node.targets] == [name]
    ]
    bindings = [one for one, _ in bound(own_nodes(function)) if one == name]
    return len(bindings) == 1 and len(values) == 1 and _is_stream(values[0])


def _is_stream(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _EXEC and _streams(call) is True


def _careless(code: PythonSource, loop: ast.For | ast.AsyncFor) -> Iterator[Hit]:
    response = dotted_name(loop.target)
    nodes = list(own_nodes(loop))
    careful = any(isinstance(node, ast.Try) for node in nodes) or any(
        isinstance(node, ast.Attribute) and node.attr == "output_tensors" for node in nodes
    )
    for node in nodes if response and not careful else ():
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(of, ast.Call) and _output_of(of) == response:
            yield Hit(
                "the last response may be empty, and this is None then",
                f"skip a response without outputs: `if not {response}.output_tensors(): continue`",
                *code.at(of),
            )


def _output_of(call: ast.Call) -> str | None:
    """The response whose output `get_output_tensor_by_name` takes."""
    if dotted_name(call.func).rpartition(".")[2] != "get_output_tensor_by_name" or not call.args:
        return None
    return dotted_name(call.args[0])
