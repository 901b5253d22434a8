# SPDX-License-Identifier: Apache-2.0
"""TC417 to TC420: a model.py whose loops keep others waiting.

Sources: https://github.com/triton-inference-server/python_backend#request-cancellation-handling and
https://github.com/triton-inference-server/python_backend#async-execute
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.senders import (
    Senders,
    is_true,
    leaves,
    loop_around,
    senders_of,
)
from tritonctl.checks.analysis.streams import composing, instances, streaming_code
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import PythonSource, dotted_name, own_nodes
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning


@advice(
    "TC417 deaf-to-cancellation",
    summary="a decoupled Python model that streams and never asks `is_cancelled`",
    why="A Python model learns of a cancelled request only by asking; until then it works for "
    "a client that has left, and others wait.",
    answers=("server#5833", "server#4818", "server#8030"),
)
def uncancellable(repository: Repository) -> Iterator[Hit]:
    steps = composing(repository)
    for model in repository.models.values():
        # Triton 2.51 does not pass a cancellation on to the steps of an ensemble.
        code, senders = streaming_code(model), senders_of(model)
        if not code or not senders or model.name in steps or "cancel" in code.source.text:
            continue
        streamed = [send for send in senders.sends if loop_around(send) is not None]
        if streamed:
            yield Hit(
                "the loop goes on for clients that have gone",
                "ask sender.is_cancelled() in every turn, and send the final flag if it is",
                *code.at(streamed[0].call.node),
                model=model,
            )


@advice(
    "TC418 one-stream-at-a-time",
    summary="a decoupled Python model that streams inside `execute` and has one instance",
    why="The instance takes no other request until `execute` is done: measured, the first "
    "token of the last of 32 streams came after 20 s.",
    answers=("tensorrtllm_backend#651",),
)
def one_by_one(
    streaming: PythonSource, senders: Senders, model: Model, repository: Repository
) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if instances(model, repository.target) > 1:
        return
    for send in senders.sends if isinstance(execute, ast.FunctionDef) else ():
        if send.function is execute and send.sure and loop_around(send) is not None:
            yield Hit(
                "a stream keeps the only instance: others wait until it has ended",
                "stream in a thread or with `async def execute`, or give the model more instances",
                *streaming.at(send.call.node),
            )
            return


@error(
    "TC419 never-ready",
    summary="an `initialize` that never returns",
    why="Triton waits for `initialize` indefinitely: the model is never ready, and a server "
    "that loads it at its start is not ready either.",
)
def never_ready(code: PythonSource) -> Iterator[Hit]:
    initialize = code.method("initialize")
    if not isinstance(initialize, ast.FunctionDef):
        return
    joined = {dotted_name(node.func).rpartition(".")[0] for node in _joins(initialize)}
    for node in initialize.body:
        if isinstance(node, ast.Return):
            return
        if _endless(node):
            yield Hit(
                "initialize never returns from this loop",
                "start the loop in a thread, and let initialize return",
                *code.at(node),
            )
            return
        loop = _thread_of(code, node) if isinstance(node, ast.Assign) else None
        if loop and isinstance(node, ast.Assign) and dotted_name(node.targets[0]) in joined:
            yield Hit(
                f"initialize waits for a thread whose {loop} never ends",
                "leave out join(): the thread keeps running during execute",
                *code.at(node),
            )
            return


def _joins(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """`thread.join()` without a timeout, among the function's own statements."""
    for node in function.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or call.args or call.keywords:
            continue
        if dotted_name(call.func).endswith(".join"):
            yield call


def _endless(node: ast.AST) -> bool:
    """`while True:` that nothing in it leaves; what calls may raise is not known."""
    return isinstance(node, ast.While) and is_true(node.test) and not leaves(node)


def _goes_on(loop: ast.stmt) -> bool:
    """Whether it calls nothing that is made to end a loop by what it raises."""
    calls = [node for node in own_nodes(loop) if isinstance(node, ast.Call)]
    names = {dotted_name(call.func).rpartition(".")[2] for call in calls}
    return not names & _MAY_RAISE


def _thread_of(code: PythonSource, node: ast.Assign) -> str | None:
    """The method that a new thread runs, if it has an endless loop among its own statements."""
    call = node.value
    if not isinstance(call, ast.Call) or dotted_name(call.func).rpartition(".")[2] != "Thread":
        return None
    for keyword in call.keywords:
        name = dotted_name(keyword.value) if keyword.arg == "target" else ""
        method = code.method(name.removeprefix("self.")) if name.startswith("self.") else None
        if method is not None and any(_endless(one) and _goes_on(one) for one in method.body):
            return method.name
    return None


@warning(
    "TC420 sleeping-coroutine",
    summary="an asynchronous `execute` of a decoupled model that calls time.sleep",
    why="The requests of an instance run side by side in one event loop: a wait without `await` "
    "blocks all of them.",
)
def blocked(streaming: PythonSource) -> Iterator[Hit]:
    execute = streaming.method("execute")
    if not isinstance(execute, ast.AsyncFunctionDef):
        return
    for call in streaming.called("sleep"):
        if call.dotted == "time.sleep" and any(call.node is one for one in own_nodes(execute)):
            yield Hit(
                "this stops all requests of the instance, not only its own",
                "await asyncio.sleep(...) instead",
                *streaming.at(call.node),
            )


_MAY_RAISE = {"exit", "get", "get_nowait", "next", "pop", "popleft", "recv", "result"}
