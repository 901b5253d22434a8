# SPDX-License-Identifier: Apache-2.0
"""TC19x: instances, warm-up and parameters that Triton refuses as they are configured.

Whether the devices are there is TC6xx.
Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/python_backend/blob/main/README.md
https://github.com/triton-inference-server/tensorrt_backend/blob/main/README.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import Tensor, inputs
from tritonctl.checks.config.backends import SHELL
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.examples.models import CONFIG, python_model
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import Rule

_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
_WITHOUT_GPUS = ("KIND_CPU", "KIND_MODEL")


def instance_kind(model: Model, _: Repository) -> Iterator[Hit]:
    """Instances of a kind that there is not, or with GPUs that their kind does not take."""
    for config, index, group in _groups(model):
        kind = _kind(group)
        if kind.isdecimal():
            yield Hit(
                f"the instances are of kind {kind}, which there is not",
                f"write one of {', '.join(type(group).Kind.keys())}",
                config.span("instance_group", index, "kind"),
            )
        elif kind in _WITHOUT_GPUS and group.gpus:
            yield Hit(
                f"the instances are of {kind}, and gpus {list(group.gpus)} are listed",
                "write kind: KIND_GPU, or leave `gpus` out",
                config.span("instance_group", index, "gpus", 0),
            )


def instance_name(model: Model, _: Repository) -> Iterator[Hit]:
    """A name that the shell which starts a Python instance takes apart."""
    for config, index, group in _groups(model):
        broken = SHELL.search(group.name) if model.backend == "python" else None
        if broken:
            yield Hit(
                f"the instances are called {group.name!r}, and {broken[0]!r} means something to "
                "the shell that starts them",
                "use letters, digits, - and _",
                config.span("instance_group", index, "name"),
            )


def profile(model: Model, _: Repository) -> Iterator[Hit]:
    """Optimisation profiles of a model that has none, or that are no numbers."""
    for config, index, group in _groups(model):
        for number, name in enumerate(group.profile if model.backend else ()):
            span = config.span("instance_group", index, "profile", number)
            if model.backend != "tensorrt":
                yield Hit(
                    f"profile {name} is for TensorRT, and the backend is {model.backend}",
                    "remove it",
                    span,
                )
            elif not name.isdecimal():
                yield Hit(
                    f"profile {name!r} is no number",
                    'number the profiles from 0 in quotes: profile: [ "0" ]',
                    span,
                )


def _groups(model: Model) -> Iterator[tuple[ConfigMessage, int, Any]]:
    """The groups of a model that may have some."""
    if model.config is not None and model.backend != "ensemble":
        for index, group in enumerate(model.config.message.instance_group):
            yield model.config, index, group


def _kind(group: Any) -> str:
    kinds = type(group).Kind
    return str(kinds.Name(group.kind)) if group.kind in kinds.values() else str(group.kind)


def warm_up_tensor(model: Model, _: Repository) -> Iterator[Hit]:
    """A sample with a tensor that cannot be made."""
    for config, index, sample in _samples(model):
        for name, one in sample.inputs.items():
            path = ("model_warmup", index, "inputs", name)
            called = f"the sample {sample.name or index + 1} has {name}"
            if -1 in one.dims:
                yield Hit(
                    f"{called} with dims {list(one.dims)}, and a sample has a size",
                    "write a number for each dimension",
                    config.span(*path, "dims", list(one.dims).index(-1)),
                )
            elif one.WhichOneof("input_data_type") is None:
                yield Hit(
                    f"{called} without a content",
                    "write zero_data: true or random_data: true, or name an input_data_file",
                    config.span(*path),
                )


def warm_up_unlike(model: Model, _: Repository) -> Iterator[Hit]:
    """A sample that the model's inputs do not take."""
    known = {tensor.name: tensor for tensor in inputs(model)}
    for config, index, sample in _samples(model) if known else ():
        path = ("model_warmup", index)
        called = f"the sample {sample.name or index + 1}"
        largest = max(config.message.max_batch_size, 1)
        if sample.batch_size > largest:
            yield Hit(
                f"{called} is a batch of {sample.batch_size}, and max_batch_size is "
                f"{config.message.max_batch_size}",
                f"write a batch_size from 1 to {largest}",
                config.span(*path, "batch_size"),
            )
        for name, one in sample.inputs.items():
            if name in known:
                yield from _unlike(config, (*path, "inputs", name), called, one, known[name])
        lacking = [
            n for n, tensor in known.items() if n not in sample.inputs and not tensor.optional
        ]
        if lacking:
            yield Hit(
                f"{called} lacks the input {', '.join(lacking)}",
                "give it every input that is not optional",
                config.span(*path),
            )


def _unlike(
    config: ConfigMessage, path: Path, called: str, one: Any, tensor: Tensor
) -> Iterator[Hit]:
    types = one.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    type_ = types[one.data_type].name if one.data_type in types else str(one.data_type)
    if type_ != tensor.dtype:
        yield Hit(
            f"{called} has {tensor.name} as {type_}, and it is declared as {tensor.dtype}",
            f"write data_type: {tensor.dtype}",
            config.span(*path, "data_type"),
        )
    elif tensor.dims is not None and -1 not in one.dims and not _fits(list(one.dims), tensor.dims):
        yield Hit(
            f"{called} has {tensor.name} with dims {list(one.dims)}, and it is declared with "
            f"{list(tensor.dims)}",
            "write dims that fit, without the batch dimension",
            config.span(*path, "dims"),
        )


def _fits(dims: list[int], declared: tuple[int, ...]) -> bool:
    return len(dims) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(dims, declared, strict=True)
    )


