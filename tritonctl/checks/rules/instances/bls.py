# SPDX-License-Identifier: Apache-2.0
"""TC65x: calls between models (BLS) that fail or deadlock.

Sources: https://github.com/triton-inference-server/python_backend#business-logic-scripting and its
section "Limitation".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.bls import BlsCall, CallGraph, bls_calls
from tritonctl.checks.analysis.declared import inputs, outputs
from tritonctl.checks.analysis.placement import instance_count
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow
from tritonctl.checks.model_py.source import PythonCall, PythonSource, scope_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.errors import suggest

_EXEC_METHODS = ("exec", "async_exec")
_LOAD_METHODS = ("initialize", "finalize")
# Where a call that gives a tensor has its name.
_NAME_POSITIONS = {
    "Tensor": 0,
    "from_dlpack": 0,
    "get_input_tensor_by_name": 1,
    "get_output_tensor_by_name": 1,
}
_CYCLE_FIX = "break the cycle: move the shared part into a separate model"


@error(
    "TC650 waits-for-ever",
    summary="a model whose only instance waits for itself",
    reason="While a model waits for another, its instance is blocked. A request that returns to it "
    "never starts, and all of them hang.",
    shows="traffic",
    answers=("python_backend#325", "server#6236"),
)
def deadlock(repository: Repository) -> Iterator[Hit]:
    for model, call, cycle in _call_cycles(repository):
        if _min_instances(repository, cycle) == 1:
            message = f"the only instance of a model waits for itself: {' → '.join(cycle)}"
            yield _call_hit(model, call, message, _CYCLE_FIX)


@warning(
    "TC651 goes-round",
    summary="models that call each other in a cycle",
    reason="It works until there are as many concurrent requests as instances. Then each request "
    "holds an instance and waits for another, and all of them hang.",
    shows="traffic",
    answers=("python_backend#325",),
)
def call_cycle(repository: Repository) -> Iterator[Hit]:
    for model, call, cycle in _call_cycles(repository):
        min_count = _min_instances(repository, cycle)
        if min_count == 1:
            continue  # TC650 reports it
        count = "as many concurrent requests as instances" if min_count is None else (
            f"{min_count} concurrent requests"
        )  # fmt: skip
        message = f"{' → '.join(cycle)} is a cycle: {count} hold every instance that they wait for"
        yield _call_hit(model, call, message, _CYCLE_FIX)


def _call_cycles(repository: Repository) -> Iterator[tuple[Model, BlsCall, list[str]]]:
    """Yield each cycle once, at the first of its calling models."""
    graph = CallGraph(repository)
    seen: list[set[str]] = []
    for name, calls in sorted(graph.calls.items()):
        for call in calls:
            if call.model is None or any({name, call.model} <= circle for circle in seen):
                continue
            if path := graph.shortest_path(call.model, name):
                seen.append(set(path))
                yield repository.models[name], call, [name, *path]


def _min_instances(repository: Repository, cycle: list[str]) -> int | None:
    """Return the minimum number of instances of a model in the cycle; None if unknown."""
    models = [repository.models[name] for name in cycle]
    counts = [instance_count(m, repository.target) for m in models if m.backend != "ensemble"]
    known_counts = [count for count in counts if count is not None]
    if 1 in known_counts:
        return 1
    return min(known_counts) if known_counts and len(known_counts) == len(counts) else None


def _call_hit(model: Model, call: BlsCall, message: str, fix: str) -> Hit:
    code = model.code
    assert code is not None  # noqa: S101 - the call is from it
    return Hit(message, fix, *code.node_location(call.call.node), model=model)


@warning(
    "TC652 asks-absent-model",
    summary="a request to a model that the repository does not have",
    reason="Each such request fails, unless another repository of the same server has the model.",
    shows="traffic",
)
def absent_model(model: Model, repository: Repository) -> Iterator[Hit]:
    for call in bls_calls(model):
        if call.model is None or call.model in repository.models:
            continue
        close = suggest(call.model, repository.models)
        yield _call_hit(
            model,
            call,
            f"{call.model} is not in this repository",
            f"did you mean {close}?" if close else "add it, or serve it from another repository",
        )


@error(
    "TC653 asks-other-tensors",
    summary="a request with an input, or for an output, that the called model does not have",
    reason="Triton refuses the request, every time.",
    shows="traffic",
)
def undeclared_tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    for call in bls_calls(model):
        called_model = repository.models.get(call.model or "")
        if called_model is None:
            continue
        unknown_inputs = [
            t
            for t in _input_names(model, call)
            if t not in {tensor.name for tensor in inputs(called_model)}
        ]
        unknown_outputs = [
            t
            for t in _output_names(call)
            if t not in {tensor.name for tensor in outputs(called_model)}
        ]
        # A model without declared tensors is completed on load.
        for kind, names, declared_names in (
            ("input", unknown_inputs, [tensor.name for tensor in inputs(called_model)]),
            ("output", unknown_outputs, [tensor.name for tensor in outputs(called_model)]),
        ):
            if names and declared_names:
                yield _call_hit(
                    model,
                    call,
                    f"{called_model.name} has no {kind} {names[0]}",
                    f"its {kind}s are {', '.join(declared_names)}",
                )


def _output_names(call: BlsCall) -> list[str]:
    listed = call.call.argument(len(call.call.node.args), "requested_output_names")
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    return [
        element.value
        for element in elements
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    ]


def _input_names(model: Model, call: BlsCall) -> list[str]:
    """Return the names of the call's tensors, as far as the code shows where each was made."""
    code = model.code
    assert code is not None  # noqa: S101 - the call is from it
    flow = Flow.for_source(code)
    listed = call.call.argument(len(call.call.node.args), "inputs")
    listed = flow.resolve_name(listed) if listed is not None else None
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    names = [_tensor_name(flow.resolve_name(element)) for element in elements]
    return [name for name in names if name is not None]


