# SPDX-License-Identifier: Apache-2.0
"""TC243: tensors that a configuration omits and nothing adds.

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

# These backends complete the tensors from the model's file when Triton requests it.
_COMPLETING_BACKENDS = ("onnxruntime", "openvino", "tensorrt", "tensorflow")


@error(
    "TC243 tensors-left-out",
    summary="a model without inputs or outputs, which its backend does not add",
    reason="The PyTorch backend cannot read them from the model's file, and no backend adds any "
    "on a "
    "server started with --disable-auto-complete-config. The model is refused, or returns empty "
    "responses.",
    shows="elsewhere",
)
def tensors_left_out(model: Model, repository: Repository) -> Iterator[Hit]:
    backend = _backend(model, repository)
    if backend is None or (model.file is not None and not model.is_readable):
        return
    missing = [
        direction
        for direction, declared in (("input", inputs(model)), ("output", outputs(model)))
        if not declared
    ]
    if missing:
        yield Hit(
            f"{model.name} declares no {' and no '.join(missing)}, and {backend} adds none",
            'declare each: input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ]',
            model.config.span("backend") if model.file else None,
        )


def _backend(model: Model, repository: Repository) -> str | None:
    """Return the backend of a model that nothing completes; None if something may."""
    version, backend = model.served_version, model.backend
    if model.file is None and not repository.target.completes:
        return None  # TC029 reports the missing file
    if backend == "pytorch":
        # A model.py may belong to PyTorch's Python runtime, which this rule does not judge.
        version_files = model.version_files(version) if version is not None else {}
        return None if "model.py" in version_files or model.config.message.runtime else backend
    completes = repository.target.completes or backend not in _COMPLETING_BACKENDS
    return None if completes else backend
