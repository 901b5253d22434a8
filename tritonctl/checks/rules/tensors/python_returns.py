# SPDX-License-Identifier: Apache-2.0
"""TC252: an execute that returns anything but a list of responses.

Source: https://github.com/triton-inference-server/python_backend/blob/main/src/pb_stub.cc; each
example was tried on tritonserver 2.51. The rule judges only values that are certain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow, requests_parameter
from tritonctl.checks.model_py.objects import backend_class
from tritonctl.checks.model_py.source import Function, PythonSource, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.checks.rules.tensors.python_methods import hands_requests_on

_BUILT_IN_RESULTS = {
    "tuple": "a tuple",
    "dict": "a dictionary",
    "set": "a set",
    "str": "a text",
    **dict.fromkeys(("iter", "map", "filter", "zip", "reversed"), "an iterator"),
}
_NO_LISTS: tuple[tuple[type[ast.expr] | tuple[type[ast.expr], ...], str], ...] = (
    (ast.Tuple, "a tuple"),
    (ast.GeneratorExp, "a generator"),
    ((ast.Dict, ast.DictComp), "a dictionary"),
    ((ast.Set, ast.SetComp), "a set"),
    (ast.JoinedStr, "a text"),
)
_WHOLE_LIST = "return the whole list, with one response for each request"
# Code that calls these may answer in another way.
_OTHER_WAYS = ("set_release_flags", "get_response_sender", "set_model_transaction_policy")


@error(
    "TC252 no-response",
    summary="an execute that returns anything but a list with a response for each request",
    reason="The numbers and kinds differ, and the requests fail.",
    shows="traffic",
)
def no_response(code: PythonSource, model: Model) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None or execute.decorator_list:
        return
    answers_otherwise = any(code.calls_named(name) for name in _OTHER_WAYS)
    decoupled = model.config.message.model_transaction_policy.decoupled or answers_otherwise
    for node in scope_nodes(execute):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            yield Hit(
                "execute yields its responses, and the backend expects a list",
                "collect them in a list and return it"
                if not decoupled
                else "send them with request.get_response_sender().send(…)",
                *code.node_location(node),
            )
            return
        value = node.value if isinstance(node, ast.Return) else None
        if value is None:
            continue
        problem = _part_of_list(code, value)
        if problem is None and not decoupled:
            problem = _other_object(code, execute, value)
        if problem:
            yield Hit(f"execute returns {problem}", _WHOLE_LIST, *code.node_location(value))
        for element in _elements(code, value):
            # A list of None may be filled by index.
            may_be_none = (
                decoupled or isinstance(value, ast.Name) or hands_requests_on(code, execute)
            )
            kind = _element_kind(code, element, may_be_none=may_be_none)
            if kind is not None:
                yield Hit(
                    f"execute returns {kind} where a response belongs",
                    "put tensors into one: pb_utils.InferenceResponse(output_tensors=[…]); an "
                    "error, too: error=…",
                    *code.node_location(element),
                )


def _other_object(code: PythonSource, execute: Function, returned: ast.expr) -> str | None:
    """Describe a returned object that is no list of as many responses as requests."""
    flow = Flow.for_source(code)
    if isinstance(returned, ast.Name) and returned.id == requests_parameter(execute):
        return "the requests" if _is_only_read(flow, execute, returned) else None
    value = flow.resolve_name(returned)
    description = next((text for kinds, text in _NO_LISTS if isinstance(value, kinds)), None)
    match value:
        case ast.Constant(value=constant) if constant is not None:
            description = repr(constant)[:40]
        case ast.Call(func=ast.Name(id=name)):
            description = _BUILT_IN_RESULTS.get(name)
        case ast.List(elts=[]) if not flow.is_conditional(returned):
            name = returned.id if isinstance(returned, ast.Name) else ""
            uses = flow.names_in(execute).get(name, ())
            if len([use for use in uses if isinstance(use.ctx, ast.Load)]) <= 1:
                description = "an empty list"
    return description


def _is_only_read(flow: Flow, execute: Function, name: ast.Name) -> bool:
    uses = flow.names_in(execute)[name.id]
    return all(isinstance(use.ctx, ast.Load) for use in uses) and not any(
        isinstance(flow.parent(use), ast.Subscript | ast.Attribute) for use in uses
    )


def _part_of_list(code: PythonSource, returned: ast.expr) -> str | None:
    """Describe a part of the list of responses: `responses[0]`, `responses[1:]`."""
    if not isinstance(returned, ast.Subscript) or not isinstance(returned.value, ast.Name):
        return None
    responses = list(_elements(code, returned.value))
    if not responses or any(backend_class(code, r) != "InferenceResponse" for r in responses):
        return None
    match returned.slice:
        case ast.Constant(value=int()):
            return "one of the responses instead of the list"
        case ast.Slice(lower=ast.Constant(value=int(start)), upper=None, step=None) if start > 0:
            return f"the responses without the first {start}"
        case ast.Slice(lower=None, upper=ast.UnaryOp(op=ast.USub()), step=None):
            return "the responses without the last ones"
    return None


def _element_kind(code: PythonSource, element: ast.expr, *, may_be_none: bool) -> str | None:
    """Describe an element that surely is no response; None if it may be one."""
    kind = backend_class(code, element)
    if kind is not None:
        return f"a {kind}" if kind != "InferenceResponse" else None
    flow = Flow.for_source(code)
    match flow.resolve_name(element):
        case ast.List() | ast.ListComp() | ast.Tuple():
            return "a list"
        case ast.Dict() | ast.DictComp():
            return "a dictionary"
        case ast.Constant(value=constant) if constant is not None or not may_be_none:
            return repr(constant)[:40]
    return "an array" if flow.is_array(element) else None


def _elements(code: PythonSource, returned: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the elements of a returned list, also of one that collects them by `append`."""
    match returned:
        case ast.List():
            yield from returned.elts
        case ast.ListComp():
            yield returned.elt
        case ast.BinOp(op=ast.Mult(), left=ast.List(elts=elements)):
            yield from elements
    flow = Flow.for_source(code)
    function = flow.function(returned) if isinstance(returned, ast.Name) else None
    if function is None or not isinstance(returned, ast.Name):
        return
    values = flow.assigned_values(returned.id, function)
    if values is None or not all(isinstance(value, ast.List) for value in values):
        return
    for value in values:
        yield from value.elts if isinstance(value, ast.List) else ()
    for use in flow.names_in(function)[returned.id]:
        attribute = flow.parent(use)
        call = flow.parent(attribute) if isinstance(attribute, ast.Attribute) else None
        if isinstance(attribute, ast.Attribute) and attribute.attr == "append":
            yield from call.args if isinstance(call, ast.Call) else ()
