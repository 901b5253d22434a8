# SPDX-License-Identifier: Apache-2.0
"""Read how many CPU threads the instances of a model compute with.

Sources: https://github.com/triton-inference-server/onnxruntime_backend#model-config-options,
https://github.com/triton-inference-server/openvino_backend#parameters,
https://github.com/triton-inference-server/pytorch_backend#parameters, and
https://pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from tritonctl.checks.analysis.placement import groups
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import CheckTarget, Model
from tritonctl.checks.source_span import SourceText, Span

_OPENVINO = ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM")
_PYTORCH = "INTRA_OP_THREAD_COUNT"
_ONNXRUNTIME = "intra_op_thread_count"
# Texts in a model.py that sets its threads in another way or does not compute on the CPU.
_OTHER_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "cuda")


class ThreadPools(NamedTuple):
    """The thread pools of a model on the CPU."""

    pools: int
    each: int | None  # None: one per core, the default
    span: Span | None  # of the setting; None for the default
    source: SourceText | None = None  # of the span; None for config.pbtxt

    def total(self, cores: int) -> int:
        """Return the number of threads that can run at once."""
        return self.pools * (cores if self.each is None else self.each)


def cpu_threads(model: Model, target: CheckTarget) -> ThreadPools | None:
    """Return the thread pools of a model's CPU instances; None if it has none or is unknown."""
    cpu_groups = [group for group in groups(model, target) if group.kind != "KIND_GPU"]
    totals = [group.total for group in cpu_groups]
    count = sum(total or 0 for total in totals)
    if not count or None in totals or any(group.kind == "KIND_MODEL" for group in cpu_groups):
        return None
    if model.backend == "onnxruntime":
        return _onnxruntime_threads(model, count)
    if model.backend == "openvino":
        return _parameter_threads(model, _OPENVINO)
    if model.backend == "pytorch":
        return _parameter_threads(model, (_PYTORCH,))
    return _python_threads(model.code, count) if model.code else None


def parameter_text(model: Model, key: str) -> str | None:
    """Return the string value of a parameter; None if it is missing."""
    parameters = model.config.message.parameters
    return str(parameters[key].string_value) if key in parameters else None


def parse_count(text: str | None) -> int | None:
    """Return a number of threads from text; None for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _onnxruntime_threads(model: Model, count: int) -> ThreadPools | None:
    """Return one pool per instance, unless another library computes."""
    accelerators = model.config.message.optimization.execution_accelerators
    if accelerators.cpu_execution_accelerator:
        return None
    threads_per_pool = parse_count(parameter_text(model, _ONNXRUNTIME))
    span = model.config.span("parameters", _ONNXRUNTIME) if threads_per_pool else None
    return ThreadPools(count, threads_per_pool or None, span)


def _parameter_threads(model: Model, keys: tuple[str, ...]) -> ThreadPools | None:
    """Return the pool that all instances share, if a parameter sets its size."""
    for key in keys:
        if threads_per_pool := parse_count(parameter_text(model, key)):
            return ThreadPools(1, threads_per_pool, model.config.span("parameters", key))
    return None


def _python_threads(code: PythonSource, count: int) -> ThreadPools | None:
    """Return one PyTorch pool per process, with the configured or default size."""
    for call in code.calls_named("set_num_threads"):
        count_node = call.argument(0)
        if (
            isinstance(count_node, ast.Constant)
            and isinstance(count_node.value, int)
            and count_node.value > 0
        ):
            return ThreadPools(count, count_node.value, code.node_span(call.node), code.source)
        return None  # computed, possibly from the number of cores
    if any(word in code.source.text for word in _OTHER_THREAD_SETTINGS):
        return None
    imported = _import_statement(code, "torch")
    return ThreadPools(count, None, code.node_span(imported), code.source) if imported else None


def _import_statement(code: PythonSource, name: str) -> ast.stmt | None:
    for node in code.nodes:
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == name for a in node.names):
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == name:
            return node
    return None
