# SPDX-License-Identifier: Apache-2.0
"""TC230 to TC235: tensors that a model.py reads or writes and the configuration does not declare.

Source: https://github.com/triton-inference-server/python_backend#usage and the documentation of
get_input_tensor_by_name in triton_python_backend_utils. The rules judge only names in the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tritonctl.checks.analysis.declared import DeclaredTensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.dictionaries import dictionary_entries
from tritonctl.checks.model_py.flow import Flow, literal_value, requests_parameter
from tritonctl.checks.model_py.returns import may_be_returned
from tritonctl.checks.model_py.source import Function, PythonCall, PythonSource, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.graph import filled_input_names
from tritonctl.checks.rules.tensors.python_config import undeclared_lookup_names

_MAKERS = ("Tensor", "from_dlpack")


@error(
    "TC230 absent-input-used",
    summary="code that uses an input which the configuration does not declare",
    reason="Requests have only declared inputs. get_input_tensor_by_name returns None for others, "
    "and every request fails: 'NoneType' object has no attribute 'as_numpy'.",
    shows="traffic",
)
def absent_input_used(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    for flow, call in _undeclared_reads(config, code, model):
        if is_always_used(code, flow, call):
            yield _undeclared_read_hit(model, code, call, "every request fails there")


@warning(
    "TC231 absent-input",
    summary="code that looks for an input which the configuration does not declare",
    reason="get_input_tensor_by_name returns None for it in every request: the code that depends "
    "on it never runs.",
)
def absent_input(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    for flow, call in _undeclared_reads(config, code, model):
        # A conditional read may be for another configuration of the same code.
        if not flow.is_conditional(call.node) and not is_always_used(code, flow, call):
            yield _undeclared_read_hit(model, code, call, "it is None for every request")


def _undeclared_read_hit(model: Model, code: PythonSource, call: PythonCall, then: str) -> Hit:
    names = ", ".join(tensor.name for tensor in inputs(model)) or "none"
    return Hit(
        f"the input {call.text(1, 'name')} is not declared, so {then}; declared: {names}",
        "declare it in config.pbtxt, or read one of those",
        *code.node_location(call.node),
    )


def _undeclared_reads(
    config: ConfigMessage, code: PythonSource, model: Model
) -> Iterator[tuple[Flow, PythonCall]]:
    reads = code.calls_named("get_input_tensor_by_name")
    if not reads or not _all_named(inputs(model)) or sends_bls_requests(code):
        return
    declared = filled_input_names(config, model) | undeclared_lookup_names(model, "input")
    undeclared_calls = [call for call in reads if (call.text(1, "name") or "") not in declared]
    undeclared_calls = [call for call in undeclared_calls if call.text(1, "name")]
    flow = Flow.for_source(code)
    added_names = _added_names(code, flow, "add_input") if undeclared_calls else set()
    for call in undeclared_calls if added_names is not None else ():
        if call.text(1, "name") not in (added_names or ()):
            yield flow, call


def _all_named(tensors: tuple[DeclaredTensor, ...]) -> bool:
    """Whether there is a tensor, and all tensors have names."""
    return bool(tensors) and all(tensor.name for tensor in tensors)


def sends_bls_requests(code: PythonSource) -> bool:
    """Whether the code sends requests to other models, whose tensors have other names."""
    return any(call.name == "InferenceRequest" for call in code.calls)


def _added_names(code: PythonSource, flow: Flow, method_name: str) -> set[str] | None:
    """Return the names that auto_complete_config adds; None if they are unknown."""
    if any(call.name in ("setattr", "exec") for call in code.calls):
        return None
    names: set[str] = set()
    for call in code.calls_named(method_name):
        name = literal_value((dictionary_entries(flow, call.argument(0)) or {}).get("name"))
        if not isinstance(name, str):
            return None
        names.add(name)
    return names


def is_always_used(code: PythonSource, flow: Flow, call: PythonCall) -> bool:
    """Whether every request fails with `None.as_numpy()` because of this read."""
    execute = code.method("execute")
    request = call.argument(0, "inference_request")
    if execute is None or not _is_request(request, requests_parameter(execute)):
        return False
    return flow.always_used_in(call.node, ast.Attribute, execute)


def _is_request(node: ast.expr | None, requests: str | None) -> bool:
    """Whether a node is a plain name, or `requests[0]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == requests
    return isinstance(node, ast.Name)


@warning(
    "TC232 undeclared-output",
    summary="an output that the code writes and the configuration does not declare",
    reason="Triton returns only requested outputs, and clients can request only declared ones.",
)
def undeclared_output(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    reported = undeclared_lookup_names(model, "output")
    for call in _undeclared_outputs(config, code, model):
        if call.text(0, "name") in reported or not may_be_returned(
            Flow.for_source(code), call.node
        ):
            continue
        names = ", ".join(tensor.name for tensor in outputs(model)) or "none"
        yield Hit(
            f"the output {call.text(0, 'name')} is not declared, so no client receives it; "
            f"declared: {names}",
            "declare it in config.pbtxt, or give it one of those names",
            *code.node_location(call.node),
        )


def _undeclared_outputs(
    config: ConfigMessage, code: PythonSource, model: Model
) -> list[PythonCall]:
    calls = _tensor_calls(code)
    if not calls or sends_bls_requests(code) or not _all_named(outputs(model)):
        return []
    declared = {tensor.name for tensor in outputs(model)}
    declared.update(s.output_name for s in config.message.sequence_batching.state)
    undeclared_calls = [
        call for call in calls if (call.text(0, "name") or "") not in declared | {""}
    ]
    flow = Flow.for_source(code)
    added_names = _added_names(code, flow, "add_output") if undeclared_calls else set()
    if added_names is None:
        return []
    return [
        call
        for call in undeclared_calls
        if call.text(0, "name") not in added_names and not flow.is_conditional(call.node)
    ]


def _tensor_calls(code: PythonSource) -> list[PythonCall]:
    return [call for call in code.calls if call.name in _MAKERS]


@warning(
    "TC233 output-never-made",
    summary="a declared output that no response of the code contains",
    reason="Clients that request it get responses without it. An ensemble that uses it fails with "
    "`unexpected deadlock, at least one output is not set`.",
    answers=("server#7280", "server#4260"),
)
def output_never_made(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    if code.method("execute") is None:
        return
    declared = outputs(model)
    mentioned = {call.text(0, "name") for call in _tensor_calls(code)}
    if all(tensor.name in mentioned for tensor in declared) or _undeclared_outputs(
        config, code, model
    ):
        return
    response_names = _names_in_responses(code)
    for tensor in declared if response_names else ():
        if response_names and tensor.name and tensor.name not in response_names:
            yield Hit(
                f"no response of {code.path.name} has the output {tensor.name}",
                "write it in execute, or do not declare it",
                config.span(*tensor.path, "name"),
            )


def _names_in_responses(code: PythonSource) -> set[str] | None:
    """Return the names of all tensors in all responses; None if one is unknown."""
    flow = Flow.for_source(code)
    names: set[str] = set()
    for call in code.calls_named("InferenceResponse"):
        tensors = call.argument(0, "output_tensors")
        if tensors is None and not any(keyword.arg is None for keyword in call.node.keywords):
            continue  # a response with only an error
        if not isinstance(tensors, ast.List):
            return None
        for node in tensors.elts:
            tensor_names = _tensor_names(flow, node)
            if tensor_names is None:
                return None
            names.update(tensor_names)
    return names


def _tensor_names(flow: Flow, node: ast.expr) -> Iterable[str] | None:
    values: tuple[ast.expr, ...] | None = (node,)
    function = flow.function(node)
    if isinstance(node, ast.Name) and function is not None:
        values = flow.assigned_values(node.id, function)
    names = [_tensor_name(value) for value in values or ()]
    return None if None in names or not names else [name for name in names if name]


def _tensor_name(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    return PythonCall(name, name, node).text(0, "name") if name in _MAKERS else None


@error(
    "TC235 only-the-first-request",
    summary="an execute that answers once under dynamic batching, such as requests[0] only",
    reason="If a batch has two requests, the numbers of responses and requests differ, and all "
    "requests fail. With one client at a time it works.",
    shows="traffic",
)
def only_first_request(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None or not _batches_requests(model):
        return
    requests, flow = requests_parameter(execute), Flow.for_source(code)
    uses = [n for n in ast.walk(execute) if isinstance(n, ast.Name) and n.id == requests]
    parents = [flow.parent(node) for node in uses]
    subscripts = (node for node in parents if isinstance(node, ast.Subscript))
    firsts = [node for node in subscripts if literal_value(node.slice) == 0]
    if uses and len(firsts) == len(uses):
        yield Hit(
            f"execute reads only {requests}[0], and dynamic_batching passes up to "
            f"{config.message.max_batch_size} requests at once",
            f"loop over {requests} and return a response for each",
            *code.node_location(firsts[0]),
        )
    yield from _answers_once(code, execute, int(config.message.max_batch_size))


def _answers_once(code: PythonSource, execute: Function, largest: int) -> Iterator[Hit]:
    """Yield a hit for a list of responses that gets one `append`, after the loop."""
    flow = Flow.for_source(code)
    for node in scope_nodes(execute):
        returned = node.value if isinstance(node, ast.Return) else None
        name = returned.id if isinstance(returned, ast.Name) else None
        values = flow.assigned_values(name, execute) if name else None
        if (
            not name
            or not values
            or not all(isinstance(v, ast.List) and not v.elts for v in values)
        ):
            continue
        loads = [use for use in flow.names_in(execute)[name] if isinstance(use.ctx, ast.Load)]
        attributes = [flow.parent(use) for use in loads if use is not returned]
        if len(attributes) != 1 or not isinstance(attributes[0], ast.Attribute):
            continue
        [attribute] = attributes
        call = flow.parent(attribute) if attribute else None
        if (
            isinstance(attribute, ast.Attribute)
            and attribute.attr == "append"
            and isinstance(call, ast.Call)
            and flow.always_runs(call, execute)
            and not _is_in_loop(flow, call)
        ):
            yield Hit(
                "execute answers once, after its loop, and dynamic_batching passes up to "
                f"{largest} requests at once",
                "move the append into the loop",
                *code.node_location(call),
            )


def _is_in_loop(flow: Flow, node: ast.AST) -> bool:
    ancestor = flow.parent(node)
    while ancestor is not None and not isinstance(ancestor, Function):
        if isinstance(ancestor, ast.For | ast.While):
            return True
        ancestor = flow.parent(ancestor)
    return False


def _batches_requests(model: Model) -> bool:
    message = model.config.message
    return (
        message.max_batch_size > 1
        and message.HasField("dynamic_batching")
        and not message.model_transaction_policy.decoupled
    )
