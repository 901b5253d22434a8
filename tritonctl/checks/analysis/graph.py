# SPDX-License-Identifier: Apache-2.0
"""An ensemble as a graph: its steps, its tensors, and what each side says of each of them.

Read off the configurations alone; nothing is judged here. What a backend may complete when it loads
a model counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.declared import Tensor
from tritonctl.checks.analysis.nesting import inside_out, models_in
from tritonctl.checks.config.backends import TELLING_FILES
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonSource, read_python
from tritonctl.checks.repository import LARGEST_CODE, Model, Repository

Path = tuple[str | int, ...]
STEPS: Path = ("ensemble_scheduling", "step")
# These fill in whole lists of tensors or nothing; what others do is not known.
_COMPLETE_ALL_OR_NOTHING = {
    "onnxruntime",
    "tensorrt",
    "openvino",
    "pytorch",
    "tensorflow",
    "tensorrtllm",
    "fil",
}
# These have the tensors that are declared, and no others.
_COMPLETE_NOTHING = {
    *("identity", "repeat", "square", "stateful", "hps", "hugectr", "paddle"),
    *("armnn_tflite", "fastertransformer", "torch_aoti"),
}
_PYTHON = "model.py"
_KEEP_THEIR_BATCH = {"ensemble", "pytorch", "tensorrtllm"}


class Side(NamedTuple):
    """What a model says of a tensor. None: not known.

    dims: without the batch dimension, which is there where `batches`.
    """

    model: str
    dtype: str | None
    dims: tuple[int, ...] | None
    batches: bool | None
    optional: bool = False

    @property
    def full_dims(self) -> tuple[int, ...] | None:
        """With the batch dimension."""
        if self.dims is None or self.batches is None:
            return None
        return (-1, *self.dims) if self.batches else self.dims

    @property
    def shape(self) -> str | None:
        """For people, with the batch dimension: `[batch, 4]`."""
        if self.dims is None:
            return None
        batch = {True: ["batch"], False: [], None: ["batch?"]}[self.batches]
        return f"[{', '.join([*batch, *map(str, self.dims)])}]"


class Interface(NamedTuple):
    """What is known of a model that a step runs, once it is loaded.

    whole_inputs, whole_outputs: whether it has no others than these. None: not known.
    """

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    whole_inputs: bool
    whole_outputs: bool
    max_batch_size: int | None
    decoupled: bool | None

    def side(self, tensor: Tensor) -> Side:
        """What it says of one of its tensors."""
        batches = None if self.max_batch_size is None else self.max_batch_size > 0
        return _side(self.name, tensor, batches)


class Link(NamedTuple):
    """An entry of a step's input_map or output_map: `name` is the model's, `tensor` the ensemble's.

    side: None where the model is not known, or has no such tensor as far as is known.
    """

    step: int
    name: str
    tensor: str
    path: Path
    side: Side | None


@dataclass(frozen=True)
class Step:
    """A step. interface: None where its model is not in the repository, or cannot be read."""

    index: int
    name: str
    version: int
    path: Path
    interface: Interface | None
    inputs: tuple[Link, ...]
    outputs: tuple[Link, ...]

    @property
    def unfed(self) -> list[str]:
        """The model's required inputs that are not mapped."""
        mapped = {link.name for link in self.inputs}
        known = self.interface.inputs.values() if self.interface else ()
        return [one.name for one in known if one.name not in mapped and not one.optional]


