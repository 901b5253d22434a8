# SPDX-License-Identifier: Apache-2.0
"""TC230 to TC235: the tensors that a model.py reads and makes, against those declared.

Source: https://github.com/triton-inference-server/python_backend#usage and what
triton_python_backend_utils says of get_input_tensor_by_name. Only names that stand in the code are
judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tritonctl.checks.analysis.declared import Tensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.dictionaries import entries_of
from tritonctl.checks.model_py.flow import Flow, literal, requests_of
from tritonctl.checks.model_py.source import Call, PythonSource
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.graph import fed_names
from tritonctl.checks.rules.tensors.python_config import reported_by_lookup

_MAKERS = ("Tensor", "from_dlpack")


@error(
    "TC230 absent-input-used",
    summary="code that uses an input which the configuration does not declare",
    why="Requests have only declared inputs. get_input_tensor_by_name returns None for others, "
    "and every request fails: 'NoneType' object has no attribute 'as_numpy'.",
    shows="traffic",
)
def absent_input_used(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    for flow, call in _undeclared_reads(config, code, model):
        if _surely_used(code, flow, call):
            yield _undeclared_read(model, code, call, "every request fails there")


@warning(
    "TC231 absent-input",
    summary="code that looks for an input which the configuration does not declare",
    why="get_input_tensor_by_name returns None for it in every request: the code behind it never "
    "runs.",
)
def absent_input(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    for flow, call in _undeclared_reads(config, code, model):
        # Read under a condition, it may be meant for another configuration of the same code.
        if not flow.is_conditional(call.node) and not _surely_used(code, flow, call):
            yield _undeclared_read(model, code, call, "it is None for every request")


def _undeclared_read(model: Model, code: PythonSource, call: Call, then: str) -> Hit:
    names = ", ".join(tensor.name for tensor in inputs(model)) or "none"
    return Hit(
        f"the input {call.text(1, 'name')} is not declared, so {then}; declared: {names}",
        "declare it in config.pbtxt, or read one of those",
        *code.at(call.node),
    )


def _undeclared_reads(
    config: ConfigMessage, code: PythonSource, model: Model
) -> Iterator[tuple[Flow, Call]]:
    reads = code.called("get_input_tensor_by_name")
    if not reads or not _all_named(inputs(model)) or makes_requests(code):
        return
    declared = fed_names(config, model) | reported_by_lookup(model, "input")
    absent = [call for call in reads if (call.text(1, "name") or "") not in declared]
    absent = [call for call in absent if call.text(1, "name")]
    flow = Flow.of(code)
    added = _added(code, flow, "add_input") if absent else set()
    for call in absent if added is not None else ():
        if call.text(1, "name") not in (added or ()):
            yield flow, call


def _all_named(tensors: tuple[Tensor, ...]) -> bool:
    """Whether at least one is declared, and all have names."""
    return bool(tensors) and all(tensor.name for tensor in tensors)


def makes_requests(code: PythonSource) -> bool:
    """Whether it sends requests to other models, whose tensors have other names."""
    return any(call.name == "InferenceRequest" for call in code.calls)


def _added(code: PythonSource, flow: Flow, how: str) -> set[str] | None:
    """The names that auto_complete_config adds; None where they cannot be read."""
    if any(call.name in ("setattr", "exec") for call in code.calls):
        return None
    names: set[str] = set()
    for call in code.called(how):
        name = literal((entries_of(flow, call.argument(0)) or {}).get("name"))
        if not isinstance(name, str):
            return None
        names.add(name)
    return names


def _surely_used(code: PythonSource, flow: Flow, call: Call) -> bool:
    """Whether every request runs into `None.as_numpy()` because of this read."""
    execute = code.method("execute")
    request = call.argument(0, "inference_request")
    if execute is None or not _is_request(request, requests_of(execute)):
        return False
    return flow.surely_inside(call.node, ast.Attribute, execute)


def _is_request(node: ast.expr | None, requests: str | None) -> bool:
    """A plain name, or `requests[0]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == requests
    return isinstance(node, ast.Name)


@warning(
    "TC232 undeclared-output",
    summary="an output that the code makes and the configuration does not declare",
    why="Triton passes on only what clients ask for, and they can ask only for what is declared.",
)
def undeclared_output(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    reported = reported_by_lookup(model, "output")
    for call in _undeclared_outputs(config, code, model):
        if call.text(0, "name") in reported:
            continue
        names = ", ".join(tensor.name for tensor in outputs(model)) or "none"
        yield Hit(
            f"the output {call.text(0, 'name')} is made and not declared, so no client receives "
            f"it; declared: {names}",
            "declare it in config.pbtxt, or give it one of those names",
            *code.at(call.node),
        )


def _undeclared_outputs(config: ConfigMessage, code: PythonSource, model: Model) -> list[Call]:
    calls = _makers(code)
    if not calls or makes_requests(code) or not _all_named(outputs(model)):
        return []
    declared = {tensor.name for tensor in outputs(model)}
    declared.update(s.output_name for s in config.message.sequence_batching.state)
    absent = [call for call in calls if (call.text(0, "name") or "") not in declared | {""}]
    flow = Flow.of(code)
    added = _added(code, flow, "add_output") if absent else set()
    if added is None:
        return []
    return [
        call
        for call in absent
        if call.text(0, "name") not in added and not flow.is_conditional(call.node)
    ]


def _makers(code: PythonSource) -> list[Call]:
    return [call for call in code.calls if call.name in _MAKERS]


@warning(
    "TC233 output-never-made",
    summary="a declared output that no response of the code contains",
    why="Clients that ask for it get answers without it; an ensemble that uses it fails with "
    "`unexpected deadlock, at least one output is not set`.",
    answers=("server#7280", "server#4260"),
)
def never_made(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    if code.method("execute") is None:
        return
    declared = outputs(model)
    mentioned = {call.text(0, "name") for call in _makers(code)}
    if all(tensor.name in mentioned for tensor in declared) or _undeclared_outputs(
        config, code, model
    ):
        return
    made = _names_in_responses(code)
    for tensor in declared if made else ():
        if made and tensor.name and tensor.name not in made:
            yield Hit(
                f"no response of {code.path.name} has the output {tensor.name}",
                "make it in execute, or do not declare it",
                config.span(*tensor.path, "name"),
            )


def _names_in_responses(code: PythonSource) -> set[str] | None:
    """The names of all tensors in all responses; None where one of them cannot be followed."""
    flow = Flow.of(code)
    names: set[str] = set()
    for call in code.called("InferenceResponse"):
        tensors = call.argument(0, "output_tensors")
        if tensors is None and not any(one.arg is None for one in call.node.keywords):
            continue  # an error and nothing else
        if not isinstance(tensors, ast.List):
            return None
        for node in tensors.elts:
            made = _tensor_names(flow, node)
            if made is None:
                return None
            names.update(made)
    return names


def _tensor_names(flow: Flow, node: ast.expr) -> Iterable[str] | None:
    values: tuple[ast.expr, ...] | None = (node,)
    function = flow.function(node)
    if isinstance(node, ast.Name) and function is not None:
        values = flow.assigned(node.id, function)
    names = [_made_name(value) for value in values or ()]
    return None if None in names or not names else [name for name in names if name]


def _made_name(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    return Call(name, name, node).text(0, "name") if name in _MAKERS else None


@error(
    "TC235 only-the-first-request",
    summary="an execute that answers only requests[0] under dynamic batching",
    why="When two requests meet in a batch, the number of responses is not the number of "
    "requests, and all of them fail. With one client at a time it works.",
    shows="traffic",
)
def only_first(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None or not _brings_several(model):
        return
    requests, flow = requests_of(execute), Flow.of(code)
    uses = [n for n in ast.walk(execute) if isinstance(n, ast.Name) and n.id == requests]
    around = [flow.parent(node) for node in uses]
    subscripts = (node for node in around if isinstance(node, ast.Subscript))
    firsts = [node for node in subscripts if literal(node.slice) == 0]
    if uses and len(firsts) == len(uses):
        yield Hit(
            f"execute reads {requests}[0] and no other request, and dynamic_batching brings up to "
            f"{config.message.max_batch_size} at once",
            f"loop over {requests} and return a response for each",
            *code.at(firsts[0]),
        )


def _brings_several(model: Model) -> bool:
    message = model.config.message
    return (
        message.max_batch_size > 1
        and message.HasField("dynamic_batching")
        and not message.model_transaction_policy.decoupled
    )
