# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new ensemble`: a working graph of a project's step in front of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tritonctl.checks.analysis.declared import dims_match
from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import UsageError, choices
from tritonctl.project.schema import MODEL_NAME_PATTERN, Project
from tritonctl.project.tasks import task_names
from tritonctl.repository.backends import BackendTensor, PythonBackend, backend_named
from tritonctl.repository.ensembles import (
    ENGINE_STEP,
    TOKENIZER,
    ensemble_for,
    max_batch_size_of,
    task_of,
)
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
class EnsembleOptions:
    """The options of `tritonctl new ensemble`."""

    name: str  # of the ensemble
    model: str
    step: str  # in front of the model


def refuse_name(project: Project, name: str) -> None:
    """Raise UsageError for a name that Triton does not support or that is already in use."""
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
            f"tritonctl ships ensembles/{name}.yaml, which this would replace",
            remedy="choose another name",
        )


class EnsembleFiles(NamedTuple):
    """The texts of a new ensemble's files."""

    ensemble: str  # of ensembles/NAME.yaml
    test: str


def new_ensemble(project: Project, options: EnsembleOptions) -> EnsembleFiles:
    """Return the texts of a new ensemble and of its test.

    Raises UsageError if the model reads none of the step's outputs, RepositoryError if the model's
    tensors depend on an engine that is not built.
    """
    inputs, outputs, max_batch_size = _tensors(project, options.model)
    step = backend_named(options.step, project.root)
    step_input, step_output, model_input = _connection(options, step, inputs)
    step_inputs = {
        tensor.name: _public_name(tensor, step_input, model_input) for tensor in step.inputs
    }
    public_inputs = [
        tensor.model_copy(update={"name": step_inputs[tensor.name]}) for tensor in step.inputs
    ]
    passed_inputs = [
        tensor for tensor in inputs if tensor.name not in {model_input, *step_inputs.values()}
    ]
    private = f"_{step_output}"
    step_name = options.step.removeprefix(f"{options.name}_")
    model_step = _model_step_name(options.model, step_name)
    lines = [
        '# Maps read "tensor of the step: tensor of the ensemble"; `_names` exist only inside.',
        "schema: tritonctl/ensemble/v1",
        f"task: {options.name}",
        f"summary: {options.step}, then {options.model}",
        f"max_batch_size: {min(max_batch_size, step.max_batch_size)}",
        "",
        "inputs:",
        *(_tensor_line(tensor) for tensor in (*public_inputs, *passed_inputs)),
        "",
        *_sampling_lines(project, options.model, model_step),
        "outputs:",
        *(_tensor_line(tensor) for tensor in outputs),
        "",
        "steps:",
        f"  {step_name}:",
        f"    backend: {options.step}",
        *_map_lines("inputs", step_inputs),
        *_map_lines("outputs", {step_output: private}),
        f"  {model_step}:",
        f"    model: {options.model}",
        *_map_lines(
            "inputs",
            {model_input: private} | {tensor.name: tensor.name for tensor in passed_inputs},
        ),
        *_map_lines("outputs", {tensor.name: tensor.name for tensor in outputs}),
    ]
    return EnsembleFiles("\n".join(lines) + "\n", _TEST.replace("NAME", options.name))


def _sampling_lines(project: Project, model: str, step: str) -> list[str]:
    ensemble, _ = ensemble_for(task_of(project, model), project.root)
    if ensemble.sampling is None:
        return []
    return [f"# temperature, top_k, ...: inputs as well, for this step.\nsampling: {step}", ""]