class Waiting:
    """Which steps can run once others have: each is looked at once for each of its inputs."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.left = {step.index: step for step in steps}
        self.ready: set[str] = set()
        self._lacking: dict[int, int] = {}
        self._readers: dict[str, list[int]] = {}
        for step in self.left.values():
            read = {link.tensor for link in step.inputs}
            self._lacking[step.index] = len(read)
            for tensor in read:
                self._readers.setdefault(tensor, []).append(step.index)

    def start(self, tensors: Iterable[str]) -> list[Step]:
        """The steps that run with these tensors, or without any."""
        return self._taken([at for at, lacking in self._lacking.items() if not lacking], tensors)

    def done(self, steps: Iterable[Step]) -> list[Step]:
        """Those that run once these have written their outputs."""
        return self._taken([], (link.tensor for step in steps for link in step.outputs))

    def drop(self, step: Step) -> None:
        """It is not waited for any more."""
        self.left.pop(step.index, None)

    def _taken(self, runs: list[int], tensors: Iterable[str]) -> list[Step]:
        for tensor in set(tensors) - self.ready:
            self.ready.add(tensor)
            for index in self._readers.get(tensor, ()):
                self._lacking[index] -= 1
                runs += [index] if not self._lacking[index] else []
        return [self.left.pop(index) for index in sorted(runs) if index in self.left]


@dataclass(frozen=True)
class Graph:
    """An ensemble. `inputs` and `outputs` are its own, as it declares them."""

    name: str
    steps: tuple[Step, ...]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    max_batch_size: int

    @cached_property
    def writers(self) -> dict[str, list[Link]]:
        """The entries of output maps, by tensor."""
        return _by_tensor(link for step in self.steps for link in step.outputs)

    @cached_property
    def readers(self) -> dict[str, list[Link]]:
        """The entries of input maps, by tensor."""
        return _by_tensor(link for step in self.steps for link in step.inputs)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors, in the order in which they are mentioned."""
        mapped = (link.tensor for step in self.steps for link in (*step.inputs, *step.outputs))
        return tuple(dict.fromkeys((*self.inputs, *mapped, *self.outputs)))

    @cached_property
    def layers(self) -> tuple[tuple[Step, ...], ...]:
        """The steps that run, those of a layer at once; those that never can are in none."""
        waiting = Waiting(self.steps)
        layer, layers = waiting.start(self.inputs), []
        while layer:
            layers.append(tuple(layer))
            layer = waiting.done(layer)
        return tuple(layers)

    def given(self, name: str) -> Side | None:
        """What the ensemble declares of its own input or output, as its steps see it."""
        tensor = self.inputs.get(name) or self.outputs.get(name)
        if tensor is None:
            return None
        side = _side(self.name, tensor, self.max_batch_size > 0)
        dims = side.dims if tensor.reshape is None else tensor.reshape
        return Side(side.model, side.dtype, dims, side.batches, side.optional)

    @cached_property
    def sides(self) -> dict[str, list[tuple[Link | None, Side]]]:
        """What is said of each tensor, in the order in which Triton compares it.

        A link is None for what the ensemble itself declares.
        """
        sides: dict[str, list[tuple[Link | None, Side]]] = {}
        for name in (*self.inputs, *self.outputs):
            if name not in sides and (own := self.given(name)) is not None:
                sides[name] = [(None, own)]
        for step in self.steps:
            for link in (*step.inputs, *step.outputs):
                if link.side is not None:
                    sides.setdefault(link.tensor, []).append((link, link.side))
        return sides


def graph_of(model: Model, repository: Repository) -> Graph | None:
    """The ensemble's graph; None for other models, and without steps that can be read.

    A model that names another backend beside its steps is reported as that alone.
    """
    message = model.config.message
    other = message.platform or message.backend if message.platform != "ensemble" else ""
    if other or not models_in(model) or not model.is_readable:
        return None
    return memoized(model, "graph", lambda: _graph(model, repository))


def interface_of(model: Model, repository: Repository) -> Interface | None:
    """What is known of a model; None where its configuration cannot be read."""
    return memoized(
        model,
        "interface",
        lambda: _interface(model, repository) if model.is_readable else _bare(model),
    )


def _by_tensor(links: Iterable[Link]) -> dict[str, list[Link]]:
    links_of: dict[str, list[Link]] = {}
    for link in links:
        links_of.setdefault(link.tensor, []).append(link)
    return links_of


def _by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    tensors_of: dict[str, Tensor] = {}
    for tensor in tensors:
        tensors_of.setdefault(tensor.name, tensor)
    return tensors_of


def _side(model: str, tensor: Tensor, batches: bool | None) -> Side:
    dtype = None if tensor.dtype == "TYPE_INVALID" else tensor.dtype
    return Side(model, dtype, tensor.dims, batches, tensor.optional)


