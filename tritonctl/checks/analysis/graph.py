# SPDX-License-Identifier: Apache-2.0
"""An ensemble as a graph: steps, tensors, and each model's declaration of each tensor.

Reads the configurations only and judges nothing. Whatever a backend may complete when it loads a
model counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.declared import DeclaredTensor
from tritonctl.checks.analysis.nesting import innermost_first, step_models
from tritonctl.checks.config.backends import BACKEND_BY_FILE
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonSource, read_python
from tritonctl.checks.repository import MAX_CODE_BYTES, Model, Repository

Path = tuple[str | int, ...]
STEPS: Path = ("ensemble_scheduling", "step")
# These backends complete a whole tensor list or nothing. For other backends it is unknown.
_COMPLETE_ALL_OR_NOTHING = {
    "onnxruntime",
    "tensorrt",
    "openvino",
    "pytorch",
    "tensorflow",
    "tensorrtllm",
    "fil",
}
# Models of these backends have exactly the declared tensors.
_COMPLETE_NOTHING = {
    *("identity", "repeat", "square", "stateful", "hps", "hugectr", "paddle"),
    *("armnn_tflite", "fastertransformer", "torch_aoti"),
}
_PYTHON = "model.py"
_KEEP_BATCH_SIZE = {"ensemble", "pytorch", "tensorrtllm"}


class EndpointSpec(NamedTuple):
    """A model's declaration of a tensor. None means unknown."""

    model: str
    dtype: str | None
    dims: tuple[int, ...] | None  # without the batch dimension
    is_batched: bool | None
    optional: bool = False

    @property
    def full_dims(self) -> tuple[int, ...] | None:
        """The dims with the batch dimension; None if unknown."""
        if self.dims is None or self.is_batched is None:
            return None
        return (-1, *self.dims) if self.is_batched else self.dims

    @property
    def shape(self) -> str | None:
        """The shape as text, with the batch dimension: `[batch, 4]`."""
        if self.dims is None:
            return None
        batch = {True: ["batch"], False: [], None: ["batch?"]}[self.is_batched]
        return f"[{', '.join([*batch, *map(str, self.dims)])}]"


class Interface(NamedTuple):
    """The known tensors and properties of a step's model once it is loaded. None means unknown."""

    name: str
    inputs: Mapping[str, DeclaredTensor]
    outputs: Mapping[str, DeclaredTensor]
    # Whether the model has no other inputs or outputs than these.
    inputs_are_complete: bool
    outputs_are_complete: bool
    max_batch_size: int | None
    decoupled: bool | None

    def tensor_spec(self, tensor: DeclaredTensor) -> EndpointSpec:
        """Return the model's declaration of one of its tensors."""
        is_batched = None if self.max_batch_size is None else self.max_batch_size > 0
        return _tensor_spec(self.name, tensor, is_batched)


class Link(NamedTuple):
    """An entry of a step's input_map or output_map."""

    step: int
    name: str  # the tensor's name in the step's model
    tensor: str  # the tensor's name in the ensemble
    path: Path
    spec: EndpointSpec | None  # None if the model is unknown or has no such tensor


@dataclass(frozen=True)
class GraphStep:
    """A step of an ensemble."""

    index: int
    name: str
    version: int
    path: Path
    interface: Interface | None  # None if its model is not in the repository or is unreadable
    inputs: tuple[Link, ...]
    outputs: tuple[Link, ...]

    @property
    def unmapped_inputs(self) -> list[str]:
        """The names of the model's required inputs that the step does not map."""
        mapped = {link.name for link in self.inputs}
        inputs = self.interface.inputs.values() if self.interface else ()
        return [
            tensor.name for tensor in inputs if tensor.name not in mapped and not tensor.optional
        ]


class StepScheduler:
    """Find the steps that can run as tensors become available; visits each input once."""

    def __init__(self, steps: Iterable[GraphStep]) -> None:
        self.remaining = {step.index: step for step in steps}
        self.written_tensors: set[str] = set()
        self._missing_inputs: dict[int, int] = {}
        self._readers: dict[str, list[int]] = {}
        for step in self.remaining.values():
            read = {link.tensor for link in step.inputs}
            self._missing_inputs[step.index] = len(read)
            for tensor in read:
                self._readers.setdefault(tensor, []).append(step.index)

    def start(self, tensors: Iterable[str]) -> list[GraphStep]:
        """Return the steps that can run with these tensors, or without any."""
        return self._release(
            [index for index, missing_count in self._missing_inputs.items() if not missing_count],
            tensors,
        )

    def finish(self, steps: Iterable[GraphStep]) -> list[GraphStep]:
        """Return the steps that can run once these steps have written their outputs."""
        return self._release([], (link.tensor for step in steps for link in step.outputs))

    def drop(self, step: GraphStep) -> None:
        """Stop waiting for a step."""
        self.remaining.pop(step.index, None)

    def _release(self, ready_indices: list[int], tensors: Iterable[str]) -> list[GraphStep]:
        for tensor in set(tensors) - self.written_tensors:
            self.written_tensors.add(tensor)
            for index in self._readers.get(tensor, ()):
                self._missing_inputs[index] -= 1
                ready_indices += [index] if not self._missing_inputs[index] else []
        return [
            self.remaining.pop(index) for index in sorted(ready_indices) if index in self.remaining
        ]


