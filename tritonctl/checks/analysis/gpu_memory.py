# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of models' memory: weights on disk, and claimed shares of GPU memory.

Sources: https://github.com/triton-inference-server/tensorrt_backend (instances share a plan),
https://github.com/triton-inference-server/onnxruntime_backend (a session for each instance),
https://github.com/triton-inference-server/pytorch_backend#parameters (ENABLE_WEIGHT_SHARING),
https://github.com/triton-inference-server/openvino_backend (a network for each device),
https://github.com/triton-inference-server/vllm_backend (model.json are vLLM's engine arguments) and
https://nvidia.github.io/TensorRT-LLM (gpu_device_ids, kv_cache_free_gpu_mem_fraction).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tritonctl.checks.analysis.placement import groups
from tritonctl.checks.analysis.threads import parameter_text
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment, deployment_of
from tritonctl.checks.repository import CheckTarget, Model, Repository

# Stands for host memory where a GPU number is expected.
HOST = -1
# Backends with a single model file that contains the weights or refers to them.
_SINGLE_FILE_BACKENDS = ("onnxruntime", "openvino", "pytorch", "tensorrt")
# Suffixes of files next to a graph that hold its external weights.
_EXTERNAL_WEIGHT_SUFFIXES = {
    "onnxruntime": (".onnx_data", ".data", ".bin", ".weight", ".weights"),
    "openvino": (".bin",),
}
# Backends whose instances on a device share weights, and the parameters that make others share.
_SHARING_BACKENDS = ("tensorrt", "openvino")
_SHARING_PARAMETERS = {
    "onnxruntime": "share_session_between_instances",
    "pytorch": "ENABLE_WEIGHT_SHARING",
}
# Upper bound for tensor_parallel_size of vLLM: no machine has more GPUs.
_MAX_GPUS = 64
_MAX_JSON_BYTES = 1 << 20
_RANK = re.compile(r"rank(\d+)\.engine")
VLLM_SHARE = 0.9
TRTLLM_SHARE = 0.9
_TEMPLATES = ("cpp", "python")
FRACTION_KEY = "kv_cache_free_gpu_mem_fraction"


class MemoryClaim(NamedTuple):
    """The share of a GPU's memory that a model's instances claim."""

    share: float  # per instance, from 0 to 1
    gpus: Counter[int]  # number of instances by GPU number


def weight_bytes_by_gpu(model: Model, repository: Repository) -> Counter[int]:
    """Return the bytes of weights by GPU number or HOST; empty if unknown."""
    if deployment := deployment_of(model, repository):
        return _engine_bytes_by_gpu(deployment)
    file_bytes = _weights_file_bytes(model)
    copies = _weight_copies(model, repository.target) if file_bytes else Counter()
    return Counter({gpu: count * file_bytes for gpu, count in copies.items()})


def _weights_file_bytes(model: Model) -> int:
    """Return the size in bytes of one copy of the weights; 0 if unknown."""
    version = model.served_version
    if version is None or model.backend not in _SINGLE_FILE_BACKENDS:
        return 0
    if model.config.message.cc_model_filenames:
        return 0
    [name] = model.file_names
    files = model.version_files(version)
    main = files.get(name)
    if main is None or not stat.S_ISREG(main.st_mode):
        return 0
    suffixes = _EXTERNAL_WEIGHT_SUFFIXES.get(model.backend, ())
    external_files = (status for n, status in files.items() if n != name and n.endswith(suffixes))
    return main.st_size + sum(status.st_size for status in external_files if status)


def _weight_copies(model: Model, target: CheckTarget) -> Counter[int]:
    """Return the number of copies of the weights by GPU number or HOST."""
    copies: Counter[int] = Counter()
    for group in groups(model, target):
        devices = {"KIND_GPU": group.gpus or (), "KIND_CPU": (HOST,)}.get(group.kind, ())
        copies.update(
            {device: devices.count(device) * (group.count or 1) for device in set(devices)}
        )
    return Counter(dict.fromkeys(copies, 1)) if _shares_weights(model) else copies


def _shares_weights(model: Model) -> bool:
    """Whether the instances on a device share one copy of the weights."""
    key = _SHARING_PARAMETERS.get(model.backend or "")
    return model.backend in _SHARING_BACKENDS or bool(
        key and parameter_text(model, key) in ("true", "True")
    )


def _engine_bytes_by_gpu(deployment: TrtllmDeployment) -> Counter[int]:
    """Return the bytes of TensorRT-LLM engine files by GPU; each rank has its own GPU."""
    path = deployment.text("gpt_model_path") if deployment.kind in _TEMPLATES else None
    ranks = next(
        filter(None, map(_engine_bytes_by_rank, deployment.local_paths(path) if path else ())), {}
    )
    bytes_by_gpu: Counter[int] = Counter()
    for gpus, times in _device_sets(deployment, len(ranks)):
        bytes_by_gpu.update({gpu: times * ranks.get(rank, 0) for rank, gpu in enumerate(gpus)})
    return bytes_by_gpu


