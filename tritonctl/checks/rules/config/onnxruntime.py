# SPDX-License-Identifier: Apache-2.0
"""TC188: parameters of the ONNX Runtime backend that it cannot read.

Source: https://github.com/triton-inference-server/onnxruntime_backend/blob/main/src/onnxruntime.cc
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tritonctl.checks.analysis.placement import configured_groups, configured_kind
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import error

_BOOLEANS = ("true", "on", "1", "false", "off", "0")
# The backend reads numbers with std::stoi, which ignores what follows the digits.
_NUMBER = re.compile(r"\s*([+-]?\d+)")
# Accepted numbers; None for any.
_NUMBERS: Mapping[str, range | None] = {
    "execution_mode": range(2),
    "intra_op_thread_count": None,
    "inter_op_thread_count": None,
}
_GPU_NUMBERS: Mapping[str, range | None] = {
    "cudnn_conv_algo_search": range(3),
    "arena_extend_strategy": range(2),
}
_SWITCHES = ("enable_mem_arena", "enable_mem_pattern", "share_session_between_instances")
_MEANINGS = {
    "execution_mode": "0 for sequential, 1 for parallel",
    "cudnn_conv_algo_search": "0 for EXHAUSTIVE, 1 for HEURISTIC, 2 for DEFAULT",
    "arena_extend_strategy": "0 for kNextPowerOfTwo, 1 for kSameAsRequested",
}


@error(
    "TC188 onnxruntime-parameter",
    summary="a parameter of ONNX Runtime's backend with a value that it cannot read",
    reason="The backend refuses the model.",
    shows="elsewhere",
    needs_valid_config=True,
)
def onnxruntime_parameter(
    config: ConfigMessage, model: Model, repository: Repository
) -> Iterator[Hit]:
    if model.backend != "onnxruntime":
        return
    numbers = {**_NUMBERS, **(_GPU_NUMBERS if _may_use_gpu(model, repository) else {})}
    parameters = config.message.parameters
    for key in sorted(set(parameters) & {*numbers, *_SWITCHES}):
        value = parameters[key].string_value
        if key in _SWITCHES:
            fix = None if value.lower() in _BOOLEANS else "write true or false"
        else:
            fix = _number_fix(key, value, numbers[key])
        if fix is not None:
            yield Hit(f"{key} is {value!r}", fix, config.span("parameters", key, "string_value"))


def _number_fix(key: str, value: str, accepted: range | None) -> str | None:
    number = _NUMBER.match(value)
    if number and (accepted is None or int(number[1]) in accepted):
        return None
    return f"write {_MEANINGS.get(key, 'a number in digits')}"


def _may_use_gpu(model: Model, repository: Repository) -> bool:
    kinds = [configured_kind(group) for _, group in configured_groups(model)]
    return repository.target.gpus != () and (not kinds or any(k != "KIND_CPU" for k in kinds))
