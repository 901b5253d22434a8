# SPDX-License-Identifier: Apache-2.0
"""TC417 to TC420: loops in a model.py that block other requests.

Sources: https://github.com/triton-inference-server/python_backend#request-cancellation-handling and
https://github.com/triton-inference-server/python_backend#async-execute
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.response_senders import (
    Senders,
    is_true,
    may_leave,
    resending_loop,
    senders_of,
)
from tritonctl.checks.analysis.streams import composing_models, min_instances, streaming_code
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import PythonSource, dotted_name, scope_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning


@advice(
    "TC417 deaf-to-cancellation",
    summary="a decoupled Python model that streams and never calls `is_cancelled`",
    reason="A Python model notices a cancelled request only through `is_cancelled`. Otherwise it "
    "works for a client that has left, and others wait.",
    answers=("server#5833", "server#4818", "server#8030"),
)
def uncancellable(repository: Repository) -> Iterator[Hit]:
    step_names = composing_models(repository)
    for model in repository.models.values():
        # Triton 2.51 does not pass a cancellation on to the steps of an ensemble.
        code, senders = streaming_code(model), senders_of(model)
        if not code or not senders or model.name in step_names or "cancel" in code.source.text:
            continue
        streamed = [send for send in senders.sends if resending_loop(send) is not None]
        if streamed:
            yield Hit(
                "the loop continues for clients that have left",
                "call sender.is_cancelled() in every iteration, and send the final flag if it is "
                "True",
                *code.node_location(streamed[0].call.node),
                model=model,
            )


@advice(
    "TC418 one-stream-at-a-time",
    summary="a decoupled Python model that streams inside `execute` and has one instance",
    reason="The instance starts no other request until `execute` returns. In a measurement, the "
    "first token of the last of 32 streams came after 20 s.",
    answers=("tensorrtllm_backend#651",),
)
def one_stream_at_a_time(
    streaming: PythonSource, senders: Senders, model: Model, repository: Repository
) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if min_instances(model, repository.target) > 1:
        return
    for send in senders.sends if isinstance(execute, ast.FunctionDef) else ():
        if send.function is execute and send.is_certain and resending_loop(send) is not None:
            yield Hit(
                "a stream occupies the only instance: others wait until it has finished",
                "stream in a thread or with `async def execute`, or give the model more instances",
                *streaming.node_location(send.call.node),
            )
            return


@error(
    "TC419 never-ready",
    summary="an `initialize` that never returns",
    reason="Triton waits for `initialize` indefinitely: the model is never ready, and neither is a "
    "server that loads it at start.",
)
def never_ready(code: PythonSource) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if not isinstance(initialize, ast.FunctionDef):
        return
    joined = {dotted_name(node.func).rpartition(".")[0] for node in _joins(initialize)}
    for node in initialize.body:
        if isinstance(node, ast.Return):
            return
        if _is_endless(node):
            yield Hit(
                "initialize never returns from this loop",
                "start the loop in a thread, and let initialize return",
                *code.node_location(node),
            )
            return
        loop = _endless_thread_method(code, node) if isinstance(node, ast.Assign) else None
        if loop and isinstance(node, ast.Assign) and dotted_name(node.targets[0]) in joined:
            yield Hit(
                f"initialize waits for a thread whose {loop} never returns",
                "remove join(): the thread keeps running during execute",
                *code.node_location(node),
            )
            return


def _joins(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Yield each `thread.join()` without a timeout among the function's own statements."""
    for node in function.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or call.args or call.keywords:
            continue
        if dotted_name(call.func).endswith(".join"):
            yield call


def _is_endless(node: ast.AST) -> bool:
    """Whether a node is `while True:` without an exit; exceptions of calls are unknown."""
    return isinstance(node, ast.While) and is_true(node.test) and not may_leave(node)


def _runs_forever(loop: ast.stmt) -> bool:
    """Whether the loop calls no function that ends loops by raising."""
    calls = [node for node in scope_nodes(loop) if isinstance(node, ast.Call)]
    names = {dotted_name(call.func).rpartition(".")[2] for call in calls}
    return not names & _MAY_RAISE


def _endless_thread_method(code: PythonSource, node: ast.Assign) -> str | None:
    """Return the name of the method that a new thread runs, if it loops endlessly."""
    call = node.value
    if not isinstance(call, ast.Call) or dotted_name(call.func).rpartition(".")[2] != "Thread":
        return None
    for keyword in call.keywords:
        name = dotted_name(keyword.value) if keyword.arg == "target" else ""
        method = code.method(name.removeprefix("self.")) if name.startswith("self.") else None
        if method is not None and any(
            _is_endless(statement) and _runs_forever(statement) for statement in method.body
        ):
            return method.name
    return None


@warning(
    "TC420 sleeping-coroutine",
    summary="an asynchronous `execute` of a decoupled model that calls time.sleep",
    reason="The requests of an instance run concurrently in one event loop: a wait without `await` "
    "blocks all of them.",
)
def sleeping_coroutine(streaming: PythonSource) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if not isinstance(execute, ast.AsyncFunctionDef):
        return
    for call in streaming.calls_named("sleep"):
        if call.dotted == "time.sleep" and any(call.node is node for node in scope_nodes(execute)):
            yield Hit(
                "this blocks all requests of the instance, not only this one",
                "await asyncio.sleep(...) instead",
                *streaming.node_location(call.node),
            )


_MAY_RAISE = {"exit", "get", "get_nowait", "next", "pop", "popleft", "recv", "result"}
