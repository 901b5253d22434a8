# SPDX-License-Identifier: Apache-2.0
"""What models take of memory for certain: weights on disk, and shares of a GPU that they claim.

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
from tritonctl.checks.analysis.threads import parameter
from tritonctl.checks.analysis.trtllm_model import Deployment, deployment_of
from tritonctl.checks.repository import Model, Repository, Target

# In place of a GPU's number: the machine's own memory.
HOST = -1
# Whose one file is, or leads to, the weights.
_OF_ONE_FILE = ("onnxruntime", "openvino", "pytorch", "tensorrt")
# Beside a graph: the tensors that it keeps in other files.
_WEIGHTS_BESIDE = {
    "onnxruntime": (".onnx_data", ".data", ".bin", ".weight", ".weights"),
    "openvino": (".bin",),
}
# Whose instances on a device share their weights, and the parameter by which the others do.
_SHARING = ("tensorrt", "openvino")
_SHARED_IF = {
    "onnxruntime": "share_session_between_instances",
    "pytorch": "ENABLE_WEIGHT_SHARING",
}
# Of vLLM's arguments: no machine has more.
_MOST_GPUS = 64
_LARGEST_JSON = 1 << 20
_RANK = re.compile(r"rank(\d+)\.engine")
VLLM_SHARE = 0.9
TRTLLM_SHARE = 0.9
_TEMPLATES = ("cpp", "python")
FRACTION = "kv_cache_free_gpu_mem_fraction"


class Claim(NamedTuple):
    """A share of a GPU's memory that each instance of a model takes; instances by GPU."""

    share: float
    gpus: Counter[int]


def weights(model: Model, repository: Repository) -> Counter[int]:
    """Bytes of weights by the number of the GPU, or HOST; empty where that is unknown."""
    if deployment := deployment_of(model, repository):
        return _engines(deployment)
    file = _weights_file(model)
    copies = _copies(model, repository.target) if file else Counter()
    return Counter({gpu: count * file for gpu, count in copies.items()})


def _weights_file(model: Model) -> int:
    """The size of what each copy on a GPU is made of; 0 where it is unknown."""
    version = model.served_version
    if version is None or model.backend not in _OF_ONE_FILE:
        return 0
    if model.config.message.cc_model_filenames:
        return 0
    [name] = model.file_names
    files = model.files_of(version)
    main = files.get(name)
    if main is None or not stat.S_ISREG(main.st_mode):
        return 0
    endings = _WEIGHTS_BESIDE.get(model.backend, ())
    others = (status for n, status in files.items() if n != name and n.endswith(endings))
    return main.st_size + sum(status.st_size for status in others if status)


def _copies(model: Model, target: Target) -> Counter[int]:
    """How many times the weights lie on each GPU and in the machine's memory."""
    copies: Counter[int] = Counter()
    for group in groups(model, target):
        on = {"KIND_GPU": group.gpus or (), "KIND_CPU": (HOST,)}.get(group.kind, ())
        copies.update({device: on.count(device) * (group.count or 1) for device in set(on)})
    return Counter(dict.fromkeys(copies, 1)) if _shares(model) else copies


def _shares(model: Model) -> bool:
    """Whether the instances on a device have one copy together."""
    key = _SHARED_IF.get(model.backend or "")
    return model.backend in _SHARING or bool(key and parameter(model, key) in ("true", "True"))


def _engines(deployment: Deployment) -> Counter[int]:
    """TensorRT-LLM's: rank by rank on its GPU."""
    path = deployment.text("gpt_model_path") if deployment.kind in _TEMPLATES else None
    ranks = next(filter(None, map(_ranks, deployment.places(path) if path else ())), {})
    taken: Counter[int] = Counter()
    for gpus, times in _device_sets(deployment, len(ranks)):
        taken.update({gpu: times * ranks.get(rank, 0) for rank, gpu in enumerate(gpus)})
    return taken


def _ranks(folder: Path) -> dict[int, int]:
    """The sizes of an engine's files, by rank."""
    try:
        with os.scandir(folder) as entries:
            ranks = [(m, e.stat()) for e in entries if (m := _RANK.fullmatch(e.name))]
    except (OSError, ValueError):  # a path may be anything
        return {}
    return {int(match[1]): status.st_size for match, status in ranks}


def _device_sets(deployment: Deployment, ranks: int) -> list[tuple[list[int], int]]:
    """The GPUs of instances of TensorRT-LLM, and of how many; the first ones unless it says so."""
    parts = [part.split(",") for part in (deployment.text("gpu_device_ids") or "").split(";")]
    sets = [[int(one) for one in part if one.strip().isdecimal()] for part in parts]
    named = [(one, 1) for one in sets if one]
    return named or [(list(range(max(ranks, 1))), deployment.instances)]


def trtllm_shares(model: Model, repository: Repository) -> Claim | None:
    """What its KV caches take of the memory that is free."""
    deployment = deployment_of(model, repository)
    if deployment is not None and deployment.kind == "llmapi":
        return _llmapi_share(deployment)
    if deployment is None or deployment.kind not in _TEMPLATES:
        return None
    # A number of tokens bounds it as well; a placeholder may become anything.
    if deployment.text("max_tokens_in_paged_kv_cache") or deployment.unfilled(FRACTION):
        return None
    share = _fraction(deployment.text(FRACTION), TRTLLM_SHARE)
    gpus: Counter[int] = Counter()
    for one, times in _device_sets(deployment, 1):
        gpus.update(dict.fromkeys(one, times))
    return None if share is None else Claim(share, gpus)


def _llmapi_share(deployment: Deployment) -> Claim | None:
    """The same for the LLM API, whose arguments are in model.yaml."""
    arguments, cache = deployment.arguments, "kv_cache_config"
    if arguments is None or arguments.root is None or arguments.text(cache, "max_tokens"):
        return None
    if deployment.instances > 1 and not deployment.text("gpu_device_ids"):
        return None  # model.py refuses that
    share = _fraction(arguments.text(cache, "free_gpu_memory_fraction"), TRTLLM_SHARE)
    wide = min(arguments.number("tensor_parallel_size") or 1, _MOST_GPUS)
    gpus: Counter[int] = Counter()
    for one, times in _device_sets(deployment, wide):
        gpus.update(dict.fromkeys(one, times))
    return None if share is None else Claim(share, gpus)


def _fraction(text: str | None, default: float) -> float | None:
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def vllm_shares(model: Model, target: Target) -> Claim | None:
    """What instances of vLLM claim of all memory."""
    arguments = _vllm_arguments(model) if model.backend == "vllm" else None
    if arguments is None:
        return None
    share = arguments.get("gpu_memory_utilization", VLLM_SHARE)
    wide = arguments.get("tensor_parallel_size", 1)
    if not isinstance(share, int | float) or not isinstance(wide, int) or not 0 < share <= 1:
        return None
    return Claim(float(share), _vllm_gpus(model, target, min(max(wide, 1), _MOST_GPUS)))


def _vllm_gpus(model: Model, target: Target, wide: int) -> Counter[int]:
    """KIND_GPU: each instance on its own; else on the first ones that vLLM sees."""
    instances: Counter[int] = Counter()
    for group in groups(model, target):
        own = group.gpus if group.kind == "KIND_GPU" and wide == 1 else None
        instances.update(dict.fromkeys(range(wide) if own is None else own, group.count or 1))
    return instances


def _vllm_arguments(model: Model) -> dict[str, Any] | None:
    version = model.served_version
    status = model.files_of(version).get("model.json") if version is not None else None
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_JSON:
        return None
    try:
        read = json.loads((model.path / str(version) / "model.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
