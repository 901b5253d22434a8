# SPDX-License-Identifier: Apache-2.0
"""TC251 to TC255: code that certainly fails when it gets there.

Each example was tried on tritonserver 2.51.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.flow import Flow, literal_value, requests_parameter
from tritonctl.checks.model_py.objects import backend_class
from tritonctl.checks.model_py.source import PythonCall, PythonSource, dotted_name, scope_nodes
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.python_names import undefined_names_in

_HISTOGRAM = "HISTOGRAM"
_KINDS = ("COUNTER", "GAUGE", _HISTOGRAM)
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@error(
    "TC251 loading-raises",
    summary="an initialize that always raises, or such an execute in a model with a warm-up",
    reason="Triton calls `initialize` when it loads the model, and a warm-up runs `execute`. If "
    "one fails, Triton refuses the model.",
)
def loading_raises(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if initialize is not None and not initialize.decorator_list:
        statement = _always_raised(initialize.body, None)
        if statement is not None:
            yield Hit(
                "initialize always raises here",
                "remove the raise, or put a condition in front of it",
                *code.node_location(statement),
            )
    yield from _raised_by_warm_up(config, code)


def _raised_by_warm_up(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    samples = [sample for sample in config.message.model_warmup if sample.batch_size]
    if not samples or not isinstance(execute, ast.FunctionDef) or execute.decorator_list:
        return
    statement = _always_raised(execute.body, requests_parameter(execute))
    if statement is not None and not Flow.for_source(code).may_exit_before(statement, execute):
        yield Hit(
            f"execute always raises here, so the warm-up {samples[0].name} fails",
            "remove the raise, or remove model_warmup",
            *code.node_location(statement),
        )


def _always_raised(body: list[ast.stmt], requests: str | None) -> ast.Raise | None:
    for statement in body:
        match statement:
            case ast.Raise():
                return statement
            case ast.For(iter=ast.Name(id=name)) if name == requests:
                return _always_raised(statement.body, requests)
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.Import() | ast.ImportFrom():
                continue
        return None
    return None


@error(
    "TC252 no-response",
    summary="an execute that returns anything but a list with a response for each request",
    reason="The numbers and kinds differ, and the requests fail.",
    shows="traffic",
)
def no_response(code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None:
        return
    for node in scope_nodes(execute):
        value = node.value if isinstance(node, ast.Return) else None
        if value is not None and (problem := _part_of_list(code, value)):
            yield Hit(
                f"execute returns {problem}",
                "return the whole list, with one response for each request",
                *code.node_location(value),
            )
        for element in _elements(code, value):
            kind = backend_class(code, element)
            if kind is not None and kind != "InferenceResponse":
                yield Hit(
                    f"execute returns a {kind} where a response belongs",
                    "put tensors into one: pb_utils.InferenceResponse(output_tensors=[…]); an "
                    "error, too: error=…",
                    *code.node_location(element),
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


def _elements(code: PythonSource, returned: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the elements of a returned list, also of one that collects them by `append`."""
    if isinstance(returned, ast.List):
        yield from returned.elts
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


@error(
    "TC253 undefined-in-execute",
    summary="a name that model.py defines nowhere, used by every request",
    reason="The model is loaded, and every request fails with a NameError.",
    shows="traffic",
)
def undefined_in_execute(code: PythonSource) -> Iterator[Hit]:
    return undefined_names_in(code, "execute")


@warning(
    "TC255 undefined-in-finalize",
    summary="a name that model.py defines nowhere, used when the model is unloaded",
    reason="finalize ends with a NameError: what follows there does not run.",
)
def undefined_in_finalize(code: PythonSource) -> Iterator[Hit]:
    return undefined_names_in(code, "finalize")


@error(
    "TC254 metric-arguments",
    summary="a metric with arguments that its kind does not take",
    reason="The code raises a TritonModelException. In initialize, it makes the backend refuse the "
    "model.",
)
def metric_arguments(code: PythonSource) -> Iterator[Hit]:
    flow = Flow.for_source(code)
    for call in (*code.calls_named("MetricFamily"), *code.calls_named("Metric")):
        if flow.is_conditional(call.node) or flow.function(call.node) is None:
            continue
        problem = (
            _family_problem(call)
            if flow.is_backend_call(call.node, "MetricFamily")
            else _metric_problem(code, call)
        )
        if problem is not None:
            yield Hit(problem[0], problem[1], *code.node_location(call.node))


def _family_problem(call: PythonCall) -> tuple[str, str] | None:
    name = call.text(0, "name")
    if name is not None and not _METRIC_NAME.fullmatch(name):
        return (
            f"Prometheus allows no metric called {name!r}",
            "use letters, digits, _ and :, and no digit first",
        )
    kind = call.argument(2, "kind")
    if isinstance(kind, ast.Constant):
        return (
            f"the kind of a MetricFamily is {kind.value!r}",
            "write pb_utils.MetricFamily.COUNTER, GAUGE or HISTOGRAM",
        )
    return None


def _metric_problem(code: PythonSource, call: PythonCall) -> tuple[str, str] | None:
    kind = _kind_of_family(code, call)
    passed = {keyword.arg for keyword in call.node.keywords}
    if kind is None or None in passed or call.node.args:
        return None
    if kind != _HISTOGRAM:
        problem = f"a {kind} has no buckets"
        return (
            (problem, "remove `buckets`, or make it a HISTOGRAM") if "buckets" in passed else None
        )
    if "buckets" not in passed:
        return "a HISTOGRAM needs buckets", "write buckets=[0.1, 1, 10], ascending"
    buckets = literal_value(call.argument(len(call.node.args), "buckets"))
    if not isinstance(buckets, list) or not all(isinstance(b, int | float) for b in buckets):
        return None
    if all(a < b for a, b in pairwise(buckets)):
        return None
    return "the buckets of a HISTOGRAM ascend, and these do not", "sort them, each once"


def _assigned_attributes(code: PythonSource) -> dict[str, list[ast.expr]]:
    """Return the values of each attribute, by its name as written: "self.family"."""
    values: dict[str, list[ast.expr]] = {}
    for node in code.nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                values.setdefault(dotted_name(target), []).append(node.value)
    return values


def _kind_of_family(code: PythonSource, call: PythonCall) -> str | None:
    """Return the kind of the family that a metric is made from; None if it is not certain."""
    flow = Flow.for_source(code)
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    if owner is None:
        return None
    family = flow.resolve_name(owner)
    if isinstance(owner, ast.Attribute):
        assigned = memoized(code, "assigned attributes", lambda: _assigned_attributes(code))
        values = assigned.get(dotted_name(owner), [])
        if len(values) != 1:
            return None
        family = values[0]
    if not isinstance(family, ast.Call) or not flow.is_backend_call(family, "MetricFamily"):
        return None
    kind = PythonCall("", "", family).argument(2, "kind")
    name = kind.attr if isinstance(kind, ast.Attribute) else None
    return name if name in _KINDS else None
