# SPDX-License-Identifier: Apache-2.0
"""TC243: tensors that a configuration leaves out and nothing adds.

Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/
model_configuration.md#auto-generated-model-configuration and https://github.com/
triton-inference-server/pytorch_backend, what it checks when it loads a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis.declared import inputs, outputs
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error

# These read the tensors from the model's file, where Triton asks them to.
_COMPLETE = ("onnxruntime", "openvino", "tensorrt", "tensorflow")


@error(
    "TC243 tensors-left-out",
    summary="a model without inputs or outputs, which its backend does not add",
    why="The PyTorch backend cannot tell them from the model's file, and no backend adds any on a "
    "server that was started with --disable-auto-complete-config: the model is refused, or "
    "answers with nothing.",
)
def left_out(model: Model, repository: Repository) -> Iterator[Hit]:
    backend = _backend(model, repository)
    if backend is None or (model.file is not None and not model.is_readable):
        return
    lacking = [
        direction
        for direction, declared in (("input", inputs(model)), ("output", outputs(model)))
        if not declared
    ]
    if lacking:
        yield Hit(
            f"{model.name} declares no {' and no '.join(lacking)}, and {backend} adds none",
            'declare each: input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ]',
            model.config.span("backend") if model.file else None,
        )


def _backend(model: Model, repository: Repository) -> str | None:
    """The backend of a model that nothing completes; None where something does or may."""
    version, backend = model.served_version, model.backend
    if model.file is None and not repository.target.completes:
        return None  # TC029 reports the whole file
    if backend == "pytorch":
        # A model.py may be the model of PyTorch's own Python runtime, which is not judged.
        mine = model.files_of(version) if version is not None else {}
        return None if "model.py" in mine or model.config.message.runtime else backend
    completes = repository.target.completes or backend not in _COMPLETE
    return None if completes else backend
