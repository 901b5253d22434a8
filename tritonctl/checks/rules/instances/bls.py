# SPDX-License-Identifier: Apache-2.0
"""TC65x: whether what Python models ask of other models can be answered.

Sources: https://github.com/triton-inference-server/python_backend#business-logic-scripting and its
section "Limitation".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.bls import BlsCall, CallGraph, bls_calls
from tritonctl.checks.analysis.declared import inputs, outputs
from tritonctl.checks.analysis.placement import instances
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import PythonSource, own_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.errors import suggest

_SENDING = ("exec", "async_exec")
_OUTSIDE = ("initialize", "finalize")
_BREAK = "break the circle: put what is shared into a separate model"


@error(
    "TC650 waits-for-ever",
    summary="a model whose only instance waits for itself",
    why="While a model waits for another, its instance can do nothing else. A request that "
    "comes back to it never starts, and all of them hang.",
    shows="traffic",
    answers=("python_backend#325", "server#6236"),
)
def deadlock(repository: Repository) -> Iterator[Hit]:
    for model, call, way in _circles(repository):
        if _least(repository, way) == 1:
            message = f"the only instance of a model waits for itself: {' → '.join(way)}"
            yield _hit(model, call, message, _BREAK)


@warning(
    "TC651 goes-round",
    summary="models that call each other in a circle",
    why="It works until there are as many requests at once as instances: then each holds one "
    "and waits for one, and all of them hang.",
    shows="traffic",
    answers=("python_backend#325",),
)
def circle(repository: Repository) -> Iterator[Hit]:
    for model, call, way in _circles(repository):
        least = _least(repository, way)
        if least is not None and least > 1:
            message = (
                f"{' → '.join(way)} goes round: {least} requests at once hold every instance that "
                "their own requests wait for"
            )
            yield _hit(model, call, message, _BREAK)


def _circles(repository: Repository) -> Iterator[tuple[Model, BlsCall, list[str]]]:
    """Each circle once, at the first of its models that calls."""
    graph = CallGraph(repository)
    seen: list[set[str]] = []
    for name, calls in sorted(graph.calls.items()):
        for call in calls:
            if call.model is None or any({name, call.model} <= circle for circle in seen):
                continue
            if path := graph.path(call.model, name):
                seen.append(set(path))
                yield repository.models[name], call, [name, *path]


def _least(repository: Repository, way: list[str]) -> int | None:
    """The fewest instances that a model of the circle has; None where one is unknown."""
    models = [repository.models[name] for name in way]
    counts = [instances(m, repository.target) for m in models if m.backend != "ensemble"]
    known = [count for count in counts if count is not None]
    if 1 in known:
        return 1
    return min(known) if known and len(known) == len(counts) else None


def _hit(model: Model, call: BlsCall, message: str, fix: str) -> Hit:
    code = model.code
    assert code is not None  # noqa: S101 - the call is from it
    return Hit(message, fix, *code.at(call.call.node), model=model)


@warning(
    "TC652 asks-absent-model",
    summary="a request to a model that the repository does not have",
    why="Unless another repository of the same server has it, each such request fails.",
    shows="traffic",
)
def absent_model(model: Model, repository: Repository) -> Iterator[Hit]:
    for call in bls_calls(model):
        if call.model is None or call.model in repository.models:
            continue
        close = suggest(call.model, repository.models)
        yield _hit(
            model,
            call,
            f"{call.model} is not in this repository",
            f"did you mean {close}?" if close else "add it, or serve it from another repository",
        )


@error(
    "TC653 asks-other-tensors",
    summary="a request with an input, or for an output, that the called model does not have",
    why="Triton refuses the request, every time.",
    shows="traffic",
)
def other_tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    for call in bls_calls(model):
        asked = repository.models.get(call.model or "")
        if asked is None:
            continue
        given = [t for t in _input_names(call) if t not in {one.name for one in inputs(asked)}]
        wanted = [t for t in _output_names(call) if t not in {one.name for one in outputs(asked)}]
        # Without any the backend completes them while loading.
        for kind, names, known in (
            ("input", given, [one.name for one in inputs(asked)]),
            ("output", wanted, [one.name for one in outputs(asked)]),
        ):
            if names and known:
                yield _hit(
                    model,
                    call,
                    f"{asked.name} has no {kind} {names[0]}",
                    f"its {kind}s are {', '.join(known)}",
                )


def _output_names(call: BlsCall) -> list[str]:
    listed = call.call.argument(len(call.call.node.args), "requested_output_names")
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    return [
        one.value
        for one in elements
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def _input_names(call: BlsCall) -> list[str]:
    """The names of tensors that are made in the call itself."""
    listed = call.call.argument(len(call.call.node.args), "inputs")
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    made = [one for one in elements if isinstance(one, ast.Call) and _attribute(one) == "Tensor"]
    names = [one.args[0] for one in made if one.args]
    return [n.value for n in names if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _attribute(call: ast.Call) -> str:
    """The name after the last point of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


@error(
    "TC654 asks-while-loading",
    summary="a request to another model in initialize or finalize",
    why="Triton refuses the model: `BLS is only supported during the 'execute' function`.",
)
def outside_execute(model: Model) -> Iterator[Hit]:
    for call in bls_calls(model):
        if call.method in _OUTSIDE and any(_sent_in(model.code, call.method, _SENDING)):
            yield _hit(
                model,
                call,
                f"a request to another model in {call.method}",
                "send it in execute, at the first request if it is needed only once",
            )


def _sent_in(code: PythonSource | None, method: str, names: tuple[str, ...]) -> Iterator[ast.Call]:
    """The calls of exec and the like in a method's own body."""
    function = code.method(method) if code else None
    for node in own_nodes(function) if function else ():
        if isinstance(node, ast.Call) and _attribute(node) in names:
            yield node


@error(
    "TC655 async-exec-without-loop",
    summary="async_exec in an execute that is not a coroutine",
    why="Every request fails: `no running event loop`.",
    shows="traffic",
)
def unawaited(code: PythonSource, model: Model) -> Iterator[Hit]:
    if not isinstance(code.method("execute"), ast.FunctionDef):
        return
    for call in _sent_in(code, "execute", ("async_exec",)) if bls_calls(model) else ():
        yield Hit(
            "async_exec needs a running event loop, which `def execute` does not have",
            "write `async def execute` and await the answers, or call exec",
            *code.at(call),
        )


@advice(
    "TC656 one-at-a-time",
    summary="a model with one instance that waits for several answers one after the other",
    why="Its throughput is one request per sum of all waiting times, however fast the called "
    "models are, and however many instances they have.",
)
def one_at_a_time(code: PythonSource, model: Model, repository: Repository) -> Iterator[Hit]:
    if not bls_calls(model) or instances(model, repository.target) != 1:
        return
    if not isinstance(code.method("execute"), ast.FunctionDef):
        return
    waits = list(_sent_in(code, "execute", ("exec",)))
    if len(waits) > 1:
        first = min(waits, key=lambda call: (call.lineno, call.col_offset))
        yield Hit(
            f"execute waits for {len(waits)} answers one after the other, and no other request "
            "starts meanwhile",
            "make more instances: instance_group { count: 4 kind: KIND_CPU }, or write `async def "
            "execute` and await async_exec for all at once",
            *code.at(first),
        )
