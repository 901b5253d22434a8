# SPDX-License-Identifier: Apache-2.0
"""TC407, TC411 to TC416: how a model.py sends its responses.

Source: https://github.com/triton-inference-server/python_backend#decoupled-mode
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.response_senders import (
    Senders,
    bound_names,
    may_leave,
    resending_loop,
)
from tritonctl.checks.analysis.streams import surely_not_decoupled
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Function, PythonSource, dotted_name, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning

# A model.py that reads the policy of its configuration supports both kinds.
_POLICY_CALL_PART = "transaction_policy"


@error(
    "TC411 responses-returned",
    summary="a decoupled Python model whose `execute` returns its responses",
    reason="The Python backend fails every request of a decoupled model whose `execute` returns "
    "anything but None.",
    shows="traffic",
)
def returns_responses(streaming: PythonSource) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if not isinstance(execute, ast.FunctionDef) or _POLICY_CALL_PART in streaming.source.text:
        return
    if not any(isinstance(node, ast.Return) for node in execute.body):
        return
    returned = [node for node in scope_nodes(execute) if isinstance(node, ast.Return)]
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in scope_nodes(execute))
    if len(returned) != 1 or returned[0] not in execute.body or yields:
        return
    if _is_list(returned[0].value, execute):
        yield Hit(
            "the model is decoupled, and execute returns its responses: every request fails",
            "send them with request.get_response_sender().send(...), or remove decoupled",
            *streaming.node_location(returned[0]),
        )


def _is_list(node: ast.expr | None, function: Function) -> bool:
    if isinstance(node, ast.List | ast.ListComp):
        return True
    if not isinstance(node, ast.Name):
        return False
    bindings = [node_ for name, node_ in bound_names(scope_nodes(function)) if name == node.id]
    lists = [
        target
        for node_ in scope_nodes(function)
        if isinstance(node_, ast.Assign) and isinstance(node_.value, ast.List | ast.ListComp)
        for target in node_.targets
    ]
    return bool(bindings) and all(node_ in lists for node_ in bindings)


@warning(
    "TC412 several-responses",
    summary="a model that is not decoupled and sends responses in a loop",
    reason="A model that is not decoupled may send one response per request. The second `send` "
    "raises and fails the request.",
    answers=("tensorrtllm_backend#626",),
)
def several_responses(senders: Senders, model: Model) -> Iterator[Hit]:
    code = senders.code
    if _POLICY_CALL_PART in code.source.text or not surely_not_decoupled(model):
        return
    for send in senders.sends:
        loop = resending_loop(send) if send.is_certain else None
        if loop is not None and not may_leave(loop):
            yield Hit(
                "the model is not decoupled: the second response to a request is an error",
                "add model_transaction_policy { decoupled: true } to config.pbtxt",
                *code.node_location(send.call.node),
            )


@error(
    "TC413 policy-refused",
    summary="a model.py that refuses the transaction policy of its configuration",
    reason="`initialize` raises, so that the model cannot be loaded.",
)
def policy_refused(config: ConfigMessage, code: PythonSource, model: Model) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if initialize is None or _POLICY_CALL_PART not in code.source.text:
        return
    decoupled = bool(config.message.model_transaction_policy.decoupled)
    if not decoupled and not surely_not_decoupled(model):
        return
    policy_names = frozenset(_policy_names(initialize))
    for node in initialize.body:
        if isinstance(node, ast.If) and _requires_decoupled(node, policy_names) == (not decoupled):
            state = "is not decoupled" if not decoupled else "is decoupled"
            yield Hit(
                f"the model {state}, and then initialize raises this",
                f"set model_transaction_policy {{ decoupled: {str(not decoupled).lower()} }}",
                *code.node_location(node.body[0]),
            )


def _policy_names(function: Function) -> Iterator[str]:
    for node in scope_nodes(function):
        if isinstance(node, ast.Assign) and _reads_policy(node.value):
            yield from (dotted_name(target) for target in node.targets)


def _reads_policy(node: ast.expr) -> bool:
    name = dotted_name(node.func) if isinstance(node, ast.Call) else ""
    return name.rpartition(".")[2] == "using_decoupled_model_transaction_policy"


def _requires_decoupled(node: ast.If, policy_names: frozenset[str]) -> bool | None:
    """Whether the statement requires a decoupled model, or forbids one; None for other tests."""
    test, negated = node.test, False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, True
    tests_policy = _reads_policy(test) or (
        dotted_name(test) in policy_names and dotted_name(test) != ""
    )
    return negated if tests_policy and isinstance(node.body[0], ast.Raise) else None


@error(
    "TC414 no-final-response",
    summary="a decoupled Python model that never sends the final flag",
    reason="Triton, ensembles and clients wait for the flag. Without it no request finishes, and "
    "its resources are never freed.",
    shows="traffic",
    answers=("server#6003", "server#4999", "tensorrtllm_backend#552"),
)
def no_final_response(streaming: PythonSource, senders: Senders) -> Iterator[Hit]:
    certain_sends = [send for send in senders.sends if send.is_certain]
    if certain_sends and not senders.may_send_final:
        yield Hit(
            "no response has the final flag: no request to this model finishes",
            "send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) when all is sent",
            *streaming.node_location(certain_sends[-1].call.node),
        )


@warning(
    "TC415 sent-after-final",
    summary="a response sender that sends after its final flag",
    reason="The sender is closed, and `send` raises: the code after it does not run, and the other "
    "requests of the batch fail.",
)
def sent_after_final(senders: Senders) -> Iterator[Hit]:
    for name, call in _after_final(senders, "send"):
        yield Hit(
            f"{name} has sent the final flag above: this raises",
            "send the final flag once, with the last response or after it",
            *senders.code.node_location(call),
        )


@error(
    "TC407 asked-after-final",
    summary="a call of `is_cancelled` after the request's final flag",
    reason="The request is already freed: tritonserver 2.51 crashes (signal 11) at the first "
    "request, with all its models.",
    shows="traffic",
)
def cancellation_after_final(senders: Senders) -> Iterator[Hit]:
    for _name, call in _after_final(senders, "is_cancelled"):
        yield Hit(
            "the final flag has been sent above: this call crashes tritonserver",
            "call it before the final flag is sent, and then leave the function",
            *senders.code.node_location(call),
        )


def _after_final(senders: Senders, method: str) -> Iterator[tuple[str, ast.Call]]:
    for name, call in senders.calls_after_final:
        if dotted_name(call.func).rpartition(".")[2] == method:
            yield name, call


@warning(
    "TC416 final-in-loop",
    summary="a loop that sends the final flag with every response",
    reason="The first iteration finishes the request; the second raises, as the sender is closed.",
)
def final_in_loop(senders: Senders) -> Iterator[Hit]:
    for send in senders.sends:
        loop = resending_loop(send) if send.is_final else None
        if loop is None or may_leave(loop):
            continue
        if any(
            isinstance(statement, ast.Expr) and statement.value is send.call.node
            for statement in loop.body
        ):
            yield Hit(
                "the loop sends the final flag in its first iteration, and raises in its second",
                "send the final flag once, after the loop",
                *senders.code.node_location(send.call.node),
            )
