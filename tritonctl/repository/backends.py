# SPDX-License-Identifier: Apache-2.0
"""The Python backends, described by `python_backends/<name>/backend.toml`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tritonctl.engines.builds.contract import EngineTensors, TensorSpec
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.host.requirements import LOCK_SUFFIX
from tritonctl.project.expected import reason
from tritonctl.protocol.sampling_table import SamplingParameter, sampling_parameters
from tritonctl.repository.contents import REQUIREMENTS
from tritonctl.repository.model_config import ConfigTensor

BACKEND_FILE = "backend.toml"
_SHARED_SUFFIXES = (".py", ".json")  # modules, and the tables that they read


class BackendTensor(BaseModel):
    """A tensor of a backend, without the batch dimension."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False
    reshape: list[int] | None = None  # the dims that the backend sees
    doc: str = ""

    def as_config_tensor(self) -> ConfigTensor:
        """Return the tensor for config.pbtxt."""
        reshape = None if self.reshape is None else tuple(self.reshape)
        return ConfigTensor(
            self.name, self.data_type, tuple(self.dims), self.optional, reshape=reshape
        )


class SamplingSupport(BaseModel):
    """The sampling parameters of an engine, by their names in textlib/triton/sampling.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    supported: list[str] = []
    notes: dict[str, str] = {}  # added to the description of a parameter

    def tensors(self, parameters: Mapping[str, SamplingParameter]) -> list[BackendTensor]:
        """Return the tensors of the supported parameters. Raises ValueError for an unknown name."""
        if undefined_names := {*self.supported, *self.notes} - {*parameters}:
            raise ValueError(
                f"`sampling` names {', '.join(sorted(undefined_names))}, expected names from "
                f"{', '.join(parameters)}"
            )
        return [
            tensor
            for name in self.supported
            for tensor in sampling_tensors(parameters[name], self.notes.get(name, "")).values()
        ]


class PythonBackend(BaseModel):
    """A `backend.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["tritonctl.python_backend/1"] = Field(alias="schema")
    name: str
    summary: str
    shares: list[str] = []
    files: list[str] = []
    inlines: list[str] = []
    max_batch_size: int
    decoupled: bool = False
    dynamic_batching: bool = False
    max_queue_delay_microseconds: int = 0
    parameters: dict[str, str] = {}
    settings: dict[str, str] = {}  # parameters with fixed values
    tensors: Literal["declared", "artefact", "ensemble"] = "declared"
    inputs: list[BackendTensor] = []
    outputs: list[BackendTensor] = []
    sampling: SamplingSupport = SamplingSupport()  # `backend_named` adds its tensors to `inputs`
    folder: Path = Path()
    shared_folders: dict[str, Path] = {}

    @model_validator(mode="after")
    def _tensors_once(self) -> Self:
        declared = bool(self.inputs or self.outputs)
        if declared != (self.tensors == "declared"):
            raise ValueError(
                'list inputs and outputs, or set tensors = "artefact" for the engine\'s tensors'
            )
        return self

    @property
    def requirements(self) -> tuple[Path, ...]:
        """The requirements file of the backend's stub process, if any."""
        file = self.folder / REQUIREMENTS
        return (file,) if file.is_file() else ()

    def model_files(self) -> list[Path]:
        """Return the modules and data files of the backend's folder, without its description."""
        requirements = self.folder / REQUIREMENTS
        lock = requirements.with_suffix(LOCK_SUFFIX)
        description_files = {self.folder / BACKEND_FILE, requirements, lock}
        return [
            file
            for file in sorted(self.folder.rglob("*"))
            if file.is_file()
            and file not in description_files
            and not any(
                part == "__pycache__" or part.startswith(".")
                for part in file.relative_to(self.folder).parts
            )
        ]

    def input_tensors(self, max_batch_size: int) -> tuple[ConfigTensor, ...]:
        """Return the inputs for config.pbtxt.

        `execute` receives the requests of a batch separately, so their shapes may differ.
        """
        may_differ = self.dynamic_batching and max_batch_size > 0
        return tuple(
            replace(tensor.as_config_tensor(), allow_ragged_batch=may_differ and -1 in tensor.dims)
            for tensor in self.inputs
        )

    def with_engine_tensors(self, tensors: EngineTensors, *, batched: bool) -> PythonBackend:
        """Return this backend with an engine's tensors, unless it declares its tensors."""
        if self.tensors != "artefact":
            return self
        sides = {"inputs": tensors.inputs, "outputs": tensors.outputs}
        return self.model_copy(
            update={side: engine_tensors(specs, batched=batched) for side, specs in sides.items()}
        )

    def with_inlined_step(
        self, inlined: PythonBackend, inputs: Iterable[str] = ()
    ) -> PythonBackend:
        """Return this backend with the work and the outputs of another one.

        `inputs` are inputs of the other backend to add. Raises ConfigurationError if this backend
        cannot inline it.
        """
        key = f"inline_{inlined.name}"
        input_names = {tensor.name for tensor in self.inputs}
        added_inputs = [
            tensor for tensor in inlined.inputs if tensor.name in {*inputs} - input_names
        ]
        tensors = {"inputs": [*self.inputs, *added_inputs], "outputs": inlined.outputs}
        return self._absorb(inlined, f"remove `{key}: true`").model_copy(
            update={"settings": self.settings | {key: "true"}, **tensors}
        )

    def with_fused_steps(
        self,
        fused_backends: Iterable[PythonBackend],
        inputs: Sequence[BackendTensor],
        outputs: Sequence[BackendTensor],
        public_names: Mapping[str, str],
    ) -> PythonBackend:
        """Return this backend with the work of all other steps and the ensemble's tensors.

        `public_names` maps tensor names of steps to the ensemble's names, where they differ.
        Raises ConfigurationError if this backend cannot inline a step.
        """
        backend, settings = self, dict(self.settings)
        for fused_backend in fused_backends:
            backend = backend._absorb(fused_backend, "remove `fused: true`")
            settings[f"inline_{fused_backend.name}"] = "true"
        names = json.dumps(dict(public_names), sort_keys=True)
        settings |= {"fused": "true", "public_names": names}
        tensors = {"inputs": list(inputs), "outputs": list(outputs)}
        return backend.model_copy(update={"settings": settings, **tensors})

    def _absorb(self, absorbed: PythonBackend, remedy: str) -> PythonBackend:
        if absorbed.name not in self.inlines:
            raise ConfigurationError(
                f"the backend {self.name} cannot do the work of {absorbed.name} "
                f"({self.folder / 'backend.toml'} does not list it under `inlines`)",
                remedy=f"{remedy}, or serve it with another engine",
            )
        return self.model_copy(
            update={
                "shares": _union(self.shares, absorbed.shares),
                "files": _union(self.files, absorbed.files),
                "parameters": absorbed.parameters | self.parameters,
                "shared_folders": absorbed.shared_folders | self.shared_folders,
            }
        )

    def version_files(self) -> list[tuple[Path, str]]:
        """Return the source files, including shared ones, with their paths in the version folder.

        Raises ConfigurationError without a model.py.
        """
        if not (self.folder / "model.py").is_file():
            raise ConfigurationError(
                f"{self.folder / 'model.py'} is missing: a backend is backend.toml and model.py",
                remedy="write it: `class TritonPythonModel` with `execute(self, requests)`, as in "
                "docs/how-to/own-steps.md",
            )
        files = [(file, str(file.relative_to(self.folder))) for file in self.model_files()]
        for shared, folder in self.shared_folders.items():
            files += [
                (file, f"{shared}/{file.relative_to(folder)}")
                for file in sorted(folder.rglob("*"))
                if file.suffix in _SHARED_SUFFIXES
            ]
        return files


def sampling_tensors(parameter: SamplingParameter, note: str = "") -> dict[str, BackendTensor]:
    """Return an engine's tensors of a sampling parameter, by their names in ensembles."""
    doc = "; ".join(filter(None, (parameter.tensor_doc, note)))
    docs = {parameter.name: doc} | dict.fromkeys(
        parameter.aliases,
        f"another name of {parameter.name}; if a request has both, they must be equal",
    )
    return {
        public: BackendTensor(
            name=tensor, data_type=parameter.data_type, dims=[1], optional=True, doc=docs[public]
        )
        for tensor, public in parameter.engine_tensors().items()
    }


def engine_tensors(specs: list[TensorSpec], *, batched: bool) -> list[BackendTensor]:
    """Return an engine's tensors as backend tensors.

    config.pbtxt needs a dimension behind the batch: clients see [batch, 1] for an engine's [batch],
    and [1] for a scalar. Triton refuses an empty `reshape` without a batch: backends of scalars
    take [1].
    """
    return [
        BackendTensor(
            name=spec.name,
            data_type=spec.data_type,
            dims=spec.dims or [1],
            reshape=[] if batched and not spec.dims else None,
        )
        for spec in specs
    ]


def engine_config_tensors(specs: list[TensorSpec], *, batched: bool) -> tuple[ConfigTensor, ...]:
    """Return an engine's tensors for config.pbtxt."""
    return tuple(tensor.as_config_tensor() for tensor in engine_tensors(specs, batched=batched))


def _union(first: list[str], second: list[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def backend_named(name: str, project_root: Path | None = None) -> PythonBackend:
    """Return the Python backend of that name. Raises ConfigurationError."""
    file = bundled.find(f"python_backends/{name}/{BACKEND_FILE}", project_root)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        # A project's backend may use shared code that only tritonctl ships.
        shared = {name: _shared_folder(file, name, project_root) for name in data.get("shares", [])}
        backend = PythonBackend.model_validate(
            {**data, "folder": file.parent, "shared_folders": shared}
        )
        tensors = backend.sampling.tensors(sampling_parameters(project_root))
        return backend.model_copy(update={"inputs": [*backend.inputs, *tensors]})
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {reason(error)}",
            remedy="compare it with python_backends/README.md",
        ) from error


def _shared_folder(file: Path, name: object, project_root: Path | None) -> Path:
    """Return a shared folder of a backend.toml; next to the model it has the same name."""
    for root in bundled.search_path(project_root):
        folder = root / "python_backends" / str(name)
        if re.fullmatch(r"\w+", str(name)) and folder.is_dir():
            return folder
    raise ConfigurationError(
        f"{line_of(file, str(name))}: `shares` names {name}, not a folder of python_backends/",
        remedy="name a folder next to the backend's, or one that tritonctl ships",
    )


def line_of(file: Path, text: str) -> str:
    """Return `file:line` of the first line with the text, or the file without a match."""
    lines = file.read_text(encoding="utf-8").splitlines()
    numbers = (number for number, line in enumerate(lines, 1) if text in line)
    number = next(numbers, None)
    return f"{file}:{number}" if number else str(file)
