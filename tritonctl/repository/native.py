# SPDX-License-Identifier: Apache-2.0
"""Triton's native backends `onnxruntime` and `tensorrt`, in NVIDIA's server images.

They need only the engine's file and a config.pbtxt. The embedded server's wheel lacks them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.contract import EngineTensors
from tritonctl.engines.builds.engine import Artefact
from tritonctl.errors import ConfigurationError, RepositoryError
from tritonctl.project.schema import InstanceGroup, Model, Serving, SessionOptions
from tritonctl.repository.backends import PythonBackend, engine_tensors
from tritonctl.repository.ensembles import ENGINE_STEP, Ensemble

# The onnxruntime backend's numbers: https://github.com/triton-inference-server/onnxruntime_backend
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
_MODES = {"sequential": "0", "parallel": "1"}


@dataclass(frozen=True)
class NativeBackend:
    """A native backend of Triton."""

    name: str
    suffix: str  # of the engine's file
    settings: Callable[[SessionOptions], dict[str, Any]]  # returns config.pbtxt fields
    needs_gpu: bool = False
    reads_session: bool = False

    def instance_group(self, serving: Serving, location: str) -> list[InstanceGroup]:
        """Return the project's instance groups, or one GPU instance for a GPU-only backend.

        Raises ConfigurationError for a kind that the backend does not support.
        """
        if not self.needs_gpu:
            return serving.instance_group
        if "instance_group" not in serving.model_fields_set:
            return [InstanceGroup(kind="KIND_GPU")]
        wrong = [group.kind for group in serving.instance_group if group.kind != "KIND_GPU"]
        if wrong:
            raise ConfigurationError(
                f"{location}.serving.instance_group: {self.name} runs on GPUs, not as {wrong[0]}",
                remedy="set `kind: KIND_GPU`, or remove `instance_group`",
            )
        return serving.instance_group


def _onnxruntime(session: SessionOptions) -> dict[str, Any]:
    level = _LEVELS.get(session.graph_optimization_level)  # absent: all
    parameters = {
        "intra_op_thread_count": str(session.intra_op_num_threads),
        "inter_op_thread_count": str(session.inter_op_num_threads),
        "execution_mode": _MODES[session.execution_mode],
    }
    record: dict[str, Any] = {
        "parameters": {key: {"string_value": value} for key, value in parameters.items()}
    }
    return record if level is None else record | {"optimization": {"graph": {"level": level}}}


def _no_settings(_: SessionOptions) -> dict[str, Any]:
    return {}


NATIVE = {
    "onnxruntime": NativeBackend("onnxruntime", ".onnx", _onnxruntime, reads_session=True),
    "tensorrt": NativeBackend("tensorrt", ".plan", _no_settings, needs_gpu=True),
}


def native_backend(
    requested: str | None, artefact: Artefact, location: str
) -> NativeBackend | None:
    """Return the native backend that serves an engine; None: a Python backend does.

    `requested` is the project's `serving.backend`. Raises ConfigurationError if it cannot serve
    the engine.
    """
    default_backend = artefact.manifest.python_backend
    name = default_backend if requested in (None, "python") else requested
    if name not in NATIVE:
        if name == default_backend:
            return None
        raise ConfigurationError(
            f"{location}.serving.backend: unknown backend `{name}` for engines of the builder "
            f"{artefact.manifest.builder}",
            remedy=f"choose one of {', '.join(NATIVE)}, or remove `backend`",
        )
    native = NATIVE[name]
    if not _graphs(artefact, native):
        raise ConfigurationError(
            f"{location}.serving.backend: {name} serves {native.suffix} files, and the builder "
            f"{artefact.manifest.builder} made none",
            remedy="remove `backend`, or choose the builder of that name",
        )
    return native


def engine_interface(
    backend: NativeBackend, tensors: EngineTensors, *, batched: bool
) -> PythonBackend:
    """Return the engine's interface for its neighbouring steps: its tensors, no inlined steps."""
    return PythonBackend(
        schema="tritonctl.python_backend/1",
        name=backend.name,
        summary="Triton's own",
        max_batch_size=0,
        inputs=engine_tensors(tensors.inputs, batched=batched),
        outputs=engine_tensors(tensors.outputs, batched=batched),
    )


def refuse_other_wiring(
    name: str, ensemble: Ensemble, native: NativeBackend, graph_inputs: set[str]
) -> None:
    """Raise ConfigurationError for a task whose engine step reads inputs that the graph lacks."""
    engines = (step for step in ensemble.steps.values() if step.backend == ENGINE_STEP)
    if any({*step.inputs} - {*step.only_if_read} - graph_inputs for step in engines):
        raise ConfigurationError(
            f"models.{name}.serving.backend: the task {ensemble.task} has steps around its engine, "
            f"which are wired for a Python backend, not for {native.name}",
            remedy="use the task `tensors`, or remove `backend`",
        )


def refuse_fused(name: str, native: NativeBackend | None) -> None:
    """Raise ConfigurationError for `serving.fused` where Triton's own backend serves the engine."""
    if native is not None:
        raise ConfigurationError(
            f"models.{name}.serving.fused: Triton's own backend {native.name} runs a graph and "
            "cannot do the work of other steps",
            remedy="remove `fused: true`, or serve the engine with the Python backend",
        )


def refuse_unread_session(
    name: str, model: Model, engine: PythonBackend | None, native: NativeBackend | None
) -> None:
    """Raise ConfigurationError for ONNX Runtime options if another library runs the engine.

    `engine` is the Python backend of the engine step, if any.
    """
    if "session" not in model.serving.model_fields_set:
        return
    if native.reads_session if native else engine and "session" in engine.parameters:
        return
    remedy = "remove `session`"
    if engine and "properties" in engine.parameters:
        remedy += (
            "; OpenVINO's threads are INFERENCE_NUM_THREADS in serving.config.engine.parameters."
            "properties, which `tritonctl tune` tries"
        )
    raise ConfigurationError(
        f"models.{name}.serving.session: these are options of ONNX Runtime, and another library "
        f"runs the engine of builder {model.engine.builder}",
        remedy=remedy,
    )


def _graphs(artefact: Artefact, native: NativeBackend) -> list[str]:
    files = (file.path for file in artefact.manifest.result.files)
    return [path for path in files if path.endswith(native.suffix)]


def graph_files(artefact: Artefact, native: NativeBackend) -> tuple[str, list[tuple[Path, str]]]:
    """Return the graph's file name, and the files of its folder by name in the version folder.

    Raises RepositoryError unless the artefact has exactly one graph.
    """
    graphs = _graphs(artefact, native)
    if len(graphs) != 1:
        raise RepositoryError(
            f"{artefact.folder} holds {len(graphs)} {native.suffix} files, expected one",
            remedy="make the engine again: `tritonctl build --force`",
        )
    folder = Path(graphs[0]).parent
    paths = (Path(file.path) for file in artefact.manifest.result.files)
    files = [(artefact.folder / path, path.name) for path in paths if path.parent == folder]
    return Path(graphs[0]).name, files
