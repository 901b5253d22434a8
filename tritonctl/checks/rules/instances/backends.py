# SPDX-License-Identifier: Apache-2.0
"""TC603, TC604, TC608 to TC611: whether backends use the devices that instances are given.

Sources: https://github.com/triton-inference-server/tensorrt_backend,
https://github.com/triton-inference-server/onnxruntime_backend and
https://github.com/triton-inference-server/python_backend#python-backend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import groups, written_groups, written_kind
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Call, PythonSource
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

# What has no code for a CPU.
_GPU_ONLY = ("tensorrt", "tensorrtllm")
# What a model.py that chooses its GPU has somewhere.
_ITS_GPU = ("model_instance_device_id", "CUDA_VISIBLE_DEVICES", "set_device", "device_map")


@error(
    "TC603 needs-gpu",
    summary="a backend that needs GPUs on a machine without GPUs",
    why="The model cannot be loaded.",
)
def needs_gpu(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if repository.target.gpus != () or model.backend not in _GPU_ONLY:
        return
    if any(written_kind(group) == "KIND_GPU" for _, group in written_groups(model)):
        return  # another rule reports that
    yield Hit(
        f"the backend {model.backend} needs a GPU, and the target has none",
        "serve it on a machine with a GPU, or say which GPUs the target has: --gpus 24G",
        config.span("platform" if config.message.platform else "backend"),
    )


@error(
    "TC604 tensorrt-off-gpu",
    summary="a TensorRT plan with KIND_CPU or KIND_MODEL",
    why="Triton refuses it: `TensorRT backend supports only GPU device`.",
    answers=("server#3609", "server#4696"),
)
def tensorrt_elsewhere(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend != "tensorrt" or repository.target.gpus == ():
        return
    for index, group in written_groups(model):
        kind = written_kind(group)
        if kind in ("KIND_CPU", "KIND_MODEL"):
            yield Hit(
                f"a TensorRT plan cannot run with {kind}",
                "write kind: KIND_GPU, or leave `kind` out",
                config.span("instance_group", index, "kind"),
            )


@warning(
    "TC608 secondary-devices-ignored",
    summary="secondary devices of a backend other than TensorRT",
    why="Only TensorRT's backend uses them, as DLA cores; the others silently ignore them.",
    shows="load",
)
def secondary_device(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in written_groups(model):
        if group.secondary_devices and model.backend not in (None, "tensorrt"):
            yield Hit(
                f"secondary_devices are for TensorRT: the backend {model.backend} ignores them",
                "remove them",
                config.name_span("instance_group", index, "secondary_devices", 0),
            )


@warning(
    "TC609 one-gpu-for-all",
    summary="instances of a Python model on several GPUs that all use the first",
    why="KIND_GPU only gives a Python model the number of its GPU. All instances share GPU 0 "
    "and the others stay idle.",
    answers=("server#2157",),
)
def one_gpu_for_all(
    _config: ConfigMessage, code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    if _asks_for_its_gpu(code):
        return
    for group in groups(model, repository.target):
        several = group.kind == "KIND_GPU" and len(set(group.gpus or ())) > 1
        cuda = _default_cuda(code) if several and group.index is not None else None
        if cuda is not None:
            yield Hit(
                "this is GPU 0 in every instance, though they are given "
                f"GPUs {', '.join(map(str, group.gpus or ()))}",
                'read args["model_instance_device_id"] in initialize and use that GPU',
                *code.at(cuda),
            )
            return


def _asks_for_its_gpu(code: PythonSource) -> bool:
    """It reads its device, or hands `args` to what may."""
    if any(word in code.source.text for word in _ITS_GPU):
        return True
    initialize = code.method("initialize")
    names = [argument.arg for argument in initialize.args.args[1:2]] if initialize else []
    return any(
        isinstance(given, ast.Name) and given.id in names
        for call in code.calls
        for given in _arguments(call)
    )


def _arguments(call: Call) -> list[ast.expr]:
    return [*call.node.args, *(keyword.value for keyword in call.node.keywords)]


def _default_cuda(code: PythonSource) -> ast.expr | None:
    """The first "cuda", "cuda:0" or `.cuda()`; not a dictionary's key or a comparison."""
    for call in code.calls:
        if call.name == "cuda" and isinstance(call.node.func, ast.Attribute):
            return call.node
        for given in _arguments(call):
            chosen = given.body if isinstance(given, ast.IfExp) else given
            if isinstance(chosen, ast.Constant) and chosen.value in ("cuda", "cuda:0"):
                return chosen
    return None


@warning(
    "TC610 onnx-on-cpu",
    summary="an ONNX model with KIND_MODEL",
    why="The backend looks for KIND_GPU only; everything else silently runs on the CPU.",
)
def onnx_off_gpu(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in written_groups(model) if model.backend == "onnxruntime" else ():
        if written_kind(group) == "KIND_MODEL":
            yield Hit(
                "ONNX Runtime runs on the CPU with KIND_MODEL, whatever GPUs the machine has",
                "write KIND_GPU or KIND_CPU, whichever you want",
                config.span("instance_group", index, "kind"),
            )


@warning(
    "TC611 accelerator-ignored",
    summary="an accelerator for GPUs on an ONNX model whose instances are on the CPU",
    why="The backend reads it only for instances with KIND_GPU: the model runs without it.",
)
def accelerator_ignored(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend != "onnxruntime":
        return
    path = ("optimization", "execution_accelerators", "gpu_execution_accelerator")
    accelerators = config.message.optimization.execution_accelerators
    kinds = {group.kind for group in groups(model, repository.target)}
    if accelerators.gpu_execution_accelerator and kinds == {"KIND_CPU"}:
        name = accelerators.gpu_execution_accelerator[0].name
        yield Hit(
            f"every instance is on the CPU: {name} for GPUs is not used",
            "give the model instances with KIND_GPU, or remove the accelerator",
            config.name_span(*path, 0),
        )