@dataclass(frozen=True)
class EnsembleGraph:
    """An ensemble with its declared inputs and outputs and its steps."""

    name: str
    steps: tuple[GraphStep, ...]
    inputs: Mapping[str, DeclaredTensor]
    outputs: Mapping[str, DeclaredTensor]
    max_batch_size: int

    @cached_property
    def writers(self) -> dict[str, list[Link]]:
        """The entries of the output maps by tensor."""
        return _links_by_tensor(link for step in self.steps for link in step.outputs)

    @cached_property
    def readers(self) -> dict[str, list[Link]]:
        """The entries of the input maps by tensor."""
        return _links_by_tensor(link for step in self.steps for link in step.inputs)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors in the order of their first mention."""
        mapped = (link.tensor for step in self.steps for link in (*step.inputs, *step.outputs))
        return tuple(dict.fromkeys((*self.inputs, *mapped, *self.outputs)))

    @cached_property
    def layers(self) -> tuple[tuple[GraphStep, ...], ...]:
        """The steps in layers that run together. Steps that can never run are in no layer."""
        scheduler = StepScheduler(self.steps)
        layer, layers = scheduler.start(self.inputs), []
        while layer:
            layers.append(tuple(layer))
            layer = scheduler.finish(layer)
        return tuple(layers)

    def ensemble_spec(self, name: str) -> EndpointSpec | None:
        """Return the ensemble's declaration of an input or output, as its steps see it."""
        tensor = self.inputs.get(name) or self.outputs.get(name)
        if tensor is None:
            return None
        spec = _tensor_spec(self.name, tensor, self.max_batch_size > 0)
        dims = spec.dims if tensor.reshape is None else tensor.reshape
        return EndpointSpec(spec.model, spec.dtype, dims, spec.is_batched, spec.optional)

    @cached_property
    def specs(self) -> dict[str, list[tuple[Link | None, EndpointSpec]]]:
        """The declarations of each tensor, in the order in which Triton compares them.

        The link of the ensemble's own declaration is None.
        """
        specs: dict[str, list[tuple[Link | None, EndpointSpec]]] = {}
        for name in (*self.inputs, *self.outputs):
            if name not in specs and (declared_spec := self.ensemble_spec(name)) is not None:
                specs[name] = [(None, declared_spec)]
        for step in self.steps:
            for link in (*step.inputs, *step.outputs):
                if link.spec is not None:
                    specs.setdefault(link.tensor, []).append((link, link.spec))
        return specs


def graph_of(model: Model, repository: Repository) -> EnsembleGraph | None:
    """Return the ensemble's graph; None for other models and unreadable steps.

    A model with steps and another backend also gives None; TC301 reports it.
    """
    message = model.config.message
    other_backend = message.platform or message.backend if message.platform != "ensemble" else ""
    if other_backend or not step_models(model) or not model.is_readable:
        return None
    return memoized(model, "graph", lambda: _graph(model, repository))


def interface_of(model: Model, repository: Repository) -> Interface | None:
    """Return the known interface of a model; None if its configuration cannot be read."""
    return memoized(
        model,
        "interface",
        lambda: (
            _interface(model, repository) if model.is_readable else _interface_without_config(model)
        ),
    )


def _links_by_tensor(links: Iterable[Link]) -> dict[str, list[Link]]:
    links_of: dict[str, list[Link]] = {}
    for link in links:
        links_of.setdefault(link.tensor, []).append(link)
    return links_of


def _tensors_by_name(tensors: Iterable[DeclaredTensor]) -> dict[str, DeclaredTensor]:
    tensors_of: dict[str, DeclaredTensor] = {}
    for tensor in tensors:
        tensors_of.setdefault(tensor.name, tensor)
    return tensors_of


def _tensor_spec(model: str, tensor: DeclaredTensor, is_batched: bool | None) -> EndpointSpec:
    dtype = None if tensor.dtype == "TYPE_INVALID" else tensor.dtype
    return EndpointSpec(model, dtype, tensor.dims, is_batched, tensor.optional)


def _graph(model: Model, repository: Repository) -> EnsembleGraph:
    message = model.config.message
    steps = enumerate(message.ensemble_scheduling.step)
    return EnsembleGraph(
        name=model.name,
        steps=tuple(_step(index, step, repository) for index, step in steps),
        inputs=_tensors_by_name(declared.inputs(model)),
        outputs=_tensors_by_name(declared.outputs(model)),
        max_batch_size=message.max_batch_size,
    )


