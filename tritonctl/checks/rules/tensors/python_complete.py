# SPDX-License-Identifier: Apache-2.0
"""TC223 and TC240 to TC242: an auto_complete_config whose changes are refused.

Source: https://github.com/triton-inference-server/python_backend#auto_complete_config and
https://github.com/triton-inference-server/python_backend/blob/main/src/resources/
triton_python_backend_utils.py; each example was tried on tritonserver 2.51. The rules judge only
literals in code that certainly runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.declared import DeclaredTensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.dictionaries import Entries, dictionary_entries, sequence_items
from tritonctl.checks.model_py.flow import Flow, literal_value
from tritonctl.checks.model_py.source import PythonCall, PythonSource, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest

_REQUIRED_KEYS = ("name", "data_type", "dims")
# Allowed keys of the dictionaries that these methods take.
_ALLOWED_KEYS = {"add_input": (*_REQUIRED_KEYS, "optional"), "add_output": _REQUIRED_KEYS}
_DECLARED_BY_METHOD = {"add_input": inputs, "add_output": outputs}
_POLICY = "set_model_transaction_policy"


class _Addition(NamedTuple):
    """A tensor that is certainly passed to add_input or add_output."""

    method: str
    entries: Entries
    node: ast.expr
    if_new: bool = False  # only if the configuration has no tensor of that name

    @property
    def direction(self) -> str:
        """The kind of tensor: `input` or `output`."""
        return self.method.removeprefix("add_")

    def declared(self, model: Model) -> DeclaredTensor | None:
        """Return the tensor of the same name in config.pbtxt; None if it has none."""
        name = literal_value(self.entries.get("name"))
        same = (tensor for tensor in _DECLARED_BY_METHOD[self.method](model) if tensor.name == name)
        return next(same, None)


def _additions(code: PythonSource, method: ast.FunctionDef) -> Iterator[_Addition]:
    for flow, call in _certain_calls(code, method):
        if call.name in _DECLARED_BY_METHOD:
            tensor_node = call.argument(0, call.name.removeprefix("add_"))
            entries = dictionary_entries(flow, tensor_node)
            if entries is not None:
                yield _Addition(call.name, entries, call.node)
    yield from _additions_in_loops(Flow.for_source(code), method)


def _additions_in_loops(flow: Flow, method: ast.FunctionDef) -> Iterator[_Addition]:
    """Yield the additions of `for tensor in tensors: config.add_input(tensor)`, even below `if`."""
    for loop in method.body:
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
            continue
        if flow.may_exit_before(loop, method):
            return
        [statement, *remaining_statements] = loop.body
        test = statement.test if isinstance(statement, ast.If) else None
        # `tensor["name"] not in names`, with the names of the configuration.
        if_new = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)
        if isinstance(statement, ast.If) and if_new and not statement.orelse:
            [statement, *remaining_statements] = [*statement.body, *remaining_statements]
        name = _method_called_with(statement, loop.target.id)
        for item in (
            sequence_items(flow, loop.iter)
            if name in _DECLARED_BY_METHOD and not remaining_statements
            else ()
        ):
            entries = (
                dictionary_entries(flow, item) if isinstance(item, ast.Dict | ast.Call) else None
            )
            if entries is not None:
                yield _Addition(name, entries, item, if_new)


def _method_called_with(statement: ast.stmt, name: str) -> str:
    """Return the method that a statement calls with only that name; "" for other statements."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    argument_names = [argument.id for argument in call.args if isinstance(argument, ast.Name)]
    has_one_argument = len(call.args) == 1 and not call.keywords
    return call.func.attr if has_one_argument and argument_names == [name] else ""


@error(
    "TC223 auto-complete-contradicts",
    summary="an auto_complete_config that contradicts config.pbtxt",
    reason="The methods of its argument compare their values with config.pbtxt and raise an error "
    "for differences: the backend refuses the model.",
)
def auto_complete_contradicts(
    _config: ConfigMessage, code: PythonSource, auto_complete: ast.FunctionDef, model: Model
) -> Iterator[Hit]:
    problems = [
        *(
            (call.node, _call_contradiction(model, flow, call))
            for flow, call in _certain_calls(code, auto_complete)
        ),
        *(
            (addition.node, _addition_contradiction(model, addition))
            for addition in _additions(code, auto_complete)
        ),
    ]
    for node, problem in problems:
        if problem:
            yield Hit(
                f"auto_complete_config says {problem} in config.pbtxt",
                "write the same in both, or remove it from config.pbtxt",
                *code.node_location(node),
            )


def _certain_calls(
    code: PythonSource, method: ast.FunctionDef
) -> Iterator[tuple[Flow, PythonCall]]:
    flow = Flow.for_source(code)
    for call in code.calls:
        if flow.function(call.node) is method and flow.always_runs(call.node, method):
            yield flow, call


def _call_contradiction(model: Model, flow: Flow, call: PythonCall) -> str | None:
    """Describe how a call contradicts the configuration; None if it does not."""
    message = model.config.message
    if call.name == "set_max_batch_size":
        size = literal_value(call.argument(0, "max_batch_size"))
        is_smaller = isinstance(size, int) and message.max_batch_size > size
        return f"max_batch_size {size}, which is {message.max_batch_size}" if is_smaller else None
    if call.name == "set_dynamic_batching" and message.HasField("sequence_batching"):
        return "dynamic_batching, and it is sequence_batching"
    if call.name == _POLICY and message.HasField("model_transaction_policy"):
        decoupled = literal_value((_policy(flow, call) or {}).get("decoupled"))
        configured = message.model_transaction_policy.decoupled
        if isinstance(decoupled, bool) and decoupled is not configured:
            return f"decoupled: {str(decoupled).lower()}, which is {str(configured).lower()}"
    return None


