# SPDX-License-Identifier: Apache-2.0
"""TC224 to TC229: what a model.py imports, how its methods are called, what they hand over.

Source: https://github.com/triton-inference-server/python_backend#usage, and each example tried on
tritonserver 2.51.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import BACKEND_UTILS, Flow
from tritonctl.checks.model_py.source import Call, Function, PythonSource, dotted_name, own_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning

# What the backend puts into the module when it has imported model.py.
_LATER = {"Tensor", "InferenceRequest", "InferenceResponse", "TritonError", "TritonModelException"}


@error(
    "TC224 imported-too-early",
    summary="a class imported from triton_python_backend_utils at the top of model.py",
    why="The backend adds its classes to that module after it has imported model.py: `cannot "
    "import name 'Tensor'`, and the model is refused.",
    answers=("server#4870",),
)
def imported_too_early(code: PythonSource) -> Iterator[Hit]:
    if code.tree is None:
        return
    for node in code.tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module != BACKEND_UTILS:
            continue
        early = [alias.name for alias in node.names if alias.name in _LATER]
        if early:
            yield Hit(
                f"{BACKEND_UTILS} has no {' and no '.join(early)} yet when the backend imports "
                f"{code.path.name}",
                f"import {BACKEND_UTILS} as pb_utils, and say pb_utils.{early[0]} where it is used",
                *code.at(node),
            )


@warning(
    "TC225 own-backend-utils",
    summary="a copy of triton_python_backend_utils.py next to the model",
    why="It comes first, so that the model runs with the functions of another release than the "
    "server's; where one is missing, it is refused.",
    answers=("server#3332",),
)
def own_utils(model: Model) -> Iterator[Hit]:
    version = model.served_version
    if model.backend != "python" or version is None:
        return
    name = f"{BACKEND_UTILS}.py"
    if name in model.files_of(version):
        yield Hit(
            f"{name} next to the model hides the server's own",
            "remove it: the backend finds its own",
            place=f"{version}/{name}",
        )


@error(
    "TC226 method-signature",
    summary="a method that cannot be called as the backend calls it",
    why="initialize gets one argument, the constructor none, and auto_complete_config is "
    "static: a TypeError refuses the model.",
)
def signature(model: Model) -> Iterator[Hit]:
    yield from _wrong_signatures(model, {"__init__": 1, "initialize": 2, "auto_complete_config": 1})


@error(
    "TC227 execute-signature",
    summary="an execute that does not take the requests",
    why="The model is loaded, and every request fails with a TypeError.",
    shows="traffic",
)
def execute_signature(model: Model) -> Iterator[Hit]:
    yield from _wrong_signatures(model, {"execute": 2})


_NO_RETURN = (ast.Yield, ast.YieldFrom, ast.Raise)
_CALLED = {
    "__init__": "TritonPythonModel()",
    "initialize": "initialize(self, args)",
    "auto_complete_config": "@staticmethod auto_complete_config(auto_complete_model_config)",
    "execute": "execute(self, requests)",
}


def _wrong_signatures(model: Model, wanted: dict[str, int]) -> Iterator[Hit]:
    code = model.code
    for name, arguments in wanted.items() if code and code.model_class else ():
        method = code.method(name) if code else None
        # On a class, a plain function is called as a static one; `self` would be the argument.
        if code is None or method is None or _takes(method, arguments):
            continue
        yield Hit(
            f"{name} is called as {_CALLED[name]}, which {name}({ast.unparse(method.args)}) does "
            "not take",
            f"write def {_CALLED[name].removeprefix('@staticmethod ')}"
            if name != "__init__"
            else "move what needs arguments into initialize(self, args)",
            *code.at(method),
        )


def _takes(method: Function, given: int) -> bool:
    """Whether it can be called with so many arguments, `self` included."""
    decorators = [dotted_name(one) for one in method.decorator_list]
    if decorators and decorators != ["staticmethod"]:
        return True
    if decorators and method.name in ("execute", "initialize"):
        given -= 1
    arguments = method.args
    places = len(arguments.posonlyargs) + len(arguments.args)
    needed = places - len(arguments.defaults)
    if any(default is None for default in arguments.kw_defaults):
        return False
    return needed <= given and (given <= places or arguments.vararg is not None)


@error(
    "TC228 nothing-returned",
    summary="an execute that returns no responses",
    why="Unless it sends them one by one, every client hangs.",
    shows="traffic",
)
def nothing_returned(config: ConfigMessage, code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    if execute is None:
        return
    if config.message.model_transaction_policy.decoupled:
        return
    nodes = list(own_nodes(execute))
    handed = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    if handed or any(isinstance(node, _NO_RETURN) for node in nodes):
        return
    if code.called("InferenceResponse") and not _answers_otherwise(code):
        yield Hit(
            "execute returns nothing, so nobody receives its responses",
            "return them: a list with one for each request, in their order",
            *code.at(execute),
        )


def _answers_otherwise(code: PythonSource) -> bool:
    """Whether responses may be sent one by one, or the model be made decoupled by its code."""
    others = {"get_response_sender", "set_model_transaction_policy", "setattr", "exec"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in others)
        or (isinstance(node, ast.Name) and node.id in others)
        for node in code.nodes
    )


@error(
    "TC229 wrong-argument",
    summary="a list where the backend takes one thing, or one thing where it takes a list",
    why="A tensor is made of a numpy array, a response of a list of tensors, and execute "
    "returns a list: anything else fails every request.",
    shows="traffic",
)
def wrong_argument(code: PythonSource) -> Iterator[Hit]:
    execute = code.method("execute")
    flow = Flow.of(code)
    for call in (*code.called("Tensor"), *code.called("InferenceResponse")):
        if not flow.may_fail(call.node) and (problem := _problem_of_call(flow, call)):
            yield Hit(problem[0], problem[1], *code.at(call.node))
    for node in own_nodes(execute) if execute else ():
        value = node.value if isinstance(node, ast.Return) else None
        if value is not None and flow.calls_backend(value, "InferenceResponse"):
            yield Hit(
                "execute returns a response instead of a list of them",
                "return a list with one response for each request",
                *code.at(value),
            )


def _problem_of_call(flow: Flow, call: Call) -> tuple[str, str] | None:
    if flow.calls_backend(call.node, "Tensor"):
        array = call.argument(1)
        value = flow.only_value(array) if array is not None and call.text(0) else None
        if isinstance(value, ast.List | ast.ListComp | ast.Constant):
            kind = "a list" if not isinstance(value, ast.Constant) else repr(value.value)[:40]
            return (
                f"the tensor {call.text(0)} is made of {kind}, not of an array",
                "make it an array: np.array(…, dtype=…)",
            )
    if flow.calls_backend(call.node, "InferenceResponse"):
        tensors = call.argument(0, "output_tensors")
        value = flow.only_value(tensors) if tensors is not None else None
        if value is not None and flow.calls_backend(value, "Tensor"):
            return (
                "output_tensors is one tensor, not a list",
                "put it into brackets: output_tensors=[…]",
            )
    return None
