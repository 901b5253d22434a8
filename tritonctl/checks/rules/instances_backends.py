# SPDX-License-Identifier: Apache-2.0
"""TC603, TC604, TC608 to TC611: whether backends use the devices that instances are given.

Sources: https://github.com/triton-inference-server/tensorrt_backend,
https://github.com/triton-inference-server/onnxruntime_backend and
https://github.com/triton-inference-server/python_backend#python-backend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tritonctl.checks.analysis.placement import Group, groups, written_groups, written_kind
from tritonctl.checks.examples.models import CONFIG, MODEL, python_model
from tritonctl.checks.examples.tensors import ONNX_CONFIG, onnx_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.model_py.source import Call, PythonSource
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import Example, Rule

# What has no code for a CPU.
_GPU_ONLY = ("tensorrt", "tensorrtllm")
# What a model.py that chooses its GPU has somewhere.
_ITS_GPU = ("model_instance_device_id", "CUDA_VISIBLE_DEVICES", "set_device", "device_map")


def needs_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    """A backend that has only code for GPUs, on a machine without."""
    if repository.target.gpus != () or model.backend not in _GPU_ONLY or model.config is None:
        return
    if any(written_kind(group) == "KIND_GPU" for _, group in written_groups(model)):
        return  # which is told by itself
    yield Hit(
        f"the backend {model.backend} runs on GPUs alone, and the target has none",
        "serve it where a GPU is, or say which GPUs the target has: --gpus 24G",
        model.config.span("platform" if model.config.message.platform else "backend"),
    )


def tensorrt_elsewhere(model: Model, repository: Repository) -> Iterator[Hit]:
    """TensorRT with instances that are on no GPU."""
    if model.backend != "tensorrt" or model.config is None or repository.target.gpus == ():
        return
    for index, group in written_groups(model):
        kind = written_kind(group)
        if kind in ("KIND_CPU", "KIND_MODEL"):
            yield Hit(
                f"a TensorRT plan cannot run with {kind}",
                "write kind: KIND_GPU, or leave `kind` out",
                model.config.span("instance_group", index, "kind"),
            )


def secondary_device(model: Model, _: Repository) -> Iterator[Hit]:
    """`secondary_devices` of a backend that does not look at it."""
    for index, group in written_groups(model):
        if group.secondary_devices and model.backend not in (None, "tensorrt") and model.config:
            yield Hit(
                f"secondary_devices are for TensorRT: the backend {model.backend} ignores them",
                "remove them",
                model.config.name_span("instance_group", index, "secondary_devices", 0),
            )


def one_gpu_for_all(model: Model, repository: Repository) -> Iterator[Hit]:
    """Python instances on several GPUs that do not ask which of them is theirs."""
    code = model.code
    if code is None or model.config is None or _asks_for_its_gpu(code):
        return
    for group in groups(model, repository.target):
        if group.index is not None and group.kind == "KIND_GPU" and _several(group):
            cuda = _default_cuda(code)
            if cuda is not None:
                yield Hit(
                    "this is GPU 0 in every instance, though they are given "
                    f"GPUs {', '.join(map(str, group.gpus or ()))}",
                    'read args["model_instance_device_id"] in initialize and use that GPU',
                    code.place(cuda),
                    source=code.source,
                )
                return


def _several(group: Group) -> bool:
    return group.gpus is not None and len(set(group.gpus)) > 1


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
    """The first "cuda", "cuda:0" or `.cuda()`; a dictionary's key or a comparison is none."""
    for call in code.calls:
        if call.name == "cuda" and isinstance(call.node.func, ast.Attribute):
            return call.node
        for given in _arguments(call):
            chosen = given.body if isinstance(given, ast.IfExp) else given
            if isinstance(chosen, ast.Constant) and chosen.value in ("cuda", "cuda:0"):
                return chosen
    return None


def onnx_off_gpu(model: Model, _: Repository) -> Iterator[Hit]:
    """KIND_MODEL for ONNX Runtime, which then uses the CPU."""
    for index, group in written_groups(model) if model.backend == "onnxruntime" else ():
        if written_kind(group) == "KIND_MODEL" and model.config is not None:
            yield Hit(
                "ONNX Runtime runs on the CPU with KIND_MODEL, whatever GPUs there are",
                "write KIND_GPU or KIND_CPU, whichever is meant",
                model.config.span("instance_group", index, "kind"),
            )


