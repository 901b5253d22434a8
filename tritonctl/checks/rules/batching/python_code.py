# SPDX-License-Identifier: Apache-2.0
"""TC532 to TC539: how a model handles a batch.

Sources: https://github.com/triton-inference-server/python_backend#execute and
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ragged_batching.md
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis import declared
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import PythonSource, dotted_name, scope_nodes
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import advice

# Usual names of methods and attributes that run an engine.
_ENGINES = {"infer", "generate", "predict", "run"}
_MODELS = {"engine", "model", "net", "network", "pipe", "pipeline", "session"}
# These join the requests' arrays, which must have the same shape.
_JOINING_CALLS = ("concatenate", "stack", "vstack", "hstack", "cat")
_NEED_BATCH_INPUT = {"onnxruntime", "tensorrt"}


def _batched_code(model: Model) -> PythonSource | None:
    """Return the code of a Python model that gets batches of several requests."""
    message = model.config.message
    batched = message.HasField("dynamic_batching") and message.max_batch_size > 1
    if model.backend != "python" or not batched:
        return None
    code = model.code
    return code if code is not None and code.tree is not None else None


@advice(
    "TC532 batch-one-by-one",
    summary="a batched Python model that runs its engine for each request",
    reason="The batcher forms batches and the loop splits them again: batching gains nothing.",
    answers=("server#7205", "server#3624"),
)
def run_per_request(model: Model) -> Iterator[Hit]:
    code = _batched_code(model)
    execute = code.method("execute") if code else None
    if code is None or execute is None or len(execute.args.args) != 2:  # noqa: PLR2004 - self, requests
        return
    name = execute.args.args[1].arg
    for loop in scope_nodes(execute):
        if not isinstance(loop, ast.For) or dotted_name(loop.iter) != name:
            continue
        calls = (node for node in scope_nodes(loop) if isinstance(node, ast.Call))
        engines = [call for call in calls if _runs_engine(call)]
        if engines:
            call = min(engines, key=lambda node: (node.lineno, node.col_offset))
            yield Hit(
                "dynamic batching passes several requests at once, and this runs once per request",
                "join the requests' inputs, run once, and split the outputs among the responses",
                *code.node_location(call.func),
            )


def _runs_engine(node: ast.Call) -> bool:
    """`self.model(...)`, `self.session.run(...)` and the like."""
    owner, *names = dotted_name(node.func).split(".")
    if owner != "self" or not names:
        return False
    return names[-1] in _MODELS if len(names) == 1 else names[-1] in _ENGINES


@advice(
    "TC533 equal-shapes-only",
    summary="a batched Python model with an input of varying shape that is not ragged",
    reason="Without allow_ragged_batch, Triton batches two requests only if the shapes of such "
    "inputs are equal: texts of different lengths never share a batch.",
    answers=("server#4129",),
)
def equal_shapes(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    code = _batched_code(model)
    if code is None or any(code.calls_named(name) for name in _JOINING_CALLS):
        return
    for tensor in declared.inputs(model):
        if -1 in (tensor.dims or ()) and not tensor.ragged:
            yield Hit(
                f"only requests whose {tensor.name} has the same shape share a batch",
                "add allow_ragged_batch: true if execute handles each request separately",
                config.span(*tensor.path, "dims"),
            )
            return


@advice(
    "TC534 ragged-without-lengths",
    summary="a ragged input without a `batch_input` with its lengths",
    reason="Triton joins the requests' tensors into one. Without their lengths, a model cannot "
    "tell the requests apart.",
    shows="elsewhere",
)
def ragged_without_lengths(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend not in _NEED_BATCH_INPUT or not declared.has_batch_dimension(model):
        return
    covered = {
        name for batch_input in config.message.batch_input for name in batch_input.source_input
    }
    for tensor in declared.inputs(model):
        if tensor.ragged and tensor.name not in covered:
            yield Hit(
                f"the model does not know where the {tensor.name} of one request ends and the next "
                "starts",
                f'add a batch_input with source_input: "{tensor.name}"',
                config.span(*tensor.path, "allow_ragged_batch"),
            )
