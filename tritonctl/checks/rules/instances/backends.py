# SPDX-License-Identifier: Apache-2.0
"""TC603, TC604, TC608 to TC613: backends the server lacks, and devices that they cannot use.

Sources: https://github.com/triton-inference-server/tensorrt_backend,
https://github.com/triton-inference-server/onnxruntime_backend,
https://github.com/triton-inference-server/openvino_backend and
https://github.com/triton-inference-server/python_backend#python-backend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import (
    configured_groups,
    configured_kind,
    groups,
    join_some,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import PythonCall, PythonSource
from tritonctl.checks.repository import CONFIG, Model, Repository
from tritonctl.checks.rule import error, warning

# Backends without code for a CPU.
_GPU_ONLY = ("tensorrt", "tensorrtllm")
# Texts in a model.py that chooses its GPU.
_GPU_CHOICE_MARKS = ("model_instance_device_id", "CUDA_VISIBLE_DEVICES", "set_device", "device_map")


@error(
    "TC603 needs-gpu",
    summary="a backend that needs GPUs on a machine without GPUs",
    reason="The model cannot be loaded.",
    shows="elsewhere",
)
def needs_gpu(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if repository.target.gpus != () or model.backend not in _GPU_ONLY:
        return
    if any(configured_kind(group) == "KIND_GPU" for _, group in configured_groups(model)):
        return  # TC600 reports it
    yield Hit(
        f"the backend {model.backend} needs a GPU, and the target has none",
        "serve it on a machine with a GPU, or say which GPUs the target has: --gpu-memory 24G",
        config.span("platform" if config.message.platform else "backend"),
    )


@error(
    "TC612 backend-not-there",
    summary="a backend that the project's server does not have",
    reason="The embedded server has the Python backend only: `unable to find backend library for "
    "backend 'onnxruntime'`.",
    shows="elsewhere",
)
def backend_not_there(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    backends = repository.target.backends
    if backends is None or model.backend in (None, "ensemble", *backends):
        return
    name = next((n for n in ("backend", "platform") if getattr(config.message, n)), None)
    yield Hit(
        f"{model.name} needs the backend {model.backend}, and the embedded server has "
        f"{join_some(sorted(backends))} only",
        "serve it in containers, `tritonctl up --mode docker`, or build it as a model of the "
        "project: its file as `checkpoint`",
        config.span(name) if name else None,
        relative_path="" if name else CONFIG,
    )


@error(
    "TC604 tensorrt-off-gpu",
    summary="a TensorRT plan with KIND_CPU or KIND_MODEL",
    reason="Triton refuses it: `TensorRT backend supports only GPU device`.",
    answers=("server#3609", "server#4696"),
    shows="elsewhere",
)
def tensorrt_elsewhere(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend != "tensorrt" or repository.target.gpus == ():
        return
    for index, group in configured_groups(model):
        kind = configured_kind(group)
        if kind in ("KIND_CPU", "KIND_MODEL"):
            yield Hit(
                f"a TensorRT plan cannot run with {kind}",
                "write kind: KIND_GPU, or leave `kind` out",
                config.span("instance_group", index, "kind"),
            )


@error(
    "TC613 openvino-off-cpu",
    summary="an OpenVINO model with instances that are not on the CPU",
    reason="Triton refuses it: `openVINO backend supports only CPU device`.",
    shows="elsewhere",
)
def openvino_elsewhere(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend != "openvino":
        return
    for group in groups(model, repository.target):
        if group.index is not None and group.kind in ("KIND_GPU", "KIND_MODEL"):
            yield Hit(
                f"OpenVINO's backend runs on the CPU, and these instances are {group.kind}",
                "write kind: KIND_CPU",
                config.span("instance_group", group.index, "kind"),
            )


@warning(
    "TC608 secondary-devices-ignored",
    summary="secondary devices of a backend other than TensorRT",
    reason="Only TensorRT's backend uses them, as DLA cores; the others silently ignore them.",
    shows="load",
)
def secondary_device(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model):
        if group.secondary_devices and model.backend not in (None, "tensorrt"):
            yield Hit(
                f"secondary_devices are for TensorRT: the backend {model.backend} ignores them",
                "remove them",
                config.name_span("instance_group", index, "secondary_devices", 0),
            )


@warning(
    "TC609 one-gpu-for-all",
    summary="instances of a Python model on several GPUs that all use the first",
    reason="KIND_GPU only passes a Python model the number of its GPU. All instances share GPU 0, "
    "and the other GPUs stay idle.",
    answers=("server#2157",),
    shows="elsewhere",
)
def one_gpu_for_all(
    _config: ConfigMessage, code: PythonSource, model: Model, repository: Repository
) -> Iterator[Hit]:
    if _chooses_gpu(code):
        return
    for group in groups(model, repository.target):
        has_several_gpus = group.kind == "KIND_GPU" and len(set(group.gpus or ())) > 1
        cuda = _default_cuda(code) if has_several_gpus and group.index is not None else None
        if cuda is not None:
            yield Hit(
                "this is GPU 0 in every instance, although they have "
                f"GPUs {', '.join(map(str, group.gpus or ()))}",
                'read args["model_instance_device_id"] in initialize and use that GPU',
                *code.node_location(cuda),
            )
            return


def _chooses_gpu(code: PythonSource) -> bool:
    """Whether the code reads its device, or passes `args` to a function that may."""
    if any(word in code.source.text for word in _GPU_CHOICE_MARKS):
        return True
    initialize = code.method("initialize")
    names = [argument.arg for argument in initialize.args.args[1:2]] if initialize else []
    return any(
        isinstance(argument_node, ast.Name) and argument_node.id in names
        for call in code.calls
        for argument_node in _arguments(call)
    )


def _arguments(call: PythonCall) -> list[ast.expr]:
    return [*call.node.args, *(keyword.value for keyword in call.node.keywords)]


def _default_cuda(code: PythonSource) -> ast.expr | None:
    """Return the first argument "cuda" or "cuda:0", or call of `.cuda()`."""
    for call in code.calls:
        if call.name == "cuda" and isinstance(call.node.func, ast.Attribute):
            return call.node
        for argument_node in _arguments(call):
            device_node = (
                argument_node.body if isinstance(argument_node, ast.IfExp) else argument_node
            )
            if isinstance(device_node, ast.Constant) and device_node.value in ("cuda", "cuda:0"):
                return device_node
    return None


@warning(
    "TC610 onnx-on-cpu",
    summary="an ONNX model with KIND_MODEL",
    reason="The backend recognises KIND_GPU only; every other kind silently runs on the CPU.",
    shows="elsewhere",
)
def onnx_off_gpu(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model) if model.backend == "onnxruntime" else ():
        if configured_kind(group) == "KIND_MODEL":
            yield Hit(
                "ONNX Runtime runs on the CPU with KIND_MODEL, whatever GPUs the machine has",
                "write KIND_GPU or KIND_CPU",
                config.span("instance_group", index, "kind"),
            )


@warning(
    "TC611 accelerator-ignored",
    summary="an accelerator for GPUs on an ONNX model whose instances are on the CPU",
    reason="The backend reads it only for instances with KIND_GPU: the model runs without it.",
    shows="elsewhere",
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
