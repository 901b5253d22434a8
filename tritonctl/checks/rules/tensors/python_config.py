# SPDX-License-Identifier: Apache-2.0
"""TC237 to TC239: wrong use of the configuration in a model.py.

Source: https://github.com/triton-inference-server/python_backend#initialize
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.declared import inputs, outputs
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.flow import Flow, requests_parameter
from tritonctl.checks.model_py.source import PythonCall, PythonSource
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error

_LOOKUPS = {"get_input_config_by_name": inputs, "get_output_config_by_name": outputs}


@error(
    "TC238 unknown-lookup",
    summary="the configuration of a tensor looked up by a name that is not declared",
    reason="get_input_config_by_name and get_output_config_by_name return None for it: `NoneType "
    "object is not subscriptable`, and the model is refused.",
)
def unknown_lookup(model: Model) -> Iterator[Hit]:
    for code, call, side in _unknown_lookups(model):
        names = ", ".join(tensor.name for tensor in _LOOKUPS[call.name](model)) or "none"
        yield Hit(
            f"the {side} {call.text(1, 'name')} is not declared, so initialize fails here; "
            f"declared: {names}",
            "look up one of those, or declare it in config.pbtxt",
            *code.node_location(call.node),
        )


def undeclared_lookup_names(model: Model, side: str) -> set[str]:
    """Return the names of inputs or outputs that TC238 reports as not declared."""
    lookups = ((call, looked_up_side) for _, call, looked_up_side in _unknown_lookups(model))
    return {
        call.text(1, "name") or "" for call, looked_up_side in lookups if looked_up_side == side
    }


def _unknown_lookups(model: Model) -> Iterator[tuple[PythonSource, PythonCall, str]]:
    code = model.code
    initialize = code.method("initialize") if code else None
    if code is None or initialize is None or code.method("auto_complete_config"):
        return
    for name, tensors in _LOOKUPS.items():
        for call in code.calls_named(name):
            name_argument = call.text(1, "name")
            declared = tensors(model)
            if (
                not name_argument
                or not declared
                or any(tensor.name in ("", name_argument) for tensor in declared)
            ):
                continue
            if Flow.for_source(code).always_used_in(call.node, ast.Subscript, initialize):
                yield code, call, name.split("_")[1]


@error(
    "TC239 unparsed-configuration",
    summary='args["model_config"] used as a dictionary',
    reason="It is a string: `string indices must be integers`, and the model is refused.",
)
def unparsed_configuration(code: PythonSource) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if initialize is None:
        return
    flow, arguments = Flow.for_source(code), requests_parameter(initialize)
    for node in ast.walk(initialize):
        if not isinstance(node, ast.Subscript) or not _is_text(node.slice):
            continue
        text = flow.resolve_name(node.value)
        if (
            isinstance(text, ast.Subscript)
            and isinstance(text.value, ast.Name)
            and text.value.id == arguments
            and isinstance(text.slice, ast.Constant)
            and text.slice.value == "model_config"
            and flow.always_runs(node, initialize)
        ):
            yield Hit(
                f'{arguments}["model_config"] is a JSON string, which has no items',
                f'parse it: json.loads({arguments}["model_config"])',
                *code.node_location(node),
            )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@error(
    "TC237 bfloat-as-numpy",
    summary="as_numpy() of a TYPE_BF16 input",
    reason="numpy has no such type: every request fails, `cannot be converted to NumPy`.",
    shows="traffic",
)
def bfloat16(code: PythonSource, model: Model) -> Iterator[Hit]:
    names = {tensor.name for tensor in inputs(model) if tensor.dtype == "TYPE_BF16"}
    if not names:
        return
    flow = Flow.for_source(code)
    for call in code.calls_named("as_numpy"):
        callee = call.node.func
        value = flow.resolve_name(callee.value) if isinstance(callee, ast.Attribute) else None
        if value is None or not flow.is_backend_call(value, "get_input_tensor_by_name"):
            continue
        assert isinstance(value, ast.Call)  # noqa: S101 - for the type checker
        name = PythonCall("", "", value).text(1, "name")
        if name in names and not flow.is_conditional(call.node):
            yield Hit(
                f"{name} is TYPE_BF16, which numpy does not have",
                "read it with to_dlpack(), as torch does: torch.from_dlpack(tensor.to_dlpack())",
                *code.node_location(call.node),
            )
