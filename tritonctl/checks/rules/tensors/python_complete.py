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
from typing import NamedTuple

from tritonctl.checks.analysis.declared import Tensor, inputs, outputs
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.dictionaries import Entries, entries_of, items_of
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


class _Addition(NamedTuple):
    """A tensor that is surely given to add_input or add_output.

    if_new: only where the configuration has none of its name.
    """

    method: str
    entries: Entries
    node: ast.expr
    if_new: bool = False

    @property
    def direction(self) -> str:
        """What it adds: `input` or `output`."""
        return self.method.removeprefix("add_")

    def declared(self, model: Model) -> Tensor | None:
        """The tensor that config.pbtxt has of its name."""
        name = literal(self.entries.get("name"))
        same = (tensor for tensor in _DECLARED[self.method](model) if tensor.name == name)
        return next(same, None)


def _additions(code: PythonSource, method: ast.FunctionDef) -> Iterator[_Addition]:
    for flow, call in _sure_calls(code, method):
        if call.name in _DECLARED:
            given = call.argument(0, call.name.removeprefix("add_"))
            entries = entries_of(flow, given)
            if entries is not None:
                yield _Addition(call.name, entries, call.node)
    yield from _additions_in_loops(Flow.of(code), method)


def _additions_in_loops(flow: Flow, method: ast.FunctionDef) -> Iterator[_Addition]:
    """Those of `for one in tensors: config.add_input(one)`, with or without `if` it is new."""
    for loop in method.body:
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
            continue
        if flow.may_end_before(loop, method):
            return
        [statement, *more] = loop.body
        test = statement.test if isinstance(statement, ast.If) else None
        # `one["name"] not in names`, where names are those of the configuration.
        if_new = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)
        if isinstance(statement, ast.If) and if_new and not statement.orelse:
            [statement, *more] = [*statement.body, *more]
        name = _method_given(statement, loop.target.id)
        for item in items_of(flow, loop.iter) if name in _DECLARED and not more else ():
            entries = entries_of(flow, item) if isinstance(item, ast.Dict | ast.Call) else None
            if entries is not None:
                yield _Addition(name, entries, item, if_new)


def _method_given(statement: ast.stmt, name: str) -> str:
    """The method that a statement calls with that name alone; "" where it does something else."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    given = [one.id for one in call.args if isinstance(one, ast.Name)]
    alone = len(call.args) == 1 and not call.keywords
    return call.func.attr if alone and given == [name] else ""


@error(
    "TC223 auto-complete-contradicts",
    summary="an auto_complete_config that contradicts config.pbtxt",
    why="The methods of its argument compare with what is written, and raise an error where it "
    "differs: the model is refused.",
)
def contradicts(
    _config: ConfigMessage, code: PythonSource, completing: ast.FunctionDef, model: Model
) -> Iterator[Hit]:
    problems = [
        *(
            (call.node, _contradiction(model, flow, call))
            for flow, call in _sure_calls(code, completing)
        ),
        *((one.node, _contradicted(model, one)) for one in _additions(code, completing)),
    ]
    for node, problem in problems:
        if problem:
            yield Hit(
                f"auto_complete_config says {problem} in config.pbtxt",
                "write the same in both, or leave it out of config.pbtxt",
                *code.at(node),
            )


def _sure_calls(code: PythonSource, method: ast.FunctionDef) -> Iterator[tuple[Flow, Call]]:
    flow = Flow.of(code)
    for call in code.calls:
        if flow.function(call.node) is method and flow.surely_runs(call.node, method):
            yield flow, call


def _contradiction(model: Model, flow: Flow, call: Call) -> str | None:
    """What a call says, and what the configuration says instead."""
    message = model.config.message
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


def _policy(flow: Flow, call: Call) -> Entries | None:
    return entries_of(flow, call.argument(0, "transaction_policy_dict"))


def _contradicted(model: Model, one: _Addition) -> str | None:
    """What an added tensor has, and its declaration has instead."""
    tensor = None if one.if_new else one.declared(model)
    return _other(tensor, one.entries) if tensor else None


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
    for one in _additions(code, completing):
        if _contradicted(model, one) or (one.if_new and one.declared(model)):
            continue
        if problem := _problem(one):
            name = literal(one.entries.get("name"))
            called = f"the {one.direction} {name}" if name else f"an {one.direction}"
            yield Hit(f"{called} is added {problem[0]}", problem[1], *code.at(one.node))


def _problem(one: _Addition) -> tuple[str, str] | None:
    allowed, entries = _KEYS[one.method], one.entries
    unknown = [key for key in entries if key not in allowed]
    if unknown:
        close = suggest(unknown[0], allowed)
        fix = f"did you mean {close}?" if close else "remove it, and write it into config.pbtxt"
        return f"with {unknown[0]}, which {one.method} does not take", fix
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
    summary="a transaction policy in auto_complete_config that Triton does not know",
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
