# SPDX-License-Identifier: Apache-2.0
"""The objects of the Python backend in a model.py: of which class an expression surely is.

Sources: https://github.com/triton-inference-server/python_backend/blob/main/src/pb_stub.cc and
src/resources/triton_python_backend_utils.py.
"""

from __future__ import annotations

import ast
from typing import Literal

from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.flow import Flow, requests_parameter
from tritonctl.checks.model_py.source import PythonSource

BackendClass = Literal["Tensor", "InferenceRequest", "InferenceResponse", "TritonError", "sender"]

# Methods of all releases; a method of a newer release than the server's is another matter.
METHODS: dict[BackendClass, frozenset[str]] = {
    "Tensor": frozenset(
        {"name", "as_numpy", "triton_dtype", "to_dlpack", "from_dlpack", "is_cpu", "shape"}
    ),
    "InferenceRequest": frozenset(
        {"inputs", "request_id", "correlation_id", "requested_output_names", "model_name"}
        | {"model_version", "flags", "set_flags", "timeout", "parameters", "preferred_memory"}
        | {"trace", "exec", "async_exec", "get_response_sender", "is_cancelled"}
        | {"set_release_flags"}
    ),
    "InferenceResponse": frozenset({"output_tensors", "has_error", "error", "parameters"}),
    "TritonError": frozenset(
        {"message", "code", "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE"}
        | {"UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"}
    ),
    "sender": frozenset({"send", "is_cancelled"}),
}
# The names of triton_python_backend_utils, once the backend has added its classes.
MODULE_NAMES = frozenset(
    {"Tensor", "InferenceRequest", "InferenceResponse", "InferenceResponseSender", "TritonError"}
    | {"TritonModelException", "ModelConfig", "Logger", "LogLevel", "MetricFamily", "Metric"}
    | {"MetricKind", "PreferredMemory", "InferenceTrace", "CorrelationId", "ResponseIterator"}
    | {"load_model", "unload_model", "is_model_ready", "serialize_byte_tensor"}
    | {"deserialize_bytes_tensor", "get_input_tensor_by_name", "get_output_tensor_by_name"}
    | {"get_input_config_by_name", "get_output_config_by_name", "triton_to_numpy_type"}
    | {"using_decoupled_model_transaction_policy", "numpy_to_triton_type", "TRITON_STRING_TO_NUMPY"}
    | {"triton_string_to_numpy", "TRITON_TO_NUMPY_TYPE", "NUMPY_TO_TRITON_TYPE"}
    | {"TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END"}
    | {"TRITONSERVER_RESPONSE_COMPLETE_FINAL", "TRITONSERVER_REQUEST_RELEASE_ALL"}
    | {"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", "TRITONSERVER_MEMORY_CPU"}
    | {"TRITONSERVER_MEMORY_GPU", "TRITONSERVER_MEMORY_CPU_PINNED", "MemoryType"}
    | {"np", "struct", "json", "sys", "os", "asyncio", "torch", "from_dlpack"}
)
# Attributes of classes of the module, as used by name.
CLASS_ATTRIBUTES: dict[str, frozenset[str]] = {
    "Logger": frozenset({"log", "log_info", "log_warn", "log_error", "log_verbose", "LogLevel"}),
    "LogLevel": frozenset({"INFO", "WARNING", "ERROR", "VERBOSE"}),
    "MetricFamily": frozenset({"COUNTER", "GAUGE", "HISTOGRAM"}),
}
# Methods of the argument of auto_complete_config.
CONFIG_METHODS = frozenset(
    {"as_dict", "add_input", "add_output", "set_max_batch_size", "set_dynamic_batching"}
    | {"set_model_transaction_policy"}
)
_MADE: dict[str, BackendClass] = {
    "get_input_tensor_by_name": "Tensor",
    "get_output_tensor_by_name": "Tensor",
    "Tensor": "Tensor",
    "InferenceRequest": "InferenceRequest",
    "InferenceResponse": "InferenceResponse",
    "TritonError": "TritonError",
}
_RETURNED: dict[tuple[BackendClass, str], BackendClass] = {
    ("InferenceRequest", "get_response_sender"): "sender",
    ("InferenceRequest", "exec"): "InferenceResponse",
    ("InferenceResponse", "error"): "TritonError",
}
_MAX_STEPS = 6


def backend_class(
    code: PythonSource, node: ast.expr, steps: int = _MAX_STEPS
) -> BackendClass | None:
    """Return the backend's class of which a value surely is; None if that is not certain."""
    flow = Flow.for_source(code)
    if _is_request(code, flow, node):
        return "InferenceRequest"
    match flow.resolve_name(node) if steps else None:
        case ast.Await(value=ast.Call(func=ast.Attribute(attr="async_exec"), args=[], keywords=[])):
            return "InferenceResponse"
        case ast.Call(func=ast.Attribute(attr=name)) as call if name in _MADE:
            return _MADE[name] if flow.is_backend_call(call, name) else None
        # With decoupled=True, exec returns an iterator.
        case ast.Call(func=ast.Attribute(attr=name, value=owner), args=[], keywords=[]):
            owner_class = backend_class(code, owner, steps - 1)
            return _RETURNED.get((owner_class, name)) if owner_class else None
    return None


def _is_request(code: PythonSource, flow: Flow, node: ast.expr) -> bool:
    """Whether a value surely is one of the requests that `execute` gets."""
    execute = code.method("execute")
    requests = requests_parameter(execute) if execute is not None else None
    if execute is None or requests is None or flow.function(node) is not execute:
        return False
    names = flow.names_in(execute)
    if not all(isinstance(use.ctx, ast.Load) for use in names.get(requests, ())):
        return False
    if isinstance(node, ast.Name):
        known: dict[str, bool] = memoized(code, "request names", dict)
        if node.id not in known:
            bindings = [n for n in names.get(node.id, ()) if not isinstance(n.ctx, ast.Load)]
            known[node.id] = bool(bindings) and all(
                _loops_over(flow, binding, requests) for binding in bindings
            )
        return known[node.id]
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()):
            return name == requests
    return False


def _loops_over(flow: Flow, target: ast.Name, requests: str) -> bool:
    """Whether a name is bound by `for NAME in requests` or `for i, NAME in enumerate(requests)`."""
    loop = flow.parent(target)
    if isinstance(loop, ast.Tuple):
        pair, loop = loop, flow.parent(loop)
        match loop:
            case (
                ast.For(target=ast.Tuple(elts=[_, second]), iter=iterated)
                | ast.comprehension(target=ast.Tuple(elts=[_, second]), iter=iterated)
            ) if loop.target is pair and second is target:
                match iterated:
                    case ast.Call(func=ast.Name(id="enumerate"), args=[ast.Name(id=name), *_]):
                        return name == requests
        return False
    match loop:
        case (
            ast.For(target=bound, iter=ast.Name(id=name))
            | ast.comprehension(target=bound, iter=ast.Name(id=name))
        ):
            return bound is target and name == requests
    return False