def _graph(model: Model, repository: Repository) -> Graph:
    message = model.config.message
    steps = enumerate(message.ensemble_scheduling.step)
    return Graph(
        name=model.name,
        steps=tuple(_step(index, step, repository) for index, step in steps),
        inputs=_by_name(declared.inputs(model)),
        outputs=_by_name(declared.outputs(model)),
        max_batch_size=message.max_batch_size,
    )


def _step(index: int, step: Any, repository: Repository) -> Step:
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
) -> Step:
    """A step by its maps, from its model's names of tensors to the ensemble's."""
    path = (*STEPS, index)
    inputs = _links(index, input_map, (*path, "input_map"), interface, "inputs")
    outputs = _links(index, output_map, (*path, "output_map"), interface, "outputs")
    return Step(index, name, version, path, interface, inputs, outputs)


def _links(
    step: int, entries: Mapping[str, str], path: Path, interface: Interface | None, which: str
) -> tuple[Link, ...]:
    """In the order of the model's own tensors, as Triton goes through them."""
    known: Mapping[str, Tensor] = getattr(interface, which) if interface else {}

    def place(name: str) -> tuple[int, str]:
        return int(known[name].path[-1]) if name in known else len(known), name

    names = sorted(entries, key=place)
    sides = {n: interface.side(known[n]) for n in names if n in known} if interface else {}
    return tuple(Link(step, name, entries[name], (*path, name), sides.get(name)) for name in names)


def _interface(model: Model, repository: Repository) -> Interface:
    inputs, outputs = _by_name(declared.inputs(model)), _by_name(declared.outputs(model))
    fixed = model.backend == "ensemble" or _is_plain(model.code)
    fixed = fixed or (model.backend is not None and not repository.target.completes)
    lists = model.backend in _COMPLETE_ALL_OR_NOTHING | _COMPLETE_NOTHING
    batch = model.config.message.max_batch_size
    return Interface(
        name=model.name,
        inputs=inputs,
        outputs=outputs,
        whole_inputs=fixed or (lists and bool(inputs)),
        whole_outputs=fixed or (lists and bool(outputs)),
        max_batch_size=batch if batch or fixed or model.backend in _KEEP_THEIR_BATCH else None,
        decoupled=_decoupled(model, repository),
    )


def _bare(model: Model) -> Interface | None:
    """A model.py without config.pbtxt has no tensors, unless it completes that itself."""
    version = model.versions[-1] if model.versions else 0
    if model.file is not None or set(model.files_of(version)) & set(TELLING_FILES) != {_PYTHON}:
        return None
    path = f"{version}/{_PYTHON}"
    code = read_python(model.path / path, f"{model.shown}/{path}", LARGEST_CODE)
    return Interface(model.name, {}, {}, True, True, 0, False) if _is_plain(code) else None


def _is_plain(code: PythonSource | None) -> bool:
    """Whether a model.py leaves its configuration as it is."""
    model_class = code.model_class if code else None
    if code is None or model_class is None:
        return False
    return not model_class.bases and not any(
        getattr(node, "name", "") == "auto_complete_config" for node in code.nodes
    )


def _decoupled(model: Model, repository: Repository) -> bool | None:
    """An ensemble is decoupled when a step of it is, whatever it says itself."""
    if model.backend != "ensemble" or not model.is_readable:
        return _says_decoupled(model)
    ensembles = memoized(repository, "decoupled", lambda: _decoupled_ensembles(repository))
    return ensembles.get(model.name)


def _decoupled_ensembles(repository: Repository) -> dict[str, bool | None]:
    decoupled: dict[str, bool | None] = {}
    for name in inside_out(repository):
        steps = (repository.models.get(inner) for inner in models_in(repository.models[name]))
        answers = {_answer(step, decoupled) for step in steps}
        decoupled[name] = True if True in answers else None if None in answers else False
    return decoupled


def _answer(step: Model | None, ensembles: Mapping[str, bool | None]) -> bool | None:
    if step is None or not step.is_readable:
        return None
    return ensembles[step.name] if step.backend == "ensemble" else _says_decoupled(step)


def _says_decoupled(model: Model) -> bool | None:
    if not model.is_readable:
        return None
    decoupled = bool(model.config.message.model_transaction_policy.decoupled)
    fixed = model.backend in _COMPLETE_ALL_OR_NOTHING or _is_plain(model.code)
    return decoupled if decoupled or fixed else None
