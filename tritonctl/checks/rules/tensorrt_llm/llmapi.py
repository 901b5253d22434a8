# SPDX-License-Identifier: Apache-2.0
"""TC75x: NVIDIA's llmapi model, whose settings stand in config.pbtxt and in model.yaml.

Sources: triton_backend/all_models/llmapi in https://github.com/NVIDIA/TensorRT-LLM;
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llmapi.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tritonctl.checks.analysis.trtllm_model import ARGUMENTS as FILE
from tritonctl.checks.analysis.trtllm_model import Deployment
from tritonctl.checks.config.yaml_file import YamlFile, entries, span_of
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error, warning
from tritonctl.errors import suggest
from tritonctl.project.compatibility import trtllm_arguments

_CLOSE = 0.92
_TYPING_ERROR = 0.8
_PER_MACHINE = 8  # GPUs; more are on several machines
_TRITON = "triton_config"
# What is taken, and what people write instead; releases to come may take other words.
_WORDS = {
    "backend": (
        ("pytorch", "tensorrt", "trt", "_autodeploy", "autodeploy"),
        ("torch", "trtllm", "tensorrtllm", "tensorrt_llm", "cpp", "engine"),
    ),
    "guided_decoding_backend": (("xgrammar", "llguidance"), ("outlines", "guidance")),
}


@error(
    "TC750 arguments-unreadable",
    summary="a model.yaml that is not a YAML mapping",
    why="model.py raises when the model loads.",
)
def unreadable(deployment: Deployment, model: Model) -> Iterator[Hit]:
    arguments = deployment.arguments if deployment.kind == "llmapi" else None
    if arguments and arguments.broken:
        yield Hit(
            f"model.yaml cannot be read: {arguments.broken}",
            "correct it there; its keys are the arguments of tensorrt_llm.LLM",
            arguments.span,
            arguments.source if arguments.span else None,
            place=f"{model.served_version}/{FILE}",
        )


@error(
    "TC751 no-triton-config",
    summary="a model.yaml without what model.py reads for Triton",
    why="model.py raises a KeyError when the model loads.",
)
def _for_triton(deployment: Deployment, arguments: YamlFile) -> Iterator[Hit]:
    code = deployment.model.code
    if code is None or _TRITON not in code.source.text:
        return
    text = code.source.text
    names = ("decoupled", "max_batch_size")
    needed = (name for name in names if f'["{name}"]' in text or f"['{name}']" in text)
    missing = [name for name in needed if arguments.node(_TRITON, name) is None]
    if missing:
        yield Hit(
            f"{_TRITON} has no {' and no '.join(missing)}, which model.py reads",
            f"write {_TRITON} with `decoupled: True` for streams, and `max_batch_size: 0`",
            *arguments.at(_TRITON),
        )


@warning(
    "TC752 decoupled-in-one-place",
    summary="an llmapi model that streams by model.yaml or by config.pbtxt, not by both",
    why="model.py looks at model.yaml, and Triton at config.pbtxt unless it completes "
    "configurations, which NVIDIA's launcher switches off: streams are refused, or hang.",
)
def _decoupled(deployment: Deployment, arguments: YamlFile) -> Iterator[Hit]:
    inside = arguments.flag(_TRITON, "decoupled")
    message = deployment.config.message
    outside = message.HasField("model_transaction_policy")
    decoupled = outside and message.model_transaction_policy.decoupled
    if inside is None or decoupled == inside or not (decoupled or inside):
        return
    streams = "says decoupled: false" if outside else "does not say it"
    yield Hit(
        f"model.yaml says decoupled: {str(inside).lower()}, and config.pbtxt "
        + ("says decoupled: true" if decoupled else streams),
        "write both: `decoupled: True` in model.yaml, and `model_transaction_policy { decoupled: "
        "true }` in config.pbtxt",
        *arguments.at(_TRITON, "decoupled"),
    )


@warning(
    "TC753 llmapi-batches",
    summary="an llmapi model with a batch dimension",
    why="The model reads the first prompt of a request and leaves the others unanswered.",
)
def _batches(arguments: YamlFile) -> Iterator[Hit]:
    size = arguments.number(_TRITON, "max_batch_size")
    if size:
        yield Hit(
            f"{_TRITON}.max_batch_size is {size}, and this model answers one prompt per request",
            "set it to 0; TensorRT-LLM batches the requests",
            *arguments.at(_TRITON, "max_batch_size"),
        )


@error(
    "TC754 instances-without-gpus",
    summary="several instances of an llmapi model without GPUs for each",
    why="model.py says `gpu_device_ids parameter required when instance count > 1` and raises.",
)
def _instances(deployment: Deployment, _arguments: YamlFile) -> Iterator[Hit]:
    code, count = deployment.model.code, deployment.instances
    key = "gpu_device_ids"
    if count < 2 or deployment.unfilled(key) or code is None or key not in code.source.text:  # noqa: PLR2004
        return
    sets = [one for one in (deployment.text(key) or "").split(";") if one.strip()]
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
    why="TensorRT-LLM starts a process per GPU, and those without one fail.",
)
def _gpus(deployment: Deployment, arguments: YamlFile) -> Iterator[Hit]:
    gpus = deployment.repository.target.gpus
    sizes = [
        arguments.number(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")
    ]
    wanted = sizes[0] * sizes[1]
    if gpus is not None and len(gpus) < wanted <= _PER_MACHINE:
        yield Hit(
            f"tensor_parallel_size × pipeline_parallel_size is {wanted}, and the target has "
            f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}",
            "serve it on a machine with enough GPUs, or make one of them smaller",
            *arguments.at("tensor_parallel_size"),
        )


@error(
    "TC756 argument-misspelt",
    summary="a misspelt argument of tensorrt_llm.LLM in model.yaml",
    why="Every key but triton_config is handed to LLM, which refuses those it does not know.",
)
def _unknown(arguments: YamlFile) -> Iterator[Hit]:
    for path, known, what in (
        ((), (*trtllm_arguments.names(), _TRITON), "tensorrt_llm.LLM"),
        (("kv_cache_config",), trtllm_arguments.kv_cache_fields(), "KvCacheConfig"),
    ):
        given = [name for name, _ in entries(arguments.node(*path))]
        for node in given:
            close = suggest(node.value, known, likeness=_CLOSE)
            if node.value in known or not close or any(one.value == close for one in given):
                continue
            yield Hit(
                f"{what} has no argument {node.value}",
                f"did you mean {close}?",
                span_of(node),
                arguments.source,
            )


@error(
    "TC758 argument-refused",
    summary="a value in model.yaml that tensorrt_llm.LLM refuses",
    why="It checks its arguments when the model loads, and the load fails.",
)
def _values(arguments: YamlFile) -> Iterator[Hit]:
    for key, (words, others) in _WORDS.items():
        given = arguments.text(key)
        if given is None or given in words:
            continue
        if given in others or suggest(given, words, likeness=_TYPING_ERROR):
            yield Hit(
                f"unknown {key}: {given}",
                f"expected one of {', '.join(words)}",
                *arguments.at(key),
            )
    path = ("kv_cache_config", "free_gpu_memory_fraction")
    share = arguments.text(*path)
    if share is not None and re.fullmatch(r"[\d.]+", share) and not _is_share(share):
        yield Hit(
            f"free_gpu_memory_fraction is {share}: it is a share, from 0 to 1",
            "write a share such as 0.9",
            *arguments.at(*path),
        )


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


@error(
    "TC757 engine-for-pytorch",
    summary="a compiled engine where the PyTorch runtime wants a checkpoint",
    why="The runtime finds no model in the folder and refuses to load.",
)
def _engine(deployment: Deployment, arguments: YamlFile) -> Iterator[Hit]:
    path, backend = arguments.text("model"), arguments.text("backend")
    if path and backend in (None, "pytorch", "_autodeploy") and deployment.engine_in(path):
        yield Hit(
            "model is a compiled engine, and the PyTorch runtime loads checkpoints",
            "name the checkpoint that it was made of",
            *arguments.at("model"),
        )