def _model_step_name(model: str, step: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", model)
    return f"{plain}_model" if plain in (step, ENGINE_STEP) else plain


def _tensors(
    project: Project, name: str
) -> tuple[Sequence[BackendTensor], Sequence[BackendTensor], int]:
    """Return a model's public inputs and outputs for an ensemble, and its max_batch_size."""
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    max_batch_size = project.models[name].engine.max_batch_size if name in project.models else 1
    if ensemble.kind == "model":
        artefacts = {name: built_engine(project, name)} if name in project.models else {}
        model = public_model(project, name, artefacts)
        return model.inputs, model.outputs, max_batch_size
    # Inputs of the tokenizer alone, such as a conversation, are alternatives to the text.
    step_inputs = (set(step.inputs.values()) for step in ensemble.steps.values())
    tokenizer_inputs = {
        edge
        for step in ensemble.steps.values()
        if step.backend == TOKENIZER
        for edge in step.inputs.values()
    }
    other_inputs: set[str] = set().union(
        *(edges for edges in step_inputs if edges != tokenizer_inputs)
    )
    inputs = [
        BackendTensor(**tensor.model_dump(exclude={"only_if_read"}))
        for tensor in ensemble.inputs
        if not tensor.only_if_read
        and (tensor.name == "text_input" or tensor.name not in tokenizer_inputs - other_inputs)
    ]
    return inputs, ensemble.outputs, max_batch_size_of(ensemble, max_batch_size)


def _connection(
    options: EnsembleOptions, step: PythonBackend, inputs: Sequence[BackendTensor]
) -> tuple[str, str, str]:
    """Return the step's public input, its output, and the model's input that the output feeds."""
    for output in step.outputs:
        fits = [tensor for tensor in inputs if _is_compatible(output, tensor)]
        fits.sort(key=lambda tensor: (tensor.name != "text_input", tensor.optional))
        if fits:
            model_input = fits[0]
            replaced_inputs = [
                tensor.name for tensor in step.inputs if _is_compatible(tensor, model_input)
            ]
            return (replaced_inputs or [step.inputs[0].name])[0], output.name, model_input.name
    raise UsageError(
        f"the step {options.step} writes {_describe_tensors(step.outputs)}, and {options.model} "
        "reads "
        f"{_describe_tensors(inputs)}: none fits",
        remedy=f"change python_backends/{options.step}/backend.toml, or name another with --step",
    )


def _is_compatible(writer: BackendTensor, reader: BackendTensor) -> bool:
    return writer.data_type == reader.data_type and dims_match(
        tuple(writer.dims), tuple(reader.dims)
    )


def _public_name(tensor: BackendTensor, step_input: str, model_input: str) -> str:
    return model_input if tensor.name == step_input else tensor.name


def _describe_tensors(tensors: Sequence[BackendTensor]) -> str:
    return ", ".join(f"{t.name} {t.data_type} {t.dims}" for t in tensors[:4]) or "nothing"


def _tensor_line(tensor: BackendTensor) -> str:
    optional = ", optional: true" if tensor.optional else ""
    return (
        f"  - {{name: {tensor.name}, data_type: {tensor.data_type}, dims: {tensor.dims}{optional}}}"
    )


def _map_lines(side: str, tensors: dict[str, str]) -> list[str]:
    pairs = [f"{step_tensor}: {edge}" for step_tensor, edge in tensors.items()]
    line = f"    {side}: {{{', '.join(pairs)}}}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"    {side}:", *(f"      {pair}" for pair in pairs)]


def example_command(project: Project, name: str) -> str:
    """Return an example command for an ensemble, with the smallest valid input."""
    ensemble, _ = ensemble_for(name, project.root)
    if any(tensor.name == "text_output" for tensor in ensemble.outputs):
        return f'tritonctl generate {name} "a prompt"'
    input_options = []
    for tensor in (tensor for tensor in ensemble.inputs if not tensor.optional):
        value: object = "a text" if tensor.data_type == "TYPE_STRING" else 1
        for dim in (*reversed(tensor.dims), *([1] if ensemble.max_batch_size else [])):
            value = [value] * max(1, dim)
        input_options.append(f"--input '{tensor.name}={json.dumps(value)}'")
    return " ".join(["tritonctl infer", name, *input_options])


def chosen_model(project: Project, requested: str | None) -> str:
    """Return the requested model, or the project's only one. Raises UsageError."""
    if requested is None and len(project.public) == 1:
        return project.public[0]
    if requested not in project.public:
        problem = f"the project has no model `{requested}`" if requested else "which model?"
        raise UsageError(
            problem, remedy="--model: " + choices(requested or "", project.public, "one of")
        )
    return str(requested)
