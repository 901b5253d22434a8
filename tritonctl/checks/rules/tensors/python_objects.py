# SPDX-License-Identifier: Apache-2.0
"""TC248 to TC250, TC259 and TC260: objects of the Python backend used as what they are not.

Source: https://github.com/triton-inference-server/python_backend#usage; each example was tried on
tritonserver 2.51. The rules judge only values whose class is certain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.declared import inputs
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import BACKEND_UTILS, Flow
from tritonctl.checks.model_py.objects import (
    CLASS_ATTRIBUTES,
    CONFIG_METHODS,
    METHODS,
    MODULE_NAMES,
    BackendClass,
    backend_class,
)
from tritonctl.checks.model_py.source import PythonSource, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.python_io import is_always_used, sends_bls_requests
from tritonctl.errors import suggest

_MIN_SIMILARITY = 0.8
_RESCHEDULE = "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"
_NAMES: dict[BackendClass, str] = {
    "Tensor": "a Tensor",
    "InferenceRequest": "an InferenceRequest",
    "InferenceResponse": "an InferenceResponse",
    "TritonError": "a TritonError",
    "sender": "a response sender",
}
_READ_INPUT = 'pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()'
_READ_OUTPUT = 'pb_utils.get_output_tensor_by_name(response, "NAME").as_numpy()'
_REQUEST_CONTENT = (
    *("as_numpy", "numpy", "get", "get_input", "get_input_tensor_by_name", "get_tensor"),
    *("input_tensors", "tensors", "input", "data"),
)
_RESPONSE_CONTENT = (
    *("as_numpy", "numpy", "get", "get_output", "get_output_tensor_by_name", "outputs"),
    *("output", "tensors", "data"),
)
# What was meant by methods of other libraries, or of another of these classes.
_MEANT: dict[tuple[BackendClass, str], str] = {
    **{("Tensor", name): "write as_numpy()" for name in ("numpy", "asnumpy", "to_numpy", "data")},
    **{
        ("Tensor", name): f"write as_numpy().{name}"
        for name in ("astype", "reshape", "tolist", "item", "dtype", "size", "ndim", "flatten")
    },
    **{
        ("InferenceRequest", name): f"read a tensor of it: {_READ_INPUT}"
        for name in _REQUEST_CONTENT
    },
    **{
        ("InferenceRequest", name): "write exec(), or `await` async_exec()"
        for name in ("infer", "execute", "async_infer", "run", "call", "predict")
    },
    ("InferenceRequest", "id"): "write request_id()",
    ("InferenceRequest", "send"): "get its sender first: request.get_response_sender().send(…)",
    **{
        ("InferenceResponse", name): f"read a tensor of it: {_READ_OUTPUT}"
        for name in _RESPONSE_CONTENT
    },
    **{
        ("sender", name): "write send(response), and the flag "
        "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last one"
        for name in ("close", "end", "finish", "complete", "send_final", "flush", "done")
    },
}


@warning(
    "TC248 optional-input-used",
    summary="code that uses an optional input as if every request had it",
    reason="get_input_tensor_by_name returns None for an input that the client leaves out, and the "
    "request fails: 'NoneType' object has no attribute 'as_numpy'.",
    shows="traffic",
)
def optional_input_used(code: PythonSource, model: Model) -> Iterator[Hit]:
    optional_names = {tensor.name for tensor in inputs(model) if tensor.optional}
    if not optional_names or sends_bls_requests(code):
        return
    flow = Flow.for_source(code)
    for call in code.calls_named("get_input_tensor_by_name"):
        name = call.text(1, "name")
        if name in optional_names and is_always_used(code, flow, call):
            yield Hit(
                f"the input {name} is optional, and without it every request fails there",
                "test for None before its use, or remove `optional: true`",
                *code.node_location(call.node),
            )


@error(
    "TC249 no-such-method",
    summary="a method that an object of the Python backend does not have",
    reason="The code raises an AttributeError where it gets there, and the request fails.",
    shows="traffic",
)
def no_such_method(code: PythonSource) -> Iterator[Hit]:
    if not _uses_backend_module(code):
        return
    flow = Flow.for_source(code)
    for node in code.nodes:
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        kind = backend_class(code, node.value)
        if kind is None or node.attr in METHODS[kind] or _expects_absence(flow, node):
            continue
        close = suggest(node.attr, METHODS[kind], cutoff=_MIN_SIMILARITY)
        hint = _MEANT.get((kind, node.attr)) or (f"did you mean {close}?" if close else None)
        yield Hit(
            f"{_NAMES[kind]} has no {node.attr}",
            hint or f"it has {', '.join(sorted(METHODS[kind]))}",
            *code.node_location(node),
        )


@error(
    "TC250 no-such-function",
    summary="a misspelt name of triton_python_backend_utils",
    reason="The code raises an AttributeError where it gets there: the model is refused, or the "
    "request fails.",
    shows="traffic",
)
def no_such_function(code: PythonSource, model: Model) -> Iterator[Hit]:
    version = model.served_version
    own_copy = version is not None and f"{BACKEND_UTILS}.py" in model.version_files(version)
    if own_copy or not _uses_backend_module(code):
        return
    flow = Flow.for_source(code)
    for node in code.nodes:
        if isinstance(node, ast.Attribute) and (hit := _class_attribute_hit(code, flow, node)):
            yield hit
        if not isinstance(node, ast.Attribute) or not flow.is_module(node.value, BACKEND_UTILS):
            continue
        if node.attr in MODULE_NAMES or node.attr.startswith("__") or _expects_absence(flow, node):
            continue
        # Other names may be those of a newer release.
        if close := suggest(node.attr, MODULE_NAMES, cutoff=_MIN_SIMILARITY):
            yield Hit(
                f"{BACKEND_UTILS} has no {node.attr}",
                f"did you mean {close}?",
                *code.node_location(node),
            )


def _class_attribute_hit(code: PythonSource, flow: Flow, node: ast.Attribute) -> Hit | None:
    """Return a hit for an attribute that a class of the module lacks: `pb_utils.Logger.info`."""
    owner = node.value
    if not isinstance(owner, ast.Attribute) or not flow.is_module(owner.value, BACKEND_UTILS):
        return None
    known = CLASS_ATTRIBUTES.get(owner.attr)
    if known is None or node.attr in known or node.attr.startswith("__"):
        return None
    if _expects_absence(flow, node):
        return None
    close = suggest(node.attr, known)
    return Hit(
        f"{owner.attr} has no {node.attr}",
        f"did you mean {close}?" if close else f"it has {', '.join(sorted(known))}",
        *code.node_location(node),
    )


@error(
    "TC259 no-such-setting",
    summary="a method that the argument of auto_complete_config does not have",
    reason="The code raises an AttributeError, and the backend refuses the model.",
)
def no_such_setting(code: PythonSource, auto_complete: ast.FunctionDef) -> Iterator[Hit]:
    flow = Flow.for_source(code)
    parameters = [argument.arg for argument in auto_complete.args.args]
    for node in scope_nodes(auto_complete):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name) as method):
                if owner not in parameters or name in CONFIG_METHODS or name.startswith("_"):
                    continue
                if not flow.always_runs(node, auto_complete) or _expects_absence(flow, method):
                    continue
                close = suggest(name, CONFIG_METHODS)
                yield Hit(
                    f"{owner} has no {name}",
                    f"did you mean {close}?"
                    if close
                    else f"it has {', '.join(sorted(CONFIG_METHODS))}; write other settings into "
                    "config.pbtxt",
                    *code.node_location(method),
                )


@error(
    "TC260 reschedule",
    summary="a rescheduled request of a model without iterative sequences, or one with a response",
    reason="Triton reschedules requests of iterative sequences only, and such a request has None "
    "in place of its response: the request fails.",
    shows="traffic",
)
def reschedule(code: PythonSource, model: Model) -> Iterator[Hit]:
    flow = Flow.for_source(code)
    if not model.has_config or model.config.message.sequence_batching.iterative_sequence:
        return
    for call in code.calls_named("set_release_flags"):
        flag = call.argument(0, "flags")
        name = flag.attr if isinstance(flag, ast.Attribute) else ""
        if name == _RESCHEDULE and not flow.may_fail(call.node):
            yield Hit(
                "this reschedules a request, and the model has no iterative sequences",
                "write sequence_batching { iterative_sequence: true }",
                *code.node_location(call.node),
            )


def _uses_backend_module(code: PythonSource) -> bool:
    """Whether the code imports the module, and nothing in it adds attributes at run time."""
    names = {call.name for call in code.calls}
    return BACKEND_UTILS in code.source.text and not names & {"setattr", "exec_module", "patch"}


def _expects_absence(flow: Flow, node: ast.expr) -> bool:
    """Whether the code stores the attribute, or handles its absence."""
    if not isinstance(getattr(node, "ctx", None), ast.Load) or flow.may_fail(node):
        return True
    ancestor: ast.AST | None = node
    while ancestor is not None:
        if isinstance(ancestor, ast.Try):
            return True
        ancestor = flow.parent(ancestor)
    function = flow.function(node)
    return function is not None and not {"hasattr", "getattr"}.isdisjoint(flow.names_in(function))