def _engine_bytes_by_rank(folder: Path) -> dict[int, int]:
    """Return the sizes in bytes of an engine's files by rank."""
    try:
        with os.scandir(folder) as entries:
            ranks = [(m, e.stat()) for e in entries if (m := _RANK.fullmatch(e.name))]
    except (OSError, ValueError):  # the path comes from the user
        return {}
    return {int(match[1]): status.st_size for match, status in ranks}


def _device_sets(deployment: TrtllmDeployment, ranks: int) -> list[tuple[list[int], int]]:
    """Return sets of GPUs, each with its number of TensorRT-LLM instances.

    Without `gpu_device_ids`, all instances use the first GPUs.
    """
    parts = [part.split(",") for part in (deployment.text("gpu_device_ids") or "").split(";")]
    sets = [[int(item) for item in part if item.strip().isdecimal()] for part in parts]
    explicit_sets = [(item, 1) for item in sets if item]
    return explicit_sets or [(list(range(max(ranks, 1))), deployment.instances)]


def trtllm_memory_claim(model: Model, repository: Repository) -> MemoryClaim | None:
    """Return the share of free GPU memory that a TensorRT-LLM model's KV caches claim."""
    deployment = deployment_of(model, repository)
    if deployment is not None and deployment.kind == "llmapi":
        return _llmapi_memory_claim(deployment)
    if deployment is None or deployment.kind not in _TEMPLATES:
        return None
    # A token limit also bounds the cache; a placeholder may become any value.
    if deployment.text("max_tokens_in_paged_kv_cache") or deployment.has_placeholder(FRACTION_KEY):
        return None
    share = _fraction(deployment.text(FRACTION_KEY), TRTLLM_SHARE)
    gpus: Counter[int] = Counter()
    for gpu_set, times in _device_sets(deployment, 1):
        gpus.update(dict.fromkeys(gpu_set, times))
    return None if share is None else MemoryClaim(share, gpus)


def _llmapi_memory_claim(deployment: TrtllmDeployment) -> MemoryClaim | None:
    """Return the same for the LLM API, which reads its arguments from model.yaml."""
    arguments, cache = deployment.arguments, "kv_cache_config"
    if arguments is None or arguments.root is None or arguments.text(cache, "max_tokens"):
        return None
    if deployment.instances > 1 and not deployment.text("gpu_device_ids"):
        return None  # model.py refuses this
    share = _fraction(arguments.text(cache, "free_gpu_memory_fraction"), TRTLLM_SHARE)
    gpu_count = min(arguments.number("tensor_parallel_size") or 1, _MAX_GPUS)
    gpus: Counter[int] = Counter()
    for gpu_set, times in _device_sets(deployment, gpu_count):
        gpus.update(dict.fromkeys(gpu_set, times))
    return None if share is None else MemoryClaim(share, gpus)


def _fraction(text: str | None, default: float) -> float | None:
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def vllm_memory_claim(model: Model, target: CheckTarget) -> MemoryClaim | None:
    """Return the share of total GPU memory that a vLLM model's instances claim."""
    arguments = _vllm_arguments(model) if model.backend == "vllm" else None
    if arguments is None:
        return None
    share = arguments.get("gpu_memory_utilization", VLLM_SHARE)
    gpu_count = arguments.get("tensor_parallel_size", 1)
    if not isinstance(share, int | float) or not isinstance(gpu_count, int) or not 0 < share <= 1:
        return None
    return MemoryClaim(
        float(share), _vllm_instances_by_gpu(model, target, min(max(gpu_count, 1), _MAX_GPUS))
    )


def _vllm_instances_by_gpu(model: Model, target: CheckTarget, gpu_count: int) -> Counter[int]:
    """Return the instances by GPU: its own for KIND_GPU, else the first ones visible to vLLM."""
    instances: Counter[int] = Counter()
    for group in groups(model, target):
        instance_gpus = group.gpus if group.kind == "KIND_GPU" and gpu_count == 1 else None
        instances.update(
            dict.fromkeys(
                range(gpu_count) if instance_gpus is None else instance_gpus, group.count or 1
            )
        )
    return instances


def _vllm_arguments(model: Model) -> dict[str, Any] | None:
    version = model.served_version
    status = model.version_files(version).get("model.json") if version is not None else None
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_JSON_BYTES:
        return None
    try:
        arguments = json.loads((model.path / str(version) / "model.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
