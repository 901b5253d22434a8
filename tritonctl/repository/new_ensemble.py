# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new ensemble`: a graph that works, with a step of the project's before a model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.checks.analysis.declared import dims_match
from tritonctl.engines.build.engine import built_engine
from tritonctl.errors import UsageError, choices
from tritonctl.project.schema import MODEL_NAME_PATTERN, Project
from tritonctl.project.tasks import task_names
from tritonctl.repository.backends import BackendTensor, PythonBackend, backend_named
from tritonctl.repository.ensembles import ENGINE_STEP, TOKENIZER, ensemble_for, most_items, task_of
from tritonctl.repository.interfaces import public_model

_WIDTH = 100
_TEST = '''\
"""The graph of ensembles/NAME.yaml, without Triton: `pytest tests`."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
GRAPH = yaml.safe_load((ROOT / "ensembles" / "NAME.yaml").read_text(encoding="utf-8"))


def test_every_tensor_is_written_before_it_is_read():
    """By an input of the ensemble, or by a step above."""
    written = {tensor["name"] for tensor in GRAPH["inputs"]}
    for name, step in GRAPH["steps"].items():
        assert set(step["inputs"].values()) <= written, name
        written |= set(step["outputs"].values())
    assert {tensor["name"] for tensor in GRAPH["outputs"]} <= written


def test_steps_of_ours_have_these_tensors():
    """As their backend.toml declares them."""
    for name, step in GRAPH["steps"].items():
        file = ROOT / "python_backends" / str(step.get("backend")) / "backend.toml"
        if file.is_file():
            declared = tomllib.loads(file.read_text(encoding="utf-8"))
            for side in ("inputs", "outputs"):
                assert set(step[side]) <= {tensor["name"] for tensor in declared[side]}, name
'''


@dataclass(frozen=True)
class Wishes:
    """The ensemble's name, the model it serves, and the step in front of that."""

    name: str
    model: str
    step: str


def refuse_name(project: Project, name: str) -> None:
    """Raise UsageError for a name that Triton cannot take or that the project has."""
    if not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise UsageError(
            f"`{name}` cannot be a Triton model's name",
            remedy="use letters, digits, `_`, `.` and `-`, beginning with a letter or digit",
        )
    if name in project.public:
        raise UsageError(f"the project has a model `{name}` already", remedy="choose another name")
    for place in (
        project.root / "ensembles" / f"{name}.yaml",
        project.root / "tests" / f"test_{name}_graph.py",
    ):
        if place.exists():
            raise UsageError(f"{place} already exists", remedy="edit it, or choose another name")
    if name in task_names():
        raise UsageError(
            f"tritonctl itself has ensembles/{name}.yaml, which this would replace",
            remedy="choose another name",
        )


def new_ensemble(project: Project, wishes: Wishes) -> tuple[str, str]:
    """The text of ensembles/NAME.yaml, and of its test.

    Raises UsageError where the step writes nothing that the model reads, RepositoryError where the
    model's tensors are its engine's and that is not built.
    """
    inputs, outputs, most = _tensors(project, wishes.model)
    step = backend_named(wishes.step, project.root)
    read, written, fed = _joint(wishes, step, inputs)
    given = {tensor.name: _public(tensor, read, fed) for tensor in step.inputs}
    before = [tensor.model_copy(update={"name": given[tensor.name]}) for tensor in step.inputs]
    passed = [tensor for tensor in inputs if tensor.name not in {fed, *given.values()}]
    private = f"_{written}"
    own = wishes.step.removeprefix(f"{wishes.name}_")
    lines = [
        '# Maps read "tensor of the step: tensor of the ensemble"; `_names` exist only inside.',
        "schema: tritonctl/ensemble/v1",
        f"task: {wishes.name}",
        f"summary: {wishes.step}, then {wishes.model}",
        f"max_batch_size: {min(most, step.max_batch_size)}",
        "",
        "inputs:",
        *(_declared(tensor) for tensor in (*before, *passed)),
        "",
        "outputs:",
        *(_declared(tensor) for tensor in outputs),
        "",
        "steps:",
        f"  {own}:",
        f"    backend: {wishes.step}",
        *_map("inputs", given),
        *_map("outputs", {written: private}),
        f"  {_step_name(wishes.model, own)}:",
        f"    model: {wishes.model}",
        *_map("inputs", {fed: private} | {tensor.name: tensor.name for tensor in passed}),
        *_map("outputs", {tensor.name: tensor.name for tensor in outputs}),
    ]
    return "\n".join(lines) + "\n", _TEST.replace("NAME", wishes.name)


