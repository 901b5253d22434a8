# SPDX-License-Identifier: Apache-2.0
"""TC19x: instances, warm-up and parameters that Triton refuses as they are configured.

TC6xx checks whether the devices exist.
Sources: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md
https://github.com/triton-inference-server/python_backend/blob/main/README.md
https://github.com/triton-inference-server/tensorrt_backend/blob/main/README.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.declared import DeclaredTensor, inputs, size_fits, type_name
from tritonctl.checks.analysis.placement import configured_groups, configured_kind
from tritonctl.checks.config.backends import SHELL
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error, warning

_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
_WITHOUT_GPUS = ("KIND_CPU", "KIND_MODEL")


@error(
    "TC190 instance-kind",
    summary="a list of GPUs for instances of KIND_CPU or KIND_MODEL, or an unknown kind",
    needs_valid_config=True,
)
def instance_kind(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model):
        kind = configured_kind(group)
        if kind is None:
            yield Hit(
                f"unknown kind of instances: {group.kind}",
                f"expected one of {', '.join(type(group).Kind.keys())}",
                config.span("instance_group", index, "kind"),
            )
        elif kind in _WITHOUT_GPUS and group.gpus:
            yield Hit(
                f"the instances are of {kind}, and gpus {list(group.gpus)} are listed",
                "write kind: KIND_GPU, or leave `gpus` out",
                config.span("instance_group", index, "gpus", 0),
            )


@error(
    "TC198 negative-gpu",
    summary="a GPU with a number below 0",
    reason="Triton refuses the model: GPUs are numbered from 0, and -1 does not stand for all.",
    needs_valid_config=True,
)
def negative_gpu(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    if repository.target.gpus is not None:
        return  # TC600 to TC602 compare with the existing GPUs
    for index, group in configured_groups(model):
        negative = [gpu for gpu in group.gpus if gpu < 0]
        if negative and configured_kind(group) not in _WITHOUT_GPUS:
            yield Hit(
                f"gpus lists {negative[0]}, and GPUs are numbered from 0",
                "name one that exists; without `gpus` every GPU gets its instances",
                config.span("instance_group", index, "gpus", group.gpus[:].index(negative[0])),
            )


@error(
    "TC197 instance-name",
    summary="a name of Python instances with a character that a shell interprets",
    reason="Up to 2025 the Python backend starts each instance through a shell, with its name in "
    "the command: the instance does not start, or another command runs.",
    answers=("python_backend#404",),
    needs_valid_config=True,
)
def instance_name(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model):
        broken = SHELL.search(group.name) if model.backend == "python" else None
        if broken:
            yield Hit(
                f"the instances are called {group.name!r}, and the shell that starts them "
                f"interprets {broken[0]!r}",
                "use letters, digits, - and _",
                config.span("instance_group", index, "name"),
            )


@error(
    "TC191 profile",
    summary="an optimisation profile that is not a number, or on another backend than TensorRT",
    needs_valid_config=True,
)
def profile(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, group in configured_groups(model):
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
                    f"profile {name!r} is not a number",
                    'number the profiles from 0 in quotes: profile: [ "0" ]',
                    span,
                )


@error(
    "TC192 warm-up-tensor",
    summary="a warm-up tensor without a size or content",
    reason="Triton refuses the model: a sample is one request, with every dimension known.",
    needs_valid_config=True,
)
def warm_up_tensor(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for index, sample in _samples(config, model):
        for name, tensor in sample.inputs.items():
            path = ("model_warmup", index, "inputs", name)
            label = f"the sample {sample.name or index + 1} has {name}"
            if -1 in tensor.dims:
                yield Hit(
                    f"{label} with dims {list(tensor.dims)}, and a sample needs a size",
                    "write a number for each dimension",
                    config.span(*path, "dims", list(tensor.dims).index(-1)),
                )
            elif tensor.WhichOneof("input_data_type") is None:
                yield Hit(
                    f"{label} without a content",
                    "write zero_data: true or random_data: true, or name an input_data_file",
                    config.span(*path),
                )


@error(
    "TC193 warm-up-unlike",
    summary="a warm-up sample that does not match the model's inputs",
    reason="Triton refuses the model: it validates a sample like a request.",
    needs_valid_config=True,
)
def mismatched_warm_up(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    inputs_by_name = {tensor.name: tensor for tensor in inputs(model)}
    for index, sample in _samples(config, model) if inputs_by_name else ():
        path = ("model_warmup", index)
        label = f"the sample {sample.name or index + 1}"
        largest = max(config.message.max_batch_size, 1)
        if sample.batch_size > largest:
            yield Hit(
                f"{label} is a batch of {sample.batch_size}, and max_batch_size is "
                f"{config.message.max_batch_size}",
                f"write a batch_size from 1 to {largest}",
                config.span(*path, "batch_size"),
            )
        for name, sample_tensor in sample.inputs.items():
            if name in inputs_by_name:
                yield from _sample_mismatch(
                    config, (*path, "inputs", name), label, sample_tensor, inputs_by_name[name]
                )
        missing = [
            n
            for n, tensor in inputs_by_name.items()
            if n not in sample.inputs and not tensor.optional
        ]
        if missing:
            yield Hit(
                f"{label} has no input {', '.join(missing)}",
                "give it every input that is not optional",
                config.span(*path),
            )


def _sample_mismatch(
    config: ConfigMessage, path: Path, label: str, sample_tensor: Any, tensor: DeclaredTensor
) -> Iterator[Hit]:
    type_ = type_name(sample_tensor.data_type)
    if type_ != tensor.dtype:
        yield Hit(
            f"{label} has {tensor.name} as {type_}, and it is declared as {tensor.dtype}",
            f"write data_type: {tensor.dtype}",
            config.span(*path, "data_type"),
        )
    elif (
        tensor.dims is not None
        and -1 not in sample_tensor.dims
        and not size_fits(sample_tensor.dims, tensor.dims)
    ):
        yield Hit(
            f"{label} has {tensor.name} with dims {list(sample_tensor.dims)}, and it is declared "
            "with "
            f"{list(tensor.dims)}",
            "write dims that fit, without the batch dimension",
            config.span(*path, "dims"),
        )


@warning(
    "TC194 skipped-warm-up",
    summary="a warm-up sample without a batch_size",
    reason="Triton silently skips it: the first requests are as slow as without warm-up.",
    needs_valid_config=True,
)
def skipped_warm_up(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    message = config.message if model.backend != "ensemble" else None
    for index, sample in enumerate(message.model_warmup if message else ()):
        if not sample.batch_size:
            yield Hit(
                f"the sample {sample.name or index + 1} has no batch_size, and is not run",
                "write batch_size: 1",
                config.span("model_warmup", index),
            )


def _samples(config: ConfigMessage, model: Model) -> Iterator[tuple[int, Any]]:
    """Yield the samples that Triton runs; it skips samples without a batch_size."""
    if model.backend != "ensemble":
        for index, sample in enumerate(config.message.model_warmup):
            if sample.batch_size:
                yield index, sample


@error(
    "TC195 force-cpu",
    summary=f"a {_FORCE_CPU} that is neither yes nor no",
    reason="The Python backend refuses the model.",
    needs_valid_config=True,
)
def force_cpu(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if model.backend != "python" or _FORCE_CPU not in config.message.parameters:
        return
    value = config.message.parameters[_FORCE_CPU].string_value
    if value not in ("yes", "no"):
        yield Hit(
            f"{_FORCE_CPU} is {value!r}",
            'write string_value: "yes" or "no"',
            config.span("parameters", _FORCE_CPU, "string_value"),
        )


@error(
    "TC196 strategy-of-sequences",
    summary="a custom batching strategy on a stateful model",
    needs_valid_config=True,
)
def strategy_of_sequences(config: ConfigMessage) -> Iterator[Hit]:
    if _STRATEGY not in config.message.parameters:
        return
    if config.message.HasField("sequence_batching"):
        yield Hit(
            f"{_STRATEGY} is given, and so is sequence_batching",
            f"remove {_STRATEGY}: the sequence batcher takes no strategy",
            config.name_span("parameters", _STRATEGY),
        )