def skipped_warm_up(model: Model, _: Repository) -> Iterator[Hit]:
    """A sample that is never run."""
    message = model.config.message if model.config and model.backend != "ensemble" else None
    for index, sample in enumerate(message.model_warmup if message else ()):
        if model.config and not sample.batch_size:
            yield Hit(
                f"the sample {sample.name or index + 1} has no batch_size, and is not run",
                "write batch_size: 1",
                model.config.span("model_warmup", index),
            )


def _samples(model: Model) -> Iterator[tuple[ConfigMessage, int, Any]]:
    """The samples that Triton runs; without a batch_size it skips them."""
    if model.config is not None and model.backend != "ensemble":
        for index, sample in enumerate(model.config.message.model_warmup):
            if sample.batch_size:
                yield model.config, index, sample


def force_cpu(model: Model, _: Repository) -> Iterator[Hit]:
    """A parameter of the Python backend that is neither yes nor no."""
    config = model.config
    if config is None or model.backend != "python" or _FORCE_CPU not in config.message.parameters:
        return
    value = config.message.parameters[_FORCE_CPU].string_value
    if value not in ("yes", "no"):
        yield Hit(
            f"{_FORCE_CPU} is {value!r}",
            'write string_value: "yes" or "no"',
            config.span("parameters", _FORCE_CPU, "string_value"),
        )


def strategy_of_sequences(model: Model, _: Repository) -> Iterator[Hit]:
    """A batching strategy of one's own beside the sequence batcher."""
    config = model.config
    if config is None or _STRATEGY not in config.message.parameters:
        return
    if config.message.HasField("sequence_batching"):
        yield Hit(
            f"{_STRATEGY} is given, and so is sequence_batching",
            f"remove {_STRATEGY}: the sequence batcher takes no strategy",
            config.name_span("parameters", _STRATEGY),
        )


def _with(text: str) -> dict[str, Any]:
    return python_model(f"{CONFIG}{text}\n")


_GOOD = python_model()
_GROUP = "instance_group [ {{ {} }} ]"
_SAMPLE = """\
model_warmup [ {{
  name: "first"
  {}
  inputs {{ key: "INPUT" value {{ data_type: {} dims: [ {} ] {} }} }}
}} ]"""
_SAMPLED = _with(_SAMPLE.format("batch_size: 1", "TYPE_FP32", 4, "zero_data: true"))
_PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}'

RULES = (
    Rule(
        id="TC190",
        name="instance-kind",
        severity="error",
        summary="a list of GPUs for instances of KIND_CPU or KIND_MODEL, or a kind that is none",
        why="Triton refuses the model.",
        check=instance_kind,
        bad=_with(_GROUP.format("kind: KIND_CPU gpus: [ 0 ]")),
        good=_with(_GROUP.format("kind: KIND_CPU")),
    ),
    Rule(
        id="TC191",
        name="profile",
        severity="error",
        summary="an optimisation profile of a model that is not TensorRT's, or that is no number",
        why="Triton refuses the model.",
        check=profile,
        bad=_with(_GROUP.format('kind: KIND_CPU profile: [ "0" ]')),
        good=_with(_GROUP.format("kind: KIND_CPU")),
    ),
    Rule(
        id="TC192",
        name="warm-up-tensor",
        severity="error",
        summary="a tensor for warm-up without a size or a content",
        why="Triton refuses the model: a sample is one request, with every dimension known.",
        check=warm_up_tensor,
        bad=_with(_SAMPLE.format("batch_size: 1", "TYPE_FP32", 4, "")),
        good=_SAMPLED,
    ),
    Rule(
        id="TC193",
        name="warm-up-unlike",
        severity="error",
        summary="a sample for warm-up that the model's inputs do not take",
        why="Triton refuses the model: a sample is checked as a request is.",
        check=warm_up_unlike,
        bad=_with(_SAMPLE.format("batch_size: 1", "TYPE_INT32", 4, "zero_data: true")),
        good=_SAMPLED,
    ),
    Rule(
        id="TC194",
        name="skipped-warm-up",
        severity="warning",
        summary="a sample for warm-up without a batch_size",
        why="Triton skips it without a word: the first requests are as slow as without.",
        check=skipped_warm_up,
        bad=_with(_SAMPLE.format("count: 3", "TYPE_FP32", 4, "zero_data: true")),
        good=_SAMPLED,
    ),
    Rule(
        id="TC195",
        name="force-cpu",
        severity="error",
        summary=f"a {_FORCE_CPU} that is neither yes nor no",
        why="The Python backend refuses the model.",
        check=force_cpu,
        bad=_with(_PARAMETER.format(_FORCE_CPU, "true")),
        good=_with(_PARAMETER.format(_FORCE_CPU, "no")),
    ),
    Rule(
        id="TC196",
        name="strategy-of-sequences",
        severity="error",
        summary="a batching strategy of one's own on a stateful model",
        why="Triton refuses the model.",
        check=strategy_of_sequences,
        bad=_with(
            f"sequence_batching {{ }}\n{_PARAMETER.format(_STRATEGY, '/opt/strategy/batch.so')}"
        ),
        good=_with("sequence_batching { }"),
    ),
    Rule(
        id="TC197",
        name="instance-name",
        severity="error",
        summary="a name of Python instances with a character that a shell interprets",
        why="Up to 2025 the Python backend starts each instance through a shell, with its name in "
        "the command: the instance does not start, or something else does.",
        check=instance_name,
        bad=_with(_GROUP.format('name: "first one" kind: KIND_CPU')),
        good=_with(_GROUP.format('name: "first-one" kind: KIND_CPU')),
        answers=("python_backend#404",),
    ),
)
