# SPDX-License-Identifier: Apache-2.0
"""The Python backends: `python_backends/<name>/backend.toml` describes each."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tritonctl.engines.build.contract import Tensors, TensorSpec
from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.project.expected import reason
from tritonctl.repository.contents import REQUIREMENTS
from tritonctl.repository.model_config import Tensor

BACKEND_FILE = "backend.toml"


class BackendTensor(BaseModel):
    """A tensor of a backend, without the batch dimension."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False
    doc: str = ""

    def tensor(self) -> Tensor:
        """The tensor as it stands in config.pbtxt."""
        return Tensor(self.name, self.data_type, tuple(self.dims), self.optional)


class PythonBackend(BaseModel):
    """A `backend.toml`. settings: parameters that rendering adds, with their values."""

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
    settings: dict[str, str] = {}
    tensors: Literal["declared", "artefact", "ensemble"] = "declared"
    inputs: list[BackendTensor] = []
    outputs: list[BackendTensor] = []
    folder: Path = Path()
    shared_folders: dict[str, Path] = {}

    @model_validator(mode="after")
    def _tensors_once(self) -> Self:
        declared = bool(self.inputs or self.outputs)
        if declared != (self.tensors == "declared"):
            raise ValueError(
                'list inputs and outputs, or set tensors = "artefact": the engine\'s own'
            )
        return self

    @property
    def requirements(self) -> tuple[Path, ...]:
        """The file of what the backend's stub process imports, where it has one."""
        file = self.folder / REQUIREMENTS
        return (file,) if file.is_file() else ()

    def own_files(self) -> list[Path]:
        """What lies in its folder for its model: modules and data, without what describes it."""
        apart = {self.folder / BACKEND_FILE, self.folder / REQUIREMENTS}
        return [
            file
            for file in sorted(self.folder.rglob("*"))
            if file.is_file()
            and file not in apart
            and not any(
                part == "__pycache__" or part.startswith(".")
                for part in file.relative_to(self.folder).parts
            )
        ]

    def input_tensors(self) -> tuple[Tensor, ...]:
        """The inputs as they stand in config.pbtxt.

        `execute` gets the requests of a batch one by one, so their shapes need not agree.
        """
        return tuple(
            replace(tensor.tensor(), allow_ragged_batch=self.dynamic_batching and -1 in tensor.dims)
            for tensor in self.inputs
        )

    def serving(self, tensors: Tensors) -> PythonBackend:
        """This backend for an engine with these tensors; declared ones stay as they are."""
        if self.tensors != "artefact":
            return self
        sides = {"inputs": tensors.inputs, "outputs": tensors.outputs}
        return self.model_copy(update={side: declared(specs) for side, specs in sides.items()})

    def inlining(self, other: PythonBackend, inputs: Iterable[str] = ()) -> PythonBackend:
        """This backend when it does the work of `other` too and answers with its outputs.

        inputs: of `other`, which this one then has besides its own. Raises ConfigurationError if it
        cannot.
        """
        key = f"inline_{other.name}"
        known = {tensor.name for tensor in self.inputs}
        more = [tensor for tensor in other.inputs if tensor.name in {*inputs} - known]
        tensors = {"inputs": [*self.inputs, *more], "outputs": other.outputs}
        return self._doing_the_work_of(other, f"remove `{key}: true`").model_copy(
            update={"settings": self.settings | {key: "true"}, **tensors}
        )

    def fused(
        self,
        others: Iterable[PythonBackend],
        inputs: Sequence[BackendTensor],
        outputs: Sequence[BackendTensor],
        public_names: Mapping[str, str],
    ) -> PythonBackend:
        """This backend when it does the work of all other steps, with the ensemble's tensors.

        public_names: by a step's own name of a tensor, where the ensemble has another for it.
        Raises ConfigurationError if it cannot.
        """
        backend, settings = self, dict(self.settings)
        for other in others:
            backend = backend._doing_the_work_of(other, "remove `fused: true`")
            settings[f"inline_{other.name}"] = "true"
        names = json.dumps(dict(public_names), sort_keys=True)
        settings |= {"fused": "true", "public_names": names}
        tensors = {"inputs": list(inputs), "outputs": list(outputs)}
        return backend.model_copy(update={"settings": settings, **tensors})

    def _doing_the_work_of(self, other: PythonBackend, remedy: str) -> PythonBackend:
        if other.name not in self.inlines:
            raise ConfigurationError(
                f"the backend {self.name} cannot do the work of {other.name} "
                f"({self.folder / 'backend.toml'} does not list it under `inlines`)",
                remedy=f"{remedy}, or serve it with another engine",
            )
        return self.model_copy(
            update={
                "shares": _union(self.shares, other.shares),
                "files": _union(self.files, other.files),
                "parameters": other.parameters | self.parameters,
                "shared_folders": other.shared_folders | self.shared_folders,
            }
        )

    def code(self) -> list[tuple[Path, str]]:
        """The source files and where each goes in the version folder: all of its folder, and what
        it shares.

        Raises ConfigurationError without a model.py.
        """
        if not (self.folder / "model.py").is_file():
            raise ConfigurationError(
                f"{self.folder / 'model.py'} is missing: a backend is backend.toml and model.py",
                remedy="write it: `class TritonPythonModel` with `execute(self, requests)`, as in "
                "docs/how-to/own-steps.md",
            )
        files = [(file, str(file.relative_to(self.folder))) for file in self.own_files()]
        for shared, folder in self.shared_folders.items():
            files += [(f, f"{shared}/{f.name}") for f in sorted(folder.glob("*.py"))]
        return files


def declared(specs: list[TensorSpec]) -> list[BackendTensor]:
    """An engine's own tensors."""
    return [BackendTensor(name=t.name, data_type=t.data_type, dims=t.dims) for t in specs]


def artefact_tensors(specs: list[TensorSpec]) -> tuple[Tensor, ...]:
    """An engine's own tensors as they stand in config.pbtxt."""
    return tuple(tensor.tensor() for tensor in declared(specs))


def _union(own: list[str], others: list[str]) -> list[str]:
    return list(dict.fromkeys([*own, *others]))


def backend_named(name: str, project_root: Path | None = None) -> PythonBackend:
    """The Python backend of that name. Raises ConfigurationError."""
    file = bundled.find(f"python_backends/{name}/{BACKEND_FILE}", project_root)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        # A project's own backend may share code that only tritonctl ships.
        shared = {name: _shared(file, name, project_root) for name in data.get("shares", [])}
        return PythonBackend.model_validate(
            {**data, "folder": file.parent, "shared_folders": shared}
        )
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {reason(error)}",
            remedy="compare it with python_backends/README.md",
        ) from error


def _shared(file: Path, name: object, project_root: Path | None) -> Path:
    """The folder that a backend.toml shares: beside the model it has the same name."""
    for root in bundled.search_path(project_root):
        folder = root / "python_backends" / str(name)
        if re.fullmatch(r"\w+", str(name)) and folder.is_dir():
            return folder
    raise ConfigurationError(
        f"{line_of(file, str(name))}: `shares` names {name}, no folder of python_backends/",
        remedy="name a folder beside the backend's own, or one that tritonctl ships",
    )


def line_of(file: Path, text: str) -> str:
    """`file:line` of the first line that has the text; the file alone where none has."""
    lines = file.read_text(encoding="utf-8").splitlines()
    numbers = (number for number, line in enumerate(lines, 1) if text in line)
    number = next(numbers, None)
    return f"{file}:{number}" if number else str(file)