def _tensor_name(node: ast.expr) -> str | None:
    """Return the name of a tensor that was made, or taken from a request or a response."""
    position = _NAME_POSITIONS.get(_attribute_name(node)) if isinstance(node, ast.Call) else None
    if position is None or not isinstance(node, ast.Call):
        return None
    return PythonCall("", "", node).text(position, "name")


def _attribute_name(call: ast.Call) -> str:
    """Return the last part of the callee's name."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


@error(
    "TC654 asks-while-loading",
    summary="a request to another model in initialize or finalize",
    reason="Triton refuses the model: `BLS is only supported during the 'execute' function`.",
)
def outside_execute(model: Model) -> Iterator[Hit]:
    for call in bls_calls(model):
        if call.method in _LOAD_METHODS and any(
            _exec_calls(model.code, call.method, _EXEC_METHODS)
        ):
            yield _call_hit(
                model,
                call,
                f"a request to another model in {call.method}",
                "send it in execute, at the first request if once is enough",
            )


def _exec_calls(
    code: PythonSource | None, method: str, names: tuple[str, ...]
) -> Iterator[ast.Call]:
    """Yield the calls of these names in a method's own body."""
    function = code.method(method) if code else None
    for node in scope_nodes(function) if function else ():
        if isinstance(node, ast.Call) and _attribute_name(node) in names:
            yield node


@error(
    "TC655 async-exec-without-loop",
    summary="async_exec in an execute that is not a coroutine",
    reason="Every request fails: `no running event loop`.",
    shows="traffic",
)
def async_exec_without_loop(code: PythonSource, model: Model) -> Iterator[Hit]:
    if not isinstance(code.method("execute"), ast.FunctionDef):
        return
    for call in _exec_calls(code, "execute", ("async_exec",)) if bls_calls(model) else ():
        yield Hit(
            "async_exec needs a running event loop, which `def execute` does not have",
            "write `async def execute` and await the responses, or call exec",
            *code.node_location(call),
        )


@advice(
    "TC657 await-without-concurrency",
    summary="a coroutine `execute` of a model with one instance that is not decoupled",
    reason="An instance takes the next requests when `execute` has returned the responses: while "
    "it awaits another model, no other request starts.",
    answers=("server#7888",),
)
def await_without_concurrency(
    code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    execute = code.method("execute")
    policy = model.config.message.model_transaction_policy
    if not isinstance(execute, ast.AsyncFunctionDef) or policy.decoupled:
        return
    if not bls_calls(model) or instance_count(model, repository.target) != 1:
        return
    if any(isinstance(node, ast.Await) for node in scope_nodes(execute)):
        yield Hit(
            "requests run one after the other: the only instance is busy while `execute` awaits",
            "add instances: instance_group { count: 4 kind: KIND_CPU }, or make the model "
            "decoupled and answer with response senders",
            *code.node_location(execute),
        )


@advice(
    "TC656 one-at-a-time",
    summary="a model with one instance that waits for several responses one after the other",
    reason="Its throughput is one request per sum of all waiting times, whatever the number of "
    "instances of the called models.",
)
def one_at_a_time(code: PythonSource, model: Model, repository: Repository) -> Iterator[Hit]:
    if not bls_calls(model) or instance_count(model, repository.target) != 1:
        return
    if not isinstance(code.method("execute"), ast.FunctionDef):
        return
    waits = list(_exec_calls(code, "execute", ("exec",)))
    if len(waits) > 1:
        first = min(waits, key=lambda call: (call.lineno, call.col_offset))
        yield Hit(
            f"execute waits for {len(waits)} responses one after the other, and no other request "
            "starts meanwhile",
            "add instances: instance_group { count: 4 kind: KIND_CPU }, or write `async def "
            "execute` and await async_exec for all at once",
            *code.node_location(first),
        )
