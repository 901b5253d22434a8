# SPDX-License-Identifier: Apache-2.0
"""Triton's own backends for engines: `onnxruntime` and `tensorrt`, in NVIDIA's server images.

They need no code in the repository: the engine's file and a config.pbtxt. The embedded server's
wheel does not carry them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.engines.build.contract import Tensors
from tritonctl.engines.build.engine import Artefact
from tritonctl.errors import ConfigurationError, RepositoryError
from tritonctl.project.schema import InstanceGroup, Model, Serving, SessionOptions
from tritonctl.repository.backends import PythonBackend, declared
from tritonctl.repository.ensembles import ENGINE_STEP, Ensemble

# The onnxruntime backend's numbers: https://github.com/triton-inference-server/onnxruntime_backend
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
_MODES = {"sequential": "0", "parallel": "1"}


@dataclass(frozen=True)
class NativeBackend:
    """A backend of Triton: the file it serves, by its suffix, and what it reads from the config."""

    name: str
    suffix: str
    settings: Callable[[SessionOptions], dict[str, Any]]
    needs_gpu: bool = False
    reads_session: bool = False

    def instance_group(self, serving: Serving, where: str) -> list[InstanceGroup]:
        """The project's, or one instance on a GPU where nothing else is possible.

        Raises ConfigurationError for a kind that the backend refuses to load.
        """
        if not self.needs_gpu:
            return serving.instance_group
        if "instance_group" not in serving.model_fields_set:
            return [InstanceGroup(kind="KIND_GPU")]
        wrong = [group.kind for group in serving.instance_group if group.kind != "KIND_GPU"]
        if wrong:
            raise ConfigurationError(
                f"{where}.serving.instance_group: {self.name} runs on GPUs, not as {wrong[0]}",
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


def _nothing(_: SessionOptions) -> dict[str, Any]:
    return {}


NATIVE = {
    "onnxruntime": NativeBackend("onnxruntime", ".onnx", _onnxruntime, reads_session=True),
    "tensorrt": NativeBackend("tensorrt", ".plan", _nothing, needs_gpu=True),
}


def native_backend(asked: str | None, artefact: Artefact, where: str) -> NativeBackend | None:
    """The backend of Triton that serves an engine; None: a Python backend does.

    `asked` is the project's `serving.backend`. Raises ConfigurationError when it cannot serve it.
    """
    own = artefact.manifest.python_backend
    name = own if asked in (None, "python") else asked
    if name not in NATIVE:
        if name == own:
            return None
        raise ConfigurationError(
            f"{where}.serving.backend: unknown backend `{name}` for engines of the builder "
            f"{artefact.manifest.builder}",
            remedy=f"choose one of {', '.join(NATIVE)}, or remove `backend`",
        )
    native = NATIVE[name]
    if not _graphs(artefact, native):
        raise ConfigurationError(
            f"{where}.serving.backend: {name} serves a {native.suffix} file, and the builder "
            f"{artefact.manifest.builder} made none",
            remedy="remove `backend`, or choose the builder of that name",
        )
    return native


def interface(backend: NativeBackend, tensors: Tensors) -> PythonBackend:
    """What the steps around an engine see of it: its tensors; it does no other's work."""
    return PythonBackend(
        schema="tritonctl.python_backend/1",
        name=backend.name,
        summary="Triton's own",
        max_batch_size=0,
        inputs=declared(tensors.inputs),
        outputs=declared(tensors.outputs),
    )


def refuse_other_wiring(
    name: str, ensemble: Ensemble, native: NativeBackend, known: set[str]
) -> None:
    """Raise ConfigurationError for a task whose engine step reads what the graph has not.

    known: the graph's inputs.
    """
    engines = (step for step in ensemble.steps.values() if step.backend == ENGINE_STEP)
    if any({*step.inputs} - {*step.only_if_read} - known for step in engines):
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
    """Raise ConfigurationError for options of ONNX Runtime where another library runs the engine.

    engine: the Python backend of the engine step, where one has it.
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
        f"models.{name}.serving.session: ONNX Runtime's options, and the engine of builder "
        f"{model.engine.builder} is run by another library",
        remedy=remedy,
    )


def _graphs(artefact: Artefact, native: NativeBackend) -> list[str]:
    files = (file.path for file in artefact.manifest.result.files)
    return [path for path in files if path.endswith(native.suffix)]


def graph_files(artefact: Artefact, native: NativeBackend) -> tuple[str, list[tuple[Path, str]]]:
    """The engine's file name, and what lies in its folder, flat in the version folder.

    Raises RepositoryError when the artefact does not hold exactly one.
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
