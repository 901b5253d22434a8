# SPDX-License-Identifier: Apache-2.0
"""TC188: parameters that the model's backend cannot read.

Sources: what these backends read when they load a model, in
https://github.com/triton-inference-server/onnxruntime_backend (src/onnxruntime.cc),
https://github.com/triton-inference-server/pytorch_backend (src/model_state.cc),
https://github.com/triton-inference-server/openvino_backend (src/openvino.cc), and the README of
https://github.com/triton-inference-server/tensorflow_backend
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tritonctl.checks.analysis.placement import configured_groups, configured_kind
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error

# The backends read numbers with std::stoi, which ignores what follows the digits.
_LEADING_NUMBER = r"\s*[+-]?\d.*"


class _Values(NamedTuple):
    """The values that a backend accepts for a parameter."""

    pattern: str  # of the whole value, in any case
    meaning: str  # continues "write "


_NUMBER = _Values(_LEADING_NUMBER, "a number in digits")
_SWITCH = _Values("true|on|1|false|off|0", "true or false")
# OpenVINO's backend ignores an empty value.
_DIGITS = _Values(r"\d*", "a number in digits")


def _choice(meaning: str, count: int) -> _Values:
    """Return the values of a numbered choice, read as `_NUMBER`."""
    return _Values(rf"\s*\+?0*[0-{count - 1}](\D.*)?", meaning)


_PARAMETERS: Mapping[str, Mapping[str, _Values]] = {
    "onnxruntime": {
        "execution_mode": _choice("0 for sequential, 1 for parallel", 2),
        **dict.fromkeys(("intra_op_thread_count", "inter_op_thread_count"), _NUMBER),
        **dict.fromkeys(
            ("enable_mem_arena", "enable_mem_pattern", "share_session_between_instances"), _SWITCH
        ),
    },
    "pytorch": {
        **dict.fromkeys(("INTRA_OP_THREAD_COUNT", "INTER_OP_THREAD_COUNT"), _NUMBER),
        **dict.fromkeys(
            (
                *("DISABLE_OPTIMIZED_EXECUTION", "ENABLE_CACHE_CLEANING", "INFERENCE_MODE"),
                *("DISABLE_CUDNN", "ENABLE_TENSOR_FUSER", "ENABLE_WEIGHT_SHARING"),
                *("ENABLE_JIT_PROFILING", "ENABLE_JIT_EXECUTOR"),
            ),
            _SWITCH,
        ),
    },
    "openvino": {
        **dict.fromkeys(("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"), _DIGITS),
        "HINT_BF16": _Values("(yes)?", "YES, or remove it"),
        "NUM_STREAMS": _Values(r"(auto|numa|\d+)?", "AUTO, NUMA or a number in digits"),
        "PERFORMANCE_HINT": _Values(
            "(latency|throughput|cumulative_throughput)?",
            "LATENCY, THROUGHPUT or CUMULATIVE_THROUGHPUT",
        ),
    },
    "tensorflow": dict.fromkeys(
        ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"),
        _Values(r"\s*\+?\d.*", "a number in digits"),
    ),
}
# Only read for instances on a GPU.
_ONNX_ON_GPU = {
    "cudnn_conv_algo_search": _choice("0 for EXHAUSTIVE, 1 for HEURISTIC, 2 for DEFAULT", 3),
    "arena_extend_strategy": _choice("0 for kNextPowerOfTwo, 1 for kSameAsRequested", 2),
}


@error(
    "TC188 backend-parameter",
    summary="a parameter with a value that the model's backend cannot read",
    reason="The backend refuses the model.",
    shows="elsewhere",
    needs_valid_config=True,
)
def backend_parameter(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    known = dict(_PARAMETERS.get(model.backend or "", {}))
    if model.backend == "onnxruntime" and _may_use_gpu(model, repository):
        known |= _ONNX_ON_GPU
    parameters = config.message.parameters
    for key in sorted(set(parameters) & set(known)):
        value = parameters[key].string_value
        if not re.fullmatch(known[key].pattern, value, re.IGNORECASE | re.DOTALL):
            yield Hit(
                f"{key} is {value!r}",
                f"write {known[key].meaning}",
                config.span("parameters", key, "string_value"),
            )


def _may_use_gpu(model: Model, repository: Repository) -> bool:
    kinds = [configured_kind(group) for _, group in configured_groups(model)]
    return repository.target.gpus != () and (not kinds or any(k != "KIND_CPU" for k in kinds))
