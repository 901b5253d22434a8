# SPDX-License-Identifier: Apache-2.0
"""TC407, TC411 to TC416: how a model.py sends its responses.

Source: https://github.com/triton-inference-server/python_backend#decoupled-mode
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.senders import Senders, bound, leaves, loop_around
from tritonctl.checks.analysis.streams import surely_not_decoupled
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name, own_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning

# A model.py that asks what the configuration says serves both ways.
_ASKS = "transaction_policy"


@error(
    "TC411 responses-returned",
    summary="a decoupled Python model whose `execute` returns its responses",
    why="The Python backend fails every request of a decoupled model whose `execute` returns "
    "anything but None.",
    shows="traffic",
)
def returns_responses(streaming: PythonSource) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if not isinstance(execute, ast.FunctionDef) or _ASKS in streaming.source.text:
        return
    if not any(isinstance(node, ast.Return) for node in execute.body):
        return
    returned = [node for node in own_nodes(execute) if isinstance(node, ast.Return)]
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(execute))
    if len(returned) != 1 or returned[0] not in execute.body or yields:
        return
    if _is_list(returned[0].value, execute):
        yield Hit(
            "the model is decoupled, and execute returns its responses: every request fails",
            "send them with request.get_response_sender().send(...), or remove decoupled",
            *streaming.at(returned[0]),
        )


def _is_list(node: ast.expr | None, function: Function) -> bool:
    if isinstance(node, ast.List | ast.ListComp):
        return True
    if not isinstance(node, ast.Name):
        return False
    bindings = [one for name, one in bound(own_nodes(function)) if name == node.id]
    lists = [
        target
        for one in own_nodes(function)
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.List | ast.ListComp)
        for target in one.targets
    ]
    return bool(bindings) and all(one in lists for one in bindings)


@warning(
    "TC412 several-responses",
    summary="a model that is not decoupled and sends responses in a loop",
    why="A model that is not decoupled may send one response to a request; the second raises "
    "in `send`, which fails the request.",
    answers=("tensorrtllm_backend#626",),
)
def several_undecoupled(senders: Senders, model: Model) -> Iterator[Hit]:
    code = senders.code
    if _ASKS in code.source.text or not surely_not_decoupled(model):
        return
    for send in senders.sends:
        loop = loop_around(send) if send.sure else None
        if loop is not None and not leaves(loop):
            yield Hit(
                "the model is not decoupled, so that the second response to a request is an error",
                "add model_transaction_policy { decoupled: true } to config.pbtxt",
                *code.at(send.call.node),
            )


@error(
    "TC413 policy-refused",
    summary="a model.py that refuses the transaction policy of its configuration",
    why="`initialize` raises, so that the model cannot be loaded.",
)
def policy_refused(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if initialize is None or _ASKS not in code.source.text:
        return
    decoupled = bool(config.message.model_transaction_policy.decoupled)
    if not decoupled and not surely_not_decoupled(model):
        return
    asked = frozenset(_names_of_policy(initialize))
    for node in initialize.body:
        if isinstance(node, ast.If) and _demands(node, asked) == (not decoupled):
            wanted = "is not decoupled" if not decoupled else "is decoupled"
            yield Hit(
                f"the model {wanted}, for which initialize raises this",
                f"set model_transaction_policy {{ decoupled: {str(not decoupled).lower()} }}",
                *code.at(node.body[0]),
            )


def _names_of_policy(function: Function) -> Iterator[str]:
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and _asks_policy(node.value):
            yield from (dotted_name(target) for target in node.targets)


def _asks_policy(node: ast.expr) -> bool:
    name = dotted_name(node.func) if isinstance(node, ast.Call) else ""
    return name.rpartition(".")[2] == "using_decoupled_model_transaction_policy"


def _demands(node: ast.If, asked: frozenset[str]) -> bool | None:
    """Whether a model must be decoupled, or must not be; None where this asks something else."""
    test, negated = node.test, False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, True
    known = _asks_policy(test) or (dotted_name(test) in asked and dotted_name(test) != "")
    return negated if known and isinstance(node.body[0], ast.Raise) else None


@error(
    "TC414 no-final-response",
    summary="a decoupled Python model that never sends the final flag",
    why="Triton, ensembles and clients wait for the flag: without it no request ends, and what "
    "it holds is never freed.",
    shows="traffic",
    answers=("server#6003", "server#4999", "tensorrtllm_backend#552"),
)
def never_final(streaming: PythonSource, senders: Senders) -> Iterator[Hit]:
    sure = [send for send in senders.sends if send.sure]
    if sure and not senders.may_end:
        yield Hit(
            "no response is ever the last: no request to this model ends",
            "send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) when all is sent",
            *streaming.at(sure[-1].call.node),
        )


@warning(
    "TC415 sent-after-final",
    summary="a response sender that sends after its final flag",
    why="The sender is closed by then, and `send` raises: the code after it does not run, "
    "and the other requests of the batch fail.",
)
def sent_after_final(senders: Senders) -> Iterator[Hit]:
    for name, call in _after_final(senders, "send"):
        yield Hit(
            f"{name} has sent the final flag above: this raises",
            "send the final flag once, with the last response or after it",
            *senders.code.at(call),
        )


@error(
    "TC407 asked-after-final",
    summary="a call of `is_cancelled` after the request's final flag",
    why="The request is freed by then: tritonserver 2.51 crashes (signal 11) at the first "
    "request, with all models that it serves.",
    shows="traffic",
)
def asked_after_final(senders: Senders) -> Iterator[Hit]:
    for _name, call in _after_final(senders, "is_cancelled"):
        yield Hit(
            "the final flag has been sent above: asking now crashes tritonserver",
            "ask before the final flag is sent, and then leave the function",
            *senders.code.at(call),
        )


def _after_final(senders: Senders, method: str) -> Iterator[tuple[str, ast.Call]]:
    for name, call in senders.after_final:
        if dotted_name(call.func).rpartition(".")[2] == method:
            yield name, call


@warning(
    "TC416 final-in-loop",
    summary="a loop that sends the final flag with every response",
    why="The first turn ends the request; the second raises, for the sender is closed.",
)
def final_in_loop(senders: Senders) -> Iterator[Hit]:
    for send in senders.sends:
        loop = loop_around(send) if send.final else None
        if loop is None or leaves(loop):
            continue
        if any(isinstance(one, ast.Expr) and one.value is send.call.node for one in loop.body):
            yield Hit(
                "the loop sends the final flag in its first turn, and raises in its second",
                "send the final flag once, after the loop",
                *senders.code.at(send.call.node),
            )
