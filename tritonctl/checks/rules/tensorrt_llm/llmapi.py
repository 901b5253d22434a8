# SPDX-License-Identifier: Apache-2.0
"""TC75x: NVIDIA's llmapi model, whose settings are in config.pbtxt and model.yaml.

Sources: triton_backend/all_models/llmapi in https://github.com/NVIDIA/TensorRT-LLM;
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llmapi.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.trtllm_model import ARGUMENTS as FILE
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.config.yaml_file import YamlFile, entries, node_span
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest
from tritonctl.project.compatibility import trtllm_arguments

_MIN_SIMILARITY = 0.92
_MIN_VALUE_SIMILARITY = 0.8
_MAX_GPUS_PER_MACHINE = 8  # more GPUs are on several machines
_TRITON = "triton_config"
# Accepted values, and common wrong ones; later releases may accept others.
_VALUES_BY_KEY = {
    "backend": (
        ("pytorch", "tensorrt", "trt", "_autodeploy", "autodeploy"),
        ("torch", "trtllm", "tensorrtllm", "tensorrt_llm", "cpp", "engine"),
    ),
    "guided_decoding_backend": (("xgrammar", "llguidance"), ("outlines", "guidance")),
}


@error(
    "TC750 arguments-unreadable",
    summary="a model.yaml that is not a YAML mapping",
    reason="model.py raises when the model loads.",
    shows="elsewhere",
)
def unreadable(deployment: TrtllmDeployment, model: Model) -> Iterator[Hit]:
    arguments = deployment.arguments if deployment.kind == "llmapi" else None
    if arguments and arguments.read_error:
        yield Hit(
            f"model.yaml cannot be read: {arguments.read_error}",
            "correct it there; its keys are the arguments of tensorrt_llm.LLM",
            arguments.span,
            arguments.source if arguments.span else None,
            relative_path=f"{model.served_version}/{FILE}",
        )


@error(
    "TC751 no-triton-config",
    summary="a model.yaml without the settings that model.py reads for Triton",
    reason="model.py raises a KeyError when the model loads.",
    shows="elsewhere",
)
def _triton_config(deployment: TrtllmDeployment, arguments: YamlFile) -> Iterator[Hit]:
    code = deployment.model.code
    if code is None or _TRITON not in code.source.text:
        return
    text = code.source.text
    names = ("decoupled", "max_batch_size")
    required = (name for name in names if f'["{name}"]' in text or f"['{name}']" in text)
    missing = [name for name in required if arguments.node(_TRITON, name) is None]
    if missing:
        yield Hit(
            f"{_TRITON} has no {' and no '.join(missing)}, which model.py reads",
            f"write {_TRITON} with `decoupled: True` for streams, and `max_batch_size: 0`",
            *arguments.value_location(_TRITON),
        )


@warning(
    "TC752 decoupled-in-one-place",
    summary="an llmapi model that is decoupled in only one of model.yaml and config.pbtxt",
    reason="model.py reads model.yaml. Triton reads config.pbtxt unless it completes "
    "configurations, which NVIDIA's launcher disables. Streams are refused, or hang.",
    shows="elsewhere",
)
def _decoupled(deployment: TrtllmDeployment, arguments: YamlFile) -> Iterator[Hit]:
    in_yaml = arguments.flag(_TRITON, "decoupled")
    message = deployment.config.message
    has_policy = message.HasField("model_transaction_policy")
    decoupled = has_policy and message.model_transaction_policy.decoupled
    if in_yaml is None or decoupled == in_yaml or not (decoupled or in_yaml):
        return
    streams = "says decoupled: false" if has_policy else "does not set it"
    yield Hit(
        f"model.yaml says decoupled: {str(in_yaml).lower()}, and config.pbtxt "
        + ("says decoupled: true" if decoupled else streams),
        "write both: `decoupled: True` in model.yaml, and `model_transaction_policy { decoupled: "
        "true }` in config.pbtxt",
        *arguments.value_location(_TRITON, "decoupled"),
    )


@warning(
    "TC753 llmapi-batches",
    summary="an llmapi model with a batch dimension",
    reason="The model answers only the first prompt of a request.",
    shows="elsewhere",
)
def _batches(arguments: YamlFile) -> Iterator[Hit]:
    size = arguments.number(_TRITON, "max_batch_size")
    if size:
        yield Hit(
            f"{_TRITON}.max_batch_size is {size}, and this model answers one prompt per request",
            "set it to 0; TensorRT-LLM batches the requests",
            *arguments.value_location(_TRITON, "max_batch_size"),
        )


@error(
    "TC754 instances-without-gpus",
    summary="several instances of an llmapi model without GPUs for each",
    reason="model.py says `gpu_device_ids parameter required when instance count > 1` and raises.",
    shows="elsewhere",
)
def _instances(deployment: TrtllmDeployment, _arguments: YamlFile) -> Iterator[Hit]:
    code, count = deployment.model.code, deployment.instances
    key = "gpu_device_ids"
    if count < 2 or deployment.has_placeholder(key) or code is None or key not in code.source.text:  # noqa: PLR2004
        return
    sets = [gpu_set for gpu_set in (deployment.text(key) or "").split(";") if gpu_set.strip()]
    if len(sets) < count:
        yield Hit(
            f"{count} instances need as many sets of GPUs in the parameter {key}, which has "
            f"{len(sets) or 'none'}",
            f'give one per instance, with ; between them: "{";".join(map(str, range(count)))}"',
            deployment.span(key) if sets else deployment.config.span("instance_group"),
        )


@error(
    "TC755 too-few-gpus",
    summary="an llmapi model for more GPUs than the target has",
    reason="TensorRT-LLM starts a process per GPU, and those without one fail.",
    shows="elsewhere",
)
def _gpus(deployment: TrtllmDeployment, arguments: YamlFile) -> Iterator[Hit]:
    gpus = deployment.repository.target.gpus
    sizes = [
        arguments.number(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")
    ]
    required_count = sizes[0] * sizes[1]
    if gpus is not None and len(gpus) < required_count <= _MAX_GPUS_PER_MACHINE:
        yield Hit(
            f"tensor_parallel_size × pipeline_parallel_size is {required_count}, and the target "
            "has "
            f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}",
            "serve it on a machine with enough GPUs, or make one of them smaller",
            *arguments.value_location("tensor_parallel_size"),
        )


@error(
    "TC756 argument-misspelt",
    summary="a misspelt argument of tensorrt_llm.LLM in model.yaml",
    reason="model.py passes every key except triton_config to LLM, which refuses unknown ones.",
    shows="elsewhere",
)
def _misspelt_arguments(arguments: YamlFile) -> Iterator[Hit]:
    for path, argument_names, owner in (
        ((), (*trtllm_arguments.names(), _TRITON), "tensorrt_llm.LLM"),
        (("kv_cache_config",), trtllm_arguments.kv_cache_fields(), "KvCacheConfig"),
    ):
        key_nodes = [name for name, _ in entries(arguments.node(*path))]
        for node in key_nodes:
            close = suggest(node.value, argument_names, cutoff=_MIN_SIMILARITY)
            if (
                node.value in argument_names
                or not close
                or any(key_node.value == close for key_node in key_nodes)
            ):
                continue
            yield Hit(
                f"{owner} has no argument {node.value}",
                f"did you mean {close}?",
                node_span(node),
                arguments.source,
            )


@error(
    "TC758 argument-refused",
    summary="a value in model.yaml that tensorrt_llm.LLM refuses",
    reason="LLM checks its arguments when the model loads, and the load fails.",
    shows="elsewhere",
)
def _refused_values(arguments: YamlFile) -> Iterator[Hit]:
    for key, (accepted, common_mistakes) in _VALUES_BY_KEY.items():
        value = arguments.text(key)
        if value is None or value in accepted:
            continue
        if value in common_mistakes or suggest(value, accepted, cutoff=_MIN_VALUE_SIMILARITY):
            yield Hit(
                f"unknown {key}: {value}",
                f"expected one of {', '.join(accepted)}",
                *arguments.value_location(key),
            )
    path = ("kv_cache_config", "free_gpu_memory_fraction")
    share = arguments.text(*path)
    if share is not None and re.fullmatch(r"[\d.]+", share) and not _is_share(share):
        yield Hit(
            f"free_gpu_memory_fraction is {share}: it is a share, from 0 to 1",
            "write a share such as 0.9",
            *arguments.value_location(*path),
        )


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


@error(
    "TC757 engine-for-pytorch",
    summary="a compiled engine where the PyTorch runtime expects a checkpoint",
    reason="The runtime finds no model in the folder and refuses to load.",
    shows="elsewhere",
)
def _engine(deployment: TrtllmDeployment, arguments: YamlFile) -> Iterator[Hit]:
    path, backend = arguments.text("model"), arguments.text("backend")
    if path and backend in (None, "pytorch", "_autodeploy") and deployment.engine_in(path):
        yield Hit(
            "model is a compiled engine, and the PyTorch runtime loads checkpoints",
            "name the checkpoint that the engine was built from",
            *arguments.value_location("model"),
        )