def _policy(flow: Flow, call: PythonCall) -> Entries | None:
    return dictionary_entries(flow, call.argument(0, "transaction_policy_dict"))


def _addition_contradiction(model: Model, addition: _Addition) -> str | None:
    """Describe how an added tensor contradicts its declaration; None if it does not."""
    tensor = None if addition.if_new else addition.declared(model)
    return _tensor_contradiction(tensor, addition.entries) if tensor else None


def _tensor_contradiction(tensor: DeclaredTensor, added: Entries) -> str | None:
    kind, dims, optional = (
        literal_value(added.get(key)) for key in ("data_type", "dims", "optional")
    )
    if isinstance(kind, str) and tensor.dtype not in ("TYPE_INVALID", kind):
        return f"{tensor.name} is {kind}, which is {tensor.dtype}"
    # The configuration's dims are a list, which never equals a tuple.
    if isinstance(dims, list | tuple) and tensor.dims and list(tensor.dims) != dims:
        return f"{tensor.name} has dims {dims}, which are {list(tensor.dims)}"
    if isinstance(optional, bool) and tensor.path[0] == "input" and optional != tensor.optional:
        return f"optional {optional} of {tensor.name}, which is {tensor.optional}"
    return None


@error(
    "TC240 added-tensor",
    summary="a tensor that auto_complete_config adds without its name, type or dims, or with more",
    reason="add_input and add_output take name, data_type and dims, inputs also optional, and "
    "raise an error for other keys. dims are as in config.pbtxt. The backend refuses the model.",
)
def added_tensor(code: PythonSource, auto_complete: ast.FunctionDef, model: Model) -> Iterator[Hit]:
    for addition in _additions(code, auto_complete):
        if _addition_contradiction(model, addition) or (
            addition.if_new and addition.declared(model)
        ):
            continue
        if problem := _addition_problem(addition):
            name = literal_value(addition.entries.get("name"))
            label = f"the {addition.direction} {name}" if name else f"an {addition.direction}"
            yield Hit(
                f"{label} is added {problem[0]}", problem[1], *code.node_location(addition.node)
            )


def _addition_problem(addition: _Addition) -> tuple[str, str] | None:
    allowed, entries = _ALLOWED_KEYS[addition.method], addition.entries
    unknown_keys = [key for key in entries if key not in allowed]
    if unknown_keys:
        close = suggest(unknown_keys[0], allowed)
        fix = f"did you mean {close}?" if close else "remove it, and write it into config.pbtxt"
        return f"with {unknown_keys[0]}, which {addition.method} does not take", fix
    missing = [key for key in _REQUIRED_KEYS if key not in entries]
    if missing:
        return f"without {' and '.join(missing)}", f"set the keys {', '.join(_REQUIRED_KEYS)}"
    dims = literal_value(entries["dims"])
    if isinstance(dims, list | tuple) and not (dims and all(map(_is_valid_dimension, dims))):
        return f"with dims {dims}", "write a list of sizes: 1 or more, or -1 if variable"
    return None


def _is_valid_dimension(size: object) -> bool:
    return not isinstance(size, int) or size == -1 or size > 0


@error(
    "TC241 no-configuration-returned",
    summary="an auto_complete_config that does not return the configuration",
    reason="The backend uses the returned object: it says `must return a valid pb.ModelConfig "
    "object` and refuses the model.",
)
def not_returned(code: PythonSource, auto_complete: ast.FunctionDef) -> Iterator[Hit]:
    nodes = scope_nodes(auto_complete)
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    if all(map(_is_no_configuration, returned)):
        names = [argument.arg for argument in auto_complete.args.args]
        returned_values = [value for value in returned if value is not None]
        yield Hit(
            "auto_complete_config returns "
            f"{ast.unparse(returned_values[0]) if returned_values else 'nothing'}",
            f"end it with: return {names[-1] if names else 'auto_complete_model_config'}",
            *code.node_location(returned_values[0] if returned_values else auto_complete),
        )


def _is_no_configuration(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "as_dict"
    return value is None or isinstance(value, ast.Constant | ast.Dict | ast.List | ast.Tuple)


@error(
    "TC242 transaction-policy",
    summary="a transaction policy in auto_complete_config that Triton does not know",
    reason="set_model_transaction_policy takes a dictionary with only the key decoupled: the "
    "backend refuses the model.",
)
def transaction_policy(code: PythonSource, auto_complete: ast.FunctionDef) -> Iterator[Hit]:
    for flow, call in _certain_calls(code, auto_complete):
        if call.name != _POLICY:
            continue
        policy_node = call.argument(0, "transaction_policy_dict")
        entries = dictionary_entries(flow, policy_node)
        unknown_keys = [key for key in entries or () if key != "decoupled"]
        if isinstance(policy_node, ast.Constant):
            wrong = ast.unparse(policy_node)
        elif unknown_keys:
            wrong = f"the key {unknown_keys[0]}"
        else:
            continue
        yield Hit(
            f"{_POLICY} gets {wrong}",
            'write {"decoupled": True} or {"decoupled": False}',
            *code.node_location(call.node),
        )
