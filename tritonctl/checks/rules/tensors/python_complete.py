# SPDX-License-Identifier: Apache-2.0
"""TC223 and TC240 to TC242: what auto_complete_config of a model.py makes of its configuration.

Source: https://github.com/triton-inference-server/python_backend#auto_complete_config and
https://github.com/triton-inference-server/python_backend/blob/main/src/resources/
triton_python_backend_utils.py; each example tried on tritonserver 2.51. Only what stands in the
code and surely runs is judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.declared import Tensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.dictionaries import Entries, entries_of
from tritonctl.checks.model_py.flow import Flow, literal
from tritonctl.checks.model_py.source import Call, PythonSource, own_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest

_NEEDED = ("name", "data_type", "dims")
# What the dictionaries of these methods may have, by the method's name.
_KEYS = {"add_input": (*_NEEDED, "optional"), "add_output": _NEEDED}
_DECLARED = {"add_input": inputs, "add_output": outputs}
_POLICY = "set_model_transaction_policy"


@error(
    "TC223 auto-complete-contradicts",
    summary="an auto_complete_config that contradicts config.pbtxt",
    why="The methods of its argument compare with what is written, and raise an error where it "
    "differs: the model is refused.",
)
def contradicts(
    _config: ConfigMessage, code: PythonSource, completing: ast.FunctionDef, model: Model
) -> Iterator[Hit]:
    for flow, call in _sure_calls(code, completing):
        if problem := _contradiction(model, flow, call):
            yield Hit(
                f"auto_complete_config says {problem} in config.pbtxt",
                "write the same in both, or leave it out of config.pbtxt",
                *code.at(call.node),
            )


def _sure_calls(code: PythonSource, method: ast.FunctionDef) -> Iterator[tuple[Flow, Call]]:
    flow = Flow.of(code)
    for call in code.calls:
        if flow.function(call.node) is method and flow.surely_runs(call.node, method):
            yield flow, call


def _contradiction(model: Model, flow: Flow, call: Call) -> str | None:
    """What a call says, and what the configuration says instead."""
    message = model.config.message
    if call.name in _DECLARED:
        added = entries_of(flow, call.argument(0, _argument(call))) or {}
        name = literal(added.get("name"))
        same = (tensor for tensor in _DECLARED[call.name](model) if tensor.name == name)
        return next((_other(tensor, added) for tensor in same), None)
    if call.name == "set_max_batch_size":
        given = literal(call.argument(0, "max_batch_size"))
        smaller = isinstance(given, int) and message.max_batch_size > given
        return f"max_batch_size {given}, which is {message.max_batch_size}" if smaller else None
    if call.name == "set_dynamic_batching" and message.HasField("sequence_batching"):
        return "dynamic_batching, and it is sequence_batching"
    if call.name == _POLICY and message.HasField("model_transaction_policy"):
        decoupled = literal((_policy(flow, call) or {}).get("decoupled"))
        written = message.model_transaction_policy.decoupled
        if isinstance(decoupled, bool) and decoupled is not written:
            return f"decoupled: {str(decoupled).lower()}, which is {str(written).lower()}"
    return None


def _argument(call: Call) -> str:
    return call.name.removeprefix("add_")


def _policy(flow: Flow, call: Call) -> Entries | None:
    return entries_of(flow, call.argument(0, "transaction_policy_dict"))


def _other(tensor: Tensor, added: Entries) -> str | None:
    kind, dims, optional = (literal(added.get(key)) for key in ("data_type", "dims", "optional"))
    if isinstance(kind, str) and tensor.dtype not in ("TYPE_INVALID", kind):
        return f"{tensor.name} is {kind}, which is {tensor.dtype}"
    # A tuple is never equal to the list that the configuration's dims are.
    if isinstance(dims, list | tuple) and tensor.dims and list(tensor.dims) != dims:
        return f"{tensor.name} has dims {dims}, which are {list(tensor.dims)}"
    if isinstance(optional, bool) and tensor.path[0] == "input" and optional != tensor.optional:
        return f"optional {optional} of {tensor.name}, which is {tensor.optional}"
    return None


@error(
    "TC240 added-tensor",
    summary="a tensor that auto_complete_config adds without its name, type or dims, or with more",
    why="add_input and add_output take name, data_type and dims, inputs also optional, and raise "
    "an error over any other dictionary; dims are as in config.pbtxt. The model is refused.",
)
def added(code: PythonSource, completing: ast.FunctionDef, model: Model) -> Iterator[Hit]:
    for flow, call in _sure_calls(code, completing):
        entries = (
            entries_of(flow, call.argument(0, _argument(call))) if call.name in _KEYS else None
        )
        if entries is None or _contradiction(model, flow, call):
            continue
        if problem := _problem(call, entries):
            name = literal(entries.get("name"))
            called = f"the {_argument(call)} {name}" if name else f"an {_argument(call)}"
            yield Hit(f"{called} is added {problem[0]}", problem[1], *code.at(call.node))


def _problem(call: Call, entries: Entries) -> tuple[str, str] | None:
    allowed = _KEYS[call.name]
    unknown = [key for key in entries if key not in allowed]
    if unknown:
        close = suggest(unknown[0], allowed)
        fix = f"did you mean {close}?" if close else "remove it, and write it into config.pbtxt"
        return f"with {unknown[0]}, which {call.name} does not take", fix
    lacking = [key for key in _NEEDED if key not in entries]
    if lacking:
        return f"without {' and '.join(lacking)}", f"give its dictionary {', '.join(_NEEDED)}"
    dims = literal(entries["dims"])
    if isinstance(dims, list | tuple) and not (dims and all(map(_possible, dims))):
        return f"with dims {dims}", "write a list of sizes of 1 or more, -1 where one varies"
    return None


def _possible(size: object) -> bool:
    return not isinstance(size, int) or size == -1 or size > 0


@error(
    "TC241 no-configuration-returned",
    summary="an auto_complete_config that does not return the configuration",
    why="The backend takes what it returns: `must return a valid pb.ModelConfig object`, and the "
    "model is refused.",
)
def not_returned(code: PythonSource, completing: ast.FunctionDef) -> Iterator[Hit]:
    nodes = own_nodes(completing)
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    if all(map(_is_no_configuration, returned)):
        names = [argument.arg for argument in completing.args.args]
        given = [one for one in returned if one is not None]
        yield Hit(
            f"auto_complete_config returns {ast.unparse(given[0]) if given else 'nothing'}",
            f"end it with: return {names[-1] if names else 'auto_complete_model_config'}",
            *code.at(given[0] if given else completing),
        )


def _is_no_configuration(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr == "as_dict"
    return value is None or isinstance(value, ast.Constant | ast.Dict | ast.List | ast.Tuple)


@error(
    "TC242 transaction-policy",
    summary="a transaction policy of auto_complete_config that is none",
    why="set_model_transaction_policy takes a dictionary with the key decoupled, and no other: "
    "the model is refused.",
)
def policy(code: PythonSource, completing: ast.FunctionDef) -> Iterator[Hit]:
    for flow, call in _sure_calls(code, completing):
        if call.name != _POLICY:
            continue
        given = call.argument(0, "transaction_policy_dict")
        entries = entries_of(flow, given)
        unknown = [key for key in entries or () if key != "decoupled"]
        if isinstance(given, ast.Constant):
            wrong = ast.unparse(given)
        elif unknown:
            wrong = f"the key {unknown[0]}"
        else:
            continue
        yield Hit(
            f"{_POLICY} is given {wrong}",
            'write {"decoupled": True} or {"decoupled": False}',
            *code.at(call.node),
        )