def _step_name(model: str, other: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", model)
    return f"{plain}_model" if plain in (other, ENGINE_STEP) else plain


def _tensors(
    project: Project, name: str
) -> tuple[Sequence[BackendTensor], Sequence[BackendTensor], int]:
    """The public tensors of a model that an ensemble in front of it offers, and its batch size."""
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    most = project.models[name].engine.max_batch_size if name in project.models else 1
    if ensemble.kind == "model":
        artefacts = {name: built_engine(project, name)} if name in project.models else {}
        served = public_model(project, name, artefacts)
        return served.inputs, served.outputs, most
    # What only the tokenizer reads, such as a conversation, stands in place of the text.
    others = (set(step.inputs.values()) for step in ensemble.steps.values())
    tokenizer = {
        edge
        for step in ensemble.steps.values()
        if step.backend == TOKENIZER
        for edge in step.inputs.values()
    }
    elsewhere: set[str] = set().union(*(edges for edges in others if edges != tokenizer))
    inputs = [
        BackendTensor(**tensor.model_dump(exclude={"only_if_read"}))
        for tensor in ensemble.inputs
        if not tensor.only_if_read
        and (tensor.name == "text_input" or tensor.name not in tokenizer - elsewhere)
    ]
    return inputs, ensemble.outputs, most_items(ensemble, most)


def _joint(
    wishes: Wishes, step: PythonBackend, inputs: Sequence[BackendTensor]
) -> tuple[str, str, str]:
    """The step's input that takes the model's place, its output, and the model's input."""
    for output in step.outputs:
        fits = [tensor for tensor in inputs if _fit(output, tensor)]
        fits.sort(key=lambda tensor: (tensor.name != "text_input", tensor.optional))
        if fits:
            fed = fits[0]
            alike = [tensor.name for tensor in step.inputs if _fit(tensor, fed)]
            return (alike or [step.inputs[0].name])[0], output.name, fed.name
    raise UsageError(
        f"the step {wishes.step} writes {_listed(step.outputs)}, and {wishes.model} reads "
        f"{_listed(inputs)}: none fits",
        remedy=f"change python_backends/{wishes.step}/backend.toml, or name another with --step",
    )


def _fit(one: BackendTensor, other: BackendTensor) -> bool:
    return one.data_type == other.data_type and dims_match(tuple(one.dims), tuple(other.dims))


def _public(tensor: BackendTensor, read: str, fed: str) -> str:
    return fed if tensor.name == read else tensor.name


def _listed(tensors: Sequence[BackendTensor]) -> str:
    return ", ".join(f"{t.name} {t.data_type} {t.dims}" for t in tensors[:4]) or "nothing"


def _declared(tensor: BackendTensor) -> str:
    optional = ", optional: true" if tensor.optional else ""
    return (
        f"  - {{name: {tensor.name}, data_type: {tensor.data_type}, dims: {tensor.dims}{optional}}}"
    )


def _map(side: str, tensors: dict[str, str]) -> list[str]:
    pairs = [f"{own}: {edge}" for own, edge in tensors.items()]
    line = f"    {side}: {{{', '.join(pairs)}}}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"    {side}:", *(f"      {pair}" for pair in pairs)]


def question(project: Project, name: str) -> str:
    """The command that asks an ensemble of the project, with the smallest input that it allows."""
    ensemble, _ = ensemble_for(name, project.root)
    if any(tensor.name == "text_output" for tensor in ensemble.outputs):
        return f'tritonctl generate {name} "a prompt"'
    given = []
    for tensor in (tensor for tensor in ensemble.inputs if not tensor.optional):
        value: object = "a text" if tensor.data_type == "TYPE_STRING" else 1
        for dim in (*reversed(tensor.dims), *([1] if ensemble.max_batch_size else [])):
            value = [value] * max(1, dim)
        given.append(f"--input '{tensor.name}={json.dumps(value)}'")
    return " ".join(["tritonctl infer", name, *given])


def chosen_model(project: Project, named: str | None) -> str:
    """The model that is meant: the one named, or the project's only one. Raises UsageError."""
    if named is None and len(project.public) == 1:
        return project.public[0]
    if named not in project.public:
        problem = f"the project has no model `{named}`" if named else "which model?"
        raise UsageError(
            problem, remedy="--model: " + choices(named or "", project.public, "one of")
        )
    return str(named)
