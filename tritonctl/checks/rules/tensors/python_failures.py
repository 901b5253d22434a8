# SPDX-License-Identifier: Apache-2.0
"""TC251 and TC253 to TC255: code that certainly fails when it gets there.

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
from tritonctl.checks.model_py.source import PythonCall, PythonSource, dotted_name
from tritonctl.checks.rule import error, warning
from tritonctl.checks.rules.tensors.python_methods import accepts_arguments
from tritonctl.checks.rules.tensors.python_names import undefined_names_in

_HISTOGRAM = "HISTOGRAM"
_KINDS = ("COUNTER", "GAUGE", _HISTOGRAM)
_EXITS = ("sys.exit", "os._exit", "exit", "quit")
# Methods of a metric by its kind; each kind has `value`, except HISTOGRAM.
_METRIC_METHODS = {
    "COUNTER": ("increment", "value"),
    "GAUGE": ("increment", "set", "value"),
    _HISTOGRAM: ("observe",),
}
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
    last = execute.body[-1]
    if isinstance(last, ast.Return) and _has_only_errors(code, last.value):
        yield Hit(
            f"every response of execute is an error, so the warm-up {samples[0].name} fails",
            "answer with tensors, or remove model_warmup",
            *code.node_location(last),
        )
    statement = _always_raised(execute.body, requests_parameter(execute))
    if statement is not None and not Flow.for_source(code).may_exit_before(statement, execute):
        yield Hit(
            f"execute always raises here, so the warm-up {samples[0].name} fails",
            "remove the raise, or remove model_warmup",
            *code.node_location(statement),
        )


def _has_only_errors(code: PythonSource, returned: ast.expr | None) -> bool:
    """Whether a returned list surely has nothing but responses with an error."""
    flow = Flow.for_source(code)
    elements = [returned.elt] if isinstance(returned, ast.ListComp) else []
    elements += returned.elts if isinstance(returned, ast.List) else []
    for element in elements:
        if not isinstance(element, ast.Call) or not flow.is_backend_call(
            element, "InferenceResponse"
        ):
            return False
        failure = PythonCall("", "", element).argument(1, "error")
        if not isinstance(failure, ast.Call):
            return False
    return bool(elements)


def _always_raised(body: list[ast.stmt], requests: str | None) -> ast.stmt | None:
    for statement in body:
        match statement:
            case ast.Raise():
                return statement
            case ast.Expr(value=ast.Call(func=callee)) if dotted_name(callee) in _EXITS:
                return statement
            case ast.For(iter=ast.Name(id=name)) if name == requests:
                return _always_raised(statement.body, requests)
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.Import() | ast.ImportFrom():
                continue
        return None
    return None


@error(
    "TC253 undefined-in-execute",
    summary="a name that model.py defines nowhere, used by every request",
    reason="The model is loaded, and every request fails with a NameError.",
    shows="traffic",
)
def undefined_in_execute(code: PythonSource) -> Iterator[Hit]:
    return undefined_names_in(code, "execute")


@warning(
    "TC255 failing-finalize",
    summary="a finalize that cannot be called, or uses a name that model.py defines nowhere",
    reason="finalize ends with an error when the model is unloaded: what follows does not run.",
)
def failing_finalize(code: PythonSource) -> Iterator[Hit]:
    yield from undefined_names_in(code, "finalize")
    finalize = code.method("finalize")
    if finalize is not None and not accepts_arguments(finalize, 1):
        yield Hit(
            f"finalize is called without arguments, which finalize({ast.unparse(finalize.args)}) "
            "does not take",
            "write def finalize(self)",
            *code.node_location(finalize),
        )


@error(
    "TC254 metric-arguments",
    summary="a metric with arguments that its kind does not take",
    reason="The code raises a TritonModelException. In initialize, it makes the backend refuse the "
    "model.",
)
def metric_arguments(code: PythonSource) -> Iterator[Hit]:
    flow = Flow.for_source(code)
    yield from _families_again(code, flow)
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
    for method in sorted({name for names in _METRIC_METHODS.values() for name in names}):
        for call in code.calls_named(method):
            if problem := _method_problem(code, flow, call):
                yield Hit(problem[0], problem[1], *code.node_location(call.node))


def _families_again(code: PythonSource, flow: Flow) -> Iterator[Hit]:
    """Yield a hit for each family with the name of an earlier one of another kind."""
    kinds: dict[str, str] = {}
    for call in code.calls_named("MetricFamily"):
        name, kind = call.text(0, "name"), call.argument(2, "kind")
        if name is None or not isinstance(kind, ast.Attribute) or flow.is_conditional(call.node):
            continue
        if kinds.setdefault(name, kind.attr) != kind.attr and not flow.may_fail(call.node):
            yield Hit(
                f"the metric {name} is a {kinds[name]} already, and here a {kind.attr}",
                "give it another name",
                *code.node_location(call.node),
            )


def _method_problem(code: PythonSource, flow: Flow, call: PythonCall) -> tuple[str, str] | None:
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    metric = _assigned_once(code, flow, owner) if owner is not None else None
    if not isinstance(metric, ast.Call) or flow.may_fail(call.node):
        return None
    made = PythonCall("Metric", "", metric)
    kind = _kind_of_family(code, made) if dotted_name(metric.func).endswith("Metric") else None
    if kind is None:
        return None
    if call.name not in _METRIC_METHODS[kind]:
        return f"a {kind} has no {call.name}()", f"call {' or '.join(_METRIC_METHODS[kind])}"
    amount = literal_value(call.argument(0, "value"))
    if kind == "COUNTER" and isinstance(amount, int | float) and amount < 0:
        return "a COUNTER only grows", "make it a GAUGE, or increment it by a positive number"
    return None


def _family_problem(call: PythonCall) -> tuple[str, str] | None:
    name = call.text(0, "name")
    if name is not None and not _METRIC_NAME.fullmatch(name):
        return (
            f"Prometheus allows no metric called {name!r}",
            "use letters, digits, _ and :, and no digit first",
        )
    kind = call.argument(2, "kind")
    keywords = {keyword.arg for keyword in call.node.keywords}
    has_spread = None in keywords or any(isinstance(a, ast.Starred) for a in call.node.args)
    if kind is None and not has_spread:
        return (
            "a MetricFamily without a kind",
            "write kind=pb_utils.MetricFamily.COUNTER, GAUGE or HISTOGRAM",
        )
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
    labels = call.argument(0, "labels")
    if isinstance(labels, ast.List | ast.Tuple | ast.Constant) and literal_value(labels):
        return "the labels of a metric are a dictionary", 'write labels={"name": "value"}'
    return _bucket_problem(kind, call, "buckets" in passed)


def _bucket_problem(kind: str, call: PythonCall, has_buckets: bool) -> tuple[str, str] | None:
    if kind != _HISTOGRAM:
        problem = f"a {kind} has no buckets"
        return (problem, "remove `buckets`, or make it a HISTOGRAM") if has_buckets else None
    if not has_buckets:
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


def _assigned_once(code: PythonSource, flow: Flow, node: ast.expr) -> ast.expr | None:
    """Return the only value of a name or of an attribute such as `self.family`."""
    if not isinstance(node, ast.Attribute):
        return flow.resolve_name(node)
    assigned = memoized(code, "assigned attributes", lambda: _assigned_attributes(code))
    values = assigned.get(dotted_name(node), [])
    return values[0] if len(values) == 1 else None


def _kind_of_family(code: PythonSource, call: PythonCall) -> str | None:
    """Return the kind of the family that a metric is made from; None if it is not certain."""
    flow = Flow.for_source(code)
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    family = _assigned_once(code, flow, owner) if owner is not None else None
    if not isinstance(family, ast.Call) or not flow.is_backend_call(family, "MetricFamily"):
        return None
    kind = PythonCall("", "", family).argument(2, "kind")
    name = kind.attr if isinstance(kind, ast.Attribute) else None
    return name if name in _KINDS else None
