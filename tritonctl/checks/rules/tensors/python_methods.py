# SPDX-License-Identifier: Apache-2.0
"""TC224 to TC228: imports, method signatures and missing responses of a model.py.

Source: https://github.com/triton-inference-server/python_backend#usage; each example was tried on
tritonserver 2.51.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import BACKEND_UTILS, Flow, requests_parameter
from tritonctl.checks.model_py.source import (
    Function,
    PythonSource,
    dotted_name,
    scope_nodes,
)
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning

# Classes that the backend adds to the module after it has imported model.py.
_LATE_CLASSES = {
    "Tensor",
    "InferenceRequest",
    "InferenceResponse",
    "TritonError",
    "TritonModelException",
}


@error(
    "TC224 imported-too-early",
    summary="a class imported from triton_python_backend_utils at the top of model.py",
    reason="The backend adds its classes to that module after it has imported model.py: `cannot "
    "import name 'Tensor'`, and the model is refused.",
    answers=("server#4870",),
)
def imported_too_early(code: PythonSource) -> Iterator[Hit]:
    if code.tree is None:
        return
    for node in code.tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module != BACKEND_UTILS:
            continue
        early = [alias.name for alias in node.names if alias.name in _LATE_CLASSES]
        if early:
            yield Hit(
                f"{BACKEND_UTILS} has no {' and no '.join(early)} yet when the backend imports "
                f"{code.path.name}",
                f"import {BACKEND_UTILS} as pb_utils, and write pb_utils.{early[0]}",
                *code.node_location(node),
            )


@warning(
    "TC225 own-backend-utils",
    summary="a copy of triton_python_backend_utils.py next to the model",
    reason="The model imports the copy, which may be of another release than the server. If a "
    "function is missing, the model is refused.",
    answers=("server#3332",),
)
def own_utils(model: Model) -> Iterator[Hit]:
    version = model.served_version
    if model.backend != "python" or version is None:
        return
    name = f"{BACKEND_UTILS}.py"
    if name in model.version_files(version):
        yield Hit(
            f"{name} next to the model hides the server's own",
            "remove it: the backend provides the module",
            relative_path=f"{version}/{name}",
        )


@error(
    "TC226 method-signature",
    summary="a method that cannot be called as the backend calls it",
    reason="initialize gets one argument, the constructor none, and auto_complete_config is "
    "static. Otherwise a TypeError makes the backend refuse the model.",
)
def method_signature(model: Model) -> Iterator[Hit]:
    yield from _wrong_signatures(model, {"__init__": 1, "initialize": 2, "auto_complete_config": 1})


@error(
    "TC227 execute-signature",
    summary="an execute that does not take the requests",
    reason="The model is loaded, and every request fails with a TypeError.",
    shows="traffic",
)
def execute_signature(model: Model) -> Iterator[Hit]:
    yield from _wrong_signatures(model, {"execute": 2})


_NO_RETURN = (ast.Yield, ast.YieldFrom, ast.Raise)
_EXPECTED_CALLS = {
    "__init__": "TritonPythonModel()",
    "initialize": "initialize(self, args)",
    "auto_complete_config": "@staticmethod auto_complete_config(auto_complete_model_config)",
    "execute": "execute(self, requests)",
}


def _wrong_signatures(model: Model, argument_counts: dict[str, int]) -> Iterator[Hit]:
    code = model.code
    for name, arguments in argument_counts.items() if code and code.model_class else ():
        method = code.method(name) if code else None
        # The backend calls a plain function on the class, so `self` would be the argument.
        if code is None or method is None or accepts_arguments(method, arguments):
            continue
        yield Hit(
            f"{name} is called as {_EXPECTED_CALLS[name]}, which "
            f"{name}({ast.unparse(method.args)}) does "
            "not take",
            f"write def {_EXPECTED_CALLS[name].removeprefix('@staticmethod ')}"
            if name != "__init__"
            else "move what needs arguments into initialize(self, args)",
            *code.node_location(method),
        )


def accepts_arguments(method: Function, argument_count: int) -> bool:
    """Whether a method accepts that many arguments, including `self`."""
    decorators = [dotted_name(decorator) for decorator in method.decorator_list]
    if decorators and decorators != ["staticmethod"]:
        return True
    if decorators and method.name in ("execute", "initialize"):
        argument_count -= 1
    arguments = method.args
    positional_count = len(arguments.posonlyargs) + len(arguments.args)
    required_count = positional_count - len(arguments.defaults)
    if any(default is None for default in arguments.kw_defaults):
        return False
    return required_count <= argument_count and (
        argument_count <= positional_count or arguments.vararg is not None
    )


@error(
    "TC228 nothing-returned",
    summary="an execute that returns no responses",
    reason="Unless it sends them one by one, every client hangs.",
    shows="traffic",
)
def nothing_returned(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None:
        return
    if config.message.model_transaction_policy.decoupled:
        return
    nodes = list(scope_nodes(execute))
    returns_value = any(isinstance(node, ast.Return) and not _is_none(node) for node in nodes)
    if returns_value or any(isinstance(node, _NO_RETURN) for node in nodes):
        return
    answers_somewhere = bool(code.calls_named("InferenceResponse"))
    if execute.decorator_list or (not answers_somewhere and hands_requests_on(code, execute)):
        return
    if not _may_answer_otherwise(code):
        yield Hit(
            "execute returns nothing, so no client receives its responses",
            "return them: a list with one for each request, in their order",
            *code.node_location(execute),
        )


def hands_requests_on(code: PythonSource, execute: Function) -> bool:
    """Whether the requests may get to other code, which may send the responses."""
    requests, flow = requests_parameter(execute), Flow.for_source(code)
    names = flow.names_in(execute)
    pending, seen = [requests or ""], set[str]()
    while pending:
        name = pending.pop()
        seen.add(name)
        for use in names.get(name, ()):
            user = flow.parent(use)
            if isinstance(user, ast.For | ast.comprehension) and user.iter is use:
                targets = [user.target]
            elif isinstance(use.ctx, ast.Load) and not _only_looks(flow, use, user):
                return True
            else:
                targets = []
            new_names = {
                node.id
                for target in targets
                for node in ast.walk(target)
                if isinstance(node, ast.Name)
            }
            pending += sorted(new_names - seen)
    return requests is None


def _only_looks(flow: Flow, use: ast.Name, user: ast.AST | None) -> bool:
    """Whether an expression reads something of a request, or of the list, and keeps neither."""
    if isinstance(user, ast.Attribute | ast.Compare | ast.If):
        return True
    if not isinstance(user, ast.Call) or not isinstance(user.func, ast.Attribute | ast.Name):
        return False
    callee = user.func
    if isinstance(callee, ast.Name):
        return callee.id in ("len", "print", "range", "str", "repr")
    return use in user.args and flow.is_module(callee.value, BACKEND_UTILS)


def _is_none(node: ast.Return) -> bool:
    """Whether a statement is `return` or `return None`."""
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _may_answer_otherwise(code: PythonSource) -> bool:
    """Whether the code may send responses one by one, or make the model decoupled."""
    sender_names = {"get_response_sender", "set_model_transaction_policy", "setattr", "exec"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in sender_names)
        or (isinstance(node, ast.Name) and node.id in sender_names)
        for node in code.nodes
    )