def _step(index: int, step: Any, repository: Repository) -> GraphStep:
    model = repository.models.get(step.model_name)
    interface = interface_of(model, repository) if model else None
    maps = (step.input_map, step.output_map)
    return step_of(index, step.model_name, interface, *maps, step.model_version)


def step_of(
    index: int,
    name: str,
    interface: Interface | None,
    input_map: Mapping[str, str],
    output_map: Mapping[str, str],
    version: int = -1,
) -> GraphStep:
    """Build a step from its maps of model tensor names to ensemble tensor names."""
    path = (*STEPS, index)
    inputs = _map_links(index, input_map, (*path, "input_map"), interface, "inputs")
    outputs = _map_links(index, output_map, (*path, "output_map"), interface, "outputs")
    return GraphStep(index, name, version, path, interface, inputs, outputs)


def _map_links(
    step: int, entries: Mapping[str, str], path: Path, interface: Interface | None, direction: str
) -> tuple[Link, ...]:
    """Return the links in the order of the model's tensors, as Triton visits them."""
    tensors: Mapping[str, DeclaredTensor] = getattr(interface, direction) if interface else {}

    def sort_key(tensor_name: str) -> tuple[int, str]:
        return int(tensors[tensor_name].path[-1]) if tensor_name in tensors else len(
            tensors
        ), tensor_name

    names = sorted(entries, key=sort_key)
    specs = (
        {n: interface.tensor_spec(tensors[n]) for n in names if n in tensors} if interface else {}
    )
    return tuple(Link(step, name, entries[name], (*path, name), specs.get(name)) for name in names)


def _interface(model: Model, repository: Repository) -> Interface:
    inputs, outputs = (
        _tensors_by_name(declared.inputs(model)),
        _tensors_by_name(declared.outputs(model)),
    )
    config_is_fixed = model.backend == "ensemble" or _keeps_config(model.code)
    config_is_fixed = config_is_fixed or (
        model.backend is not None and not repository.target.completes
    )
    fills_whole_lists = model.backend in _COMPLETE_ALL_OR_NOTHING | _COMPLETE_NOTHING
    batch = model.config.message.max_batch_size
    return Interface(
        name=model.name,
        inputs=inputs,
        outputs=outputs,
        inputs_are_complete=config_is_fixed or (fills_whole_lists and bool(inputs)),
        outputs_are_complete=config_is_fixed or (fills_whole_lists and bool(outputs)),
        max_batch_size=batch
        if batch or config_is_fixed or model.backend in _KEEP_BATCH_SIZE
        else None,
        decoupled=_decoupled(model, repository),
    )


def _interface_without_config(model: Model) -> Interface | None:
    """Return an empty interface for a model.py without config.pbtxt that completes nothing."""
    version = model.versions[-1] if model.versions else 0
    if model.file is not None or set(model.version_files(version)) & set(BACKEND_BY_FILE) != {
        _PYTHON
    }:
        return None
    path = f"{version}/{_PYTHON}"
    code = read_python(model.path / path, f"{model.display_path}/{path}", MAX_CODE_BYTES)
    return Interface(model.name, {}, {}, True, True, 0, False) if _keeps_config(code) else None


def _keeps_config(code: PythonSource | None) -> bool:
    """Whether a model.py leaves its configuration unchanged."""
    model_class = code.model_class if code else None
    if code is None or model_class is None:
        return False
    return not model_class.bases and not any(
        getattr(node, "name", "") == "auto_complete_config" for node in code.nodes
    )


def _decoupled(model: Model, repository: Repository) -> bool | None:
    """Return whether a model is decoupled; an ensemble is if and only if one of its steps is."""
    if model.backend != "ensemble" or not model.is_readable:
        return _declares_decoupled(model)
    ensembles = memoized(repository, "decoupled", lambda: _decoupled_ensembles(repository))
    return ensembles.get(model.name)


def _decoupled_ensembles(repository: Repository) -> dict[str, bool | None]:
    decoupled: dict[str, bool | None] = {}
    for name in innermost_first(repository):
        steps = (repository.models.get(inner) for inner in step_models(repository.models[name]))
        values = {_step_decoupled(step, decoupled) for step in steps}
        decoupled[name] = True if True in values else None if None in values else False
    return decoupled


def _step_decoupled(step: Model | None, ensembles: Mapping[str, bool | None]) -> bool | None:
    if step is None or not step.is_readable:
        return None
    return ensembles[step.name] if step.backend == "ensemble" else _declares_decoupled(step)


def _declares_decoupled(model: Model) -> bool | None:
    if not model.is_readable:
        return None
    decoupled = bool(model.config.message.model_transaction_policy.decoupled)
    fixed = model.backend in _COMPLETE_ALL_OR_NOTHING or _keeps_config(model.code)
    return decoupled if decoupled or fixed else None