def accelerator_ignored(model: Model, repository: Repository) -> Iterator[Hit]:
    """A GPU's accelerator for ONNX Runtime's instances on the CPU."""
    if model.backend != "onnxruntime" or model.config is None:
        return
    path = ("optimization", "execution_accelerators", "gpu_execution_accelerator")
    accelerators = model.config.message.optimization.execution_accelerators
    kinds = {group.kind for group in groups(model, repository.target)}
    if accelerators.gpu_execution_accelerator and kinds == {"KIND_CPU"}:
        name = accelerators.gpu_execution_accelerator[0].name
        yield Hit(
            f"every instance is on the CPU: {name} for GPUs is not used",
            "give the model instances with KIND_GPU, or remove the accelerator",
            model.config.name_span(*path, 0),
        )


_GROUP = "instance_group [ {{ {} }} ]\n"
_PLAN = CONFIG.replace('backend: "python"', 'platform: "tensorrt_plan"')


def _plan(group: str) -> Example:
    more = _GROUP.format(group) if group else ""
    return {"m/config.pbtxt": _PLAN + more, "m/1/model.plan": "plan"}


def _onnx(group: str, more: str = "") -> Example:
    return onnx_model(config=ONNX_CONFIG + _GROUP.format(group) + more)


def _with(group: str) -> Example:
    return python_model(CONFIG + _GROUP.format(group))


_ACCELERATED = (
    'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n'
)
_ON_CUDA = MODEL.replace(
    "    def execute",
    '    def initialize(self, args):\n        self.model = load().to("cuda")\n\n    def execute',
)
_ON_ITS_OWN = _ON_CUDA.replace('"cuda"', '"cuda:" + args["model_instance_device_id"]')
_BOTH = CONFIG + _GROUP.format("kind: KIND_GPU gpus: [ 0, 1 ]")
_NONE = Target("2.51.0", gpus=())
_TWO = Target("2.51.0", gpus=(24 << 30, 24 << 30))

RULES = (
    Rule(
        id="TC603",
        name="needs-gpu",
        severity="error",
        summary="a backend that runs on GPUs alone where there is none",
        why="The model cannot be loaded.",
        check=needs_gpu,
        bad=_plan(""),
        good=python_model(),
        shows="elsewhere",
        target=_NONE,
    ),
    Rule(
        id="TC604",
        name="tensorrt-off-gpu",
        severity="error",
        summary="a TensorRT plan with KIND_CPU or KIND_MODEL",
        why="Triton refuses it: `TensorRT backend supports only GPU device`.",
        check=tensorrt_elsewhere,
        bad=_plan("kind: KIND_CPU"),
        good=_plan("kind: KIND_GPU"),
        shows="elsewhere",
        answers=("server#3609", "server#4696"),
    ),
    Rule(
        id="TC608",
        name="secondary-devices-ignored",
        severity="warning",
        summary="secondary devices of a backend other than TensorRT",
        why="Only TensorRT's backend uses them, as DLA cores; the others ignore them without a "
        "word.",
        check=secondary_device,
        bad=_with("kind: KIND_CPU secondary_devices [ { kind: KIND_NVDLA device_id: 0 } ]"),
        good=_with("kind: KIND_CPU"),
    ),
    Rule(
        id="TC609",
        name="one-gpu-for-all",
        severity="warning",
        summary="instances of a Python model on several GPUs that all use the first",
        why="KIND_GPU only tells a Python model which GPU is its own. All instances share GPU 0 "
        "and the others stay idle.",
        check=one_gpu_for_all,
        bad={"m/config.pbtxt": _BOTH, "m/1/model.py": _ON_CUDA},
        good={"m/config.pbtxt": _BOTH, "m/1/model.py": _ON_ITS_OWN},
        shows="elsewhere",
        answers=("server#2157",),
        target=_TWO,
    ),
    Rule(
        id="TC610",
        name="onnx-on-cpu",
        severity="warning",
        summary="an ONNX model with KIND_MODEL",
        why="The backend looks for KIND_GPU alone; everything else runs on the CPU without a word.",
        check=onnx_off_gpu,
        bad=_onnx("kind: KIND_MODEL"),
        good=_onnx("kind: KIND_GPU"),
        shows="elsewhere",
    ),
    Rule(
        id="TC611",
        name="accelerator-ignored",
        severity="warning",
        summary="an accelerator for GPUs on an ONNX model whose instances are on the CPU",
        why="The backend reads it for instances with KIND_GPU alone: the model runs without it.",
        check=accelerator_ignored,
        bad=_onnx("kind: KIND_CPU", _ACCELERATED),
        good=_onnx("kind: KIND_GPU", _ACCELERATED),
        shows="elsewhere",
    ),
)
