# SPDX-License-Identifier: Apache-2.0
"""How many threads an instance of a model computes with on the CPU, where that can be read.

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
from tritonctl.checks.places import Source, Span
from tritonctl.checks.repository import Model, Target

_OPENVINO = ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM")
_PYTORCH = "INTRA_OP_THREAD_COUNT"
_ONNXRUNTIME = "intra_op_thread_count"
# In a model.py that sets its threads in another way, or does not compute on the CPU.
_ELSEWHERE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "cuda")


class Threads(NamedTuple):
    """Of a model on the CPU: `pools` times `each`. each: None is one per core, the default.

    span and source: what says so, None where nothing does.
    """

    pools: int
    each: int | None
    span: Span | None
    source: Source | None = None

    def total(self, cores: int) -> int:
        """Threads that can run at once."""
        return self.pools * (cores if self.each is None else self.each)


def cpu_threads(model: Model, target: Target) -> Threads | None:
    """The threads of a model's instances on the CPU; None without such, or where unknown."""
    made = [group for group in groups(model, target) if group.kind != "KIND_GPU"]
    totals = [group.total for group in made]
    count = sum(total or 0 for total in totals)
    if not count or None in totals or any(group.kind == "KIND_MODEL" for group in made):
        return None
    if model.backend == "onnxruntime":
        return _of_onnxruntime(model, count)
    if model.backend == "openvino":
        return _of_parameter(model, _OPENVINO)
    if model.backend == "pytorch":
        return _of_parameter(model, (_PYTORCH,))
    return _of_python(model.code, count) if model.code else None


def parameter(model: Model, key: str) -> str | None:
    """A parameter's text; None where it is absent."""
    parameters = model.config.message.parameters
    return str(parameters[key].string_value) if key in parameters else None


def whole(text: str | None) -> int | None:
    """A number of threads; None for anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _of_onnxruntime(model: Model, count: int) -> Threads | None:
    """A pool in each instance's session, unless another library computes."""
    accelerators = model.config.message.optimization.execution_accelerators
    if accelerators.cpu_execution_accelerator:
        return None
    each = whole(parameter(model, _ONNXRUNTIME))
    span = model.config.span("parameters", _ONNXRUNTIME) if each else None
    return Threads(count, each or None, span)


def _of_parameter(model: Model, keys: tuple[str, ...]) -> Threads | None:
    """What the model shares among its instances, where a parameter says how much."""
    for key in keys:
        if each := whole(parameter(model, key)):
            return Threads(1, each, model.config.span("parameters", key))
    return None


def _of_python(code: PythonSource, count: int) -> Threads | None:
    """A pool in each process: PyTorch's, as set or by default."""
    for call in code.called("set_num_threads"):
        given = call.argument(0)
        if isinstance(given, ast.Constant) and isinstance(given.value, int) and given.value > 0:
            return Threads(count, given.value, code.place(call.node), code.source)
        return None  # computed: from the cores, it may be
    if any(word in code.source.text for word in _ELSEWHERE):
        return None
    imported = _import(code, "torch")
    return Threads(count, None, code.place(imported), code.source) if imported else None


def _import(code: PythonSource, name: str) -> ast.stmt | None:
    for node in code.nodes:
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == name for a in node.names):
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == name:
            return node
    return None
