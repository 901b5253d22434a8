# SPDX-License-Identifier: Apache-2.0
"""TC229 and TC258: arguments that the backend's classes and functions do not take.

Source: https://github.com/triton-inference-server/python_backend/blob/main/src/pb_stub.cc; each
example was tried on tritonserver 2.51. The rules judge only values that are certain.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow, requests_parameter
from tritonctl.checks.model_py.objects import backend_class
from tritonctl.checks.model_py.source import PythonCall, PythonSource, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest
from tritonctl.protocol.datatypes import BY_CONFIG_NAME

_Problem = tuple[str, str] | None  # of a call, and the fix
_MAX_SHOWN = 40
_RESPONSE_KEYWORDS = ("output_tensors", "error", "parameters")
_REQUEST_KEYWORDS = (
    *("model_name", "requested_output_names", "inputs", "request_id", "correlation_id"),
    *("model_version", "flags", "timeout", "preferred_memory", "trace", "parameters"),
)
_REQUIRED_OF_REQUEST = _REQUEST_KEYWORDS[:3]
_EXCEPTIONS = ("TritonModelException", "Exception", "ValueError", "RuntimeError")
# The keys of the argument of `initialize`.
_ARGS = (
    *("model_config", "model_instance_kind", "model_instance_name", "model_instance_device_id"),
    *("model_repository", "model_version", "model_name"),
)


@error(
    "TC229 wrong-argument",
    summary="an argument of a kind that the backend's classes and functions do not take",
    reason="A tensor takes a name and a numpy array, a response a list of tensors, and a sender "
    "responses. With anything else, the code raises a TypeError, and the request fails.",
    shows="traffic",
)
def wrong_argument(code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    flow = Flow.for_source(code)
    for name, check in _CHECKS.items():
        for call in code.calls_named(name):
            if flow.may_fail(call.node) or _is_tried(flow, call.node):
                continue
            if problem := check(code, flow, call):
                yield Hit(problem[0], problem[1], *code.node_location(call.node))
    for node in scope_nodes(execute) if execute else ():
        value = node.value if isinstance(node, ast.Return) else None
        if value is not None and flow.is_backend_call(value, "InferenceResponse"):
            yield Hit(
                "execute returns a response instead of a list of them",
                "return a list with one response for each request",
                *code.node_location(value),
            )


def _is_tried(flow: Flow, node: ast.AST) -> bool:
    """Whether a `try` in the same function may handle the error."""
    ancestor: ast.AST | None = node
    while ancestor is not None:
        if isinstance(ancestor, ast.Try) and ancestor.handlers:
            return True
        ancestor = flow.parent(ancestor)
    return False


def _has_spread(call: PythonCall) -> bool:
    return any(keyword.arg is None for keyword in call.node.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.node.args
    )


def _tensor_problem(code: PythonSource, flow: Flow, call: PythonCall) -> _Problem:
    if not flow.is_backend_call(call.node, "Tensor") or _has_spread(call):
        return None
    signature = 'write pb_utils.Tensor("NAME", array)'
    if call.node.keywords:
        return "Tensor takes its arguments by position, not by name", signature
    if len(call.node.args) != 2:  # noqa: PLR2004 - the name and the array
        return f"Tensor takes a name and an array, not {len(call.node.args)} arguments", signature
    name, array = call.node.args
    if flow.is_array(name):
        return "the first argument of Tensor is its name, not its array", signature
    shown = call.text(0) or "OUTPUT"
    kind = _other_than_array(code, flow, array)
    return (
        (f"the tensor {shown} gets {kind} instead of an array", _array_fix(kind)) if kind else None
    )


def _array_fix(kind: str) -> str:
    if kind == "a Tensor":
        return "pass its array, as_numpy(), or return the tensor itself if its name fits"
    return "pass an array: np.array(…, dtype=…)"


# Descriptions of expressions that surely are no numpy array.
_LITERALS: tuple[tuple[type[ast.expr] | tuple[type[ast.expr], ...], str], ...] = (
    ((ast.List, ast.ListComp), "a list"),
    (ast.Tuple, "a tuple"),
    ((ast.Dict, ast.DictComp), "a dictionary"),
    (ast.JoinedStr, "a text"),
)


def _other_than_array(code: PythonSource, flow: Flow, node: ast.expr) -> str | None:
    """Describe a value that surely is no numpy array."""
    if kind := backend_class(code, node):
        return f"a {kind}"
    value = flow.resolve_name(node)
    if description := next((text for kinds, text in _LITERALS if isinstance(value, kinds)), None):
        return description
    match value:
        case ast.Constant(value=constant):
            return repr(constant)[:_MAX_SHOWN]
        case ast.Call(func=ast.Attribute(attr="tolist"), args=[]):
            return "a list"
        case ast.Call(func=ast.Name(id="list" | "str" | "float" | "int" | "bytes" as name)):
            return f"a {name}"
    return None


def _response_problem(code: PythonSource, flow: Flow, call: PythonCall) -> _Problem:
    if not flow.is_backend_call(call.node, "InferenceResponse") or _has_spread(call):
        return None
    if problem := _unknown_keyword("InferenceResponse", call, _RESPONSE_KEYWORDS):
        return problem
    tensors = call.argument(0, "output_tensors")
    if tensors is not None and (problem := _tensor_list_problem(code, flow, tensors)):
        return problem
    failure = call.argument(1, "error")
    value = flow.resolve_name(failure) if failure is not None else None
    match value:
        case ast.JoinedStr():
            is_text = True
        case ast.Constant(value=str()):
            is_text = True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            is_text = name in _EXCEPTIONS
        case _:
            is_text = False
    if is_text:
        return (
            "the error of a response is a TritonError",
            "write error=pb_utils.TritonError(…)",
        )
    return None


def _tensor_list_problem(code: PythonSource, flow: Flow, node: ast.expr) -> _Problem:
    fix = "put it into brackets: output_tensors=[…]"
    value = flow.resolve_name(node)
    if backend_class(code, node) == "Tensor":
        return "output_tensors is one tensor, not a list", fix
    match value:
        case ast.Dict() | ast.DictComp():
            return "output_tensors is a dictionary", "pass a list of pb_utils.Tensor(name, array)"
        case ast.Constant() | ast.JoinedStr():
            return "output_tensors is no list of tensors", fix
        case ast.List(elts=elements):
            others = (_other_than_tensor(code, flow, element) for element in elements)
            if kind := next(filter(None, others), None):
                return (
                    f"output_tensors has {kind} where a tensor belongs",
                    'put it into one: pb_utils.Tensor("NAME", array)',
                )
    return ("output_tensors is an array, not a list", fix) if flow.is_array(node) else None


def _other_than_tensor(code: PythonSource, flow: Flow, node: ast.expr) -> str | None:
    kind = backend_class(code, node)
    if kind is not None:
        return f"a {kind}" if kind != "Tensor" else None
    if flow.is_array(node):
        return "an array"
    value = flow.resolve_name(node)
    return "a list" if isinstance(value, ast.List | ast.ListComp) else None


def _request_problem(code: PythonSource, flow: Flow, call: PythonCall) -> _Problem:
    is_request = flow.is_backend_call(call.node, "InferenceRequest")
    if not is_request or _has_spread(call) or call.node.args:
        return None
    if problem := _unknown_keyword("InferenceRequest", call, _REQUEST_KEYWORDS):
        return problem
    passed = {keyword.arg: keyword.value for keyword in call.node.keywords}
    if missing := [name for name in _REQUIRED_OF_REQUEST if name not in passed]:
        return f"InferenceRequest without {' and '.join(missing)}", f"pass {', '.join(missing)}"
    _, names, tensors = (passed[name] for name in _REQUIRED_OF_REQUEST)
    if isinstance(flow.resolve_name(names), ast.Constant | ast.JoinedStr):
        return "requested_output_names is no list", 'write requested_output_names=["NAME"]'
    return _input_list_problem(code, flow, tensors)


def _input_list_problem(code: PythonSource, flow: Flow, tensors: ast.expr) -> _Problem:
    if backend_class(code, tensors) == "Tensor":
        return "inputs is one tensor, not a list", "put it into brackets: inputs=[…]"
    value = flow.resolve_name(tensors)
    elements = value.elts if isinstance(value, ast.List) else ()
    kind = next(filter(None, (_other_than_tensor(code, flow, e) for e in elements)), None)
    if kind is None:
        return None
    fix = 'put it into one: pb_utils.Tensor("NAME", array)'
    return f"inputs has {kind} where a tensor belongs", fix


def _send_problem(code: PythonSource, _flow: Flow, call: PythonCall) -> _Problem:
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    if owner is None or backend_class(code, owner) != "sender" or _has_spread(call):
        return None
    if problem := _unknown_keyword("send", call, ("response", "flags")):
        return problem
    response, flags = call.argument(0, "response"), call.argument(1, "flags")
    kind = backend_class(code, response) if response is not None else None
    if isinstance(response, ast.List) or kind not in (None, "InferenceResponse"):
        shown = f"a {kind}" if kind else "a list"
        return f"send gets {shown} instead of a response", "send pb_utils.InferenceResponse(…)"
    if isinstance(flags, ast.Constant) and flags.value not in (0, 1):
        return (
            f"send has no flag {flags.value!r}",
            "write flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response",
        )
    return None


def _lookup_problem(_code: PythonSource, flow: Flow, call: PythonCall) -> _Problem:
    if not flow.is_backend_call(call.node, call.name) or call.text(0) is None:
        return None
    kind = "request" if "input" in call.name else "response"
    return (
        f"{call.name} takes the {kind} first, then the name",
        f'write {call.name}({kind}, "{call.text(0)}")',
    )


def _type_problem(_code: PythonSource, flow: Flow, call: PythonCall) -> _Problem:
    name = call.text(0)
    if name is None or name in BY_CONFIG_NAME or not flow.is_backend_call(call.node, call.name):
        return None
    full = f"TYPE_{name}"
    return (
        f"triton_string_to_numpy knows no {name!r}",
        f'write "{full}"' if full in BY_CONFIG_NAME else "pass the configuration's data_type",
    )


def _unknown_keyword(name: str, call: PythonCall, keywords: tuple[str, ...]) -> _Problem:
    for keyword in call.node.keywords:
        if keyword.arg not in keywords:
            close = suggest(keyword.arg or "", keywords)
            fix = f"did you mean {close}?" if close else f"it takes {', '.join(keywords)}"
            return f"{name} has no argument {keyword.arg}", fix
    return None


_CHECKS: Mapping[str, Callable[[PythonSource, Flow, PythonCall], _Problem]] = {
    "Tensor": _tensor_problem,
    "InferenceResponse": _response_problem,
    "InferenceRequest": _request_problem,
    "send": _send_problem,
    "get_input_tensor_by_name": _lookup_problem,
    "get_output_tensor_by_name": _lookup_problem,
    "triton_string_to_numpy": _type_problem,
}


@error(
    "TC258 absent-argument",
    summary="a key that the argument of initialize does not have",
    reason="The code raises a KeyError, and the backend refuses the model.",
)
def absent_argument(code: PythonSource, model: Model) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if initialize is None or model.backend != "python":
        return
    name, flow = requests_parameter(initialize), Flow.for_source(code)
    for node in scope_nodes(initialize):
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(key))):
                is_certain = owner == name and flow.always_runs(node, initialize)
                if key in _ARGS or not is_certain or flow.may_fail(node) or _is_tried(flow, node):
                    continue
                if not isinstance(node.ctx, ast.Load):
                    return  # the code adds keys
                close = suggest(key, _ARGS)
                yield Hit(
                    f"initialize gets no {key}",
                    f"did you mean {close}?" if close else f"it gets {', '.join(_ARGS)}",
                    *code.node_location(node),
                )
