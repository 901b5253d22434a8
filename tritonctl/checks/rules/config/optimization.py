# SPDX-License-Identifier: Apache-2.0
"""TC199: accelerators and their settings that a backend does not know.

Sources: https://github.com/triton-inference-server/onnxruntime_backend (what its LoadModel reads),
https://github.com/triton-inference-server/tensorflow_backend, and the README of
https://github.com/triton-inference-server/tensorrt_backend
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tritonctl.checks.analysis.placement import configured_groups, configured_kind, join_some
from tritonctl.checks.config.message import ConfigMessage, Path
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error
from tritonctl.errors import suggest

# The backends' C++ code ignores everything after a number's digits.
_NUMBER = re.compile(r"\s*[+-]?\d")


def _is_number(text: str) -> bool:
    return _NUMBER.match(text) is not None


def _is_switch(text: str) -> bool:
    return text.lower() in ("true", "false", "on", "off", "1", "0")


def _is_precision(text: str) -> bool:
    return text in ("FP32", "FP16", "INT8")


def _is_text(_: str) -> bool:
    return True


ValueTest = Callable[[str], bool]
# Names of the kinds of values, for messages.
_VALUE_TEXTS: Mapping[ValueTest, str] = {
    _is_number: "a whole number",
    _is_switch: "true or false",
    _is_precision: "FP32, FP16 or INT8",
}
_TENSORRT_OF_ONNX: Mapping[str, ValueTest] = {
    "precision_mode": _is_precision,
    "max_workspace_size_bytes": _is_number,
    "int8_use_native_calibration_table": _is_switch,
    **dict.fromkeys(
        (
            *("trt_max_partition_iterations", "trt_min_subgraph_size", "trt_dla_core"),
            *("trt_builder_optimization_level", "trt_auxiliary_streams"),
            "trt_ep_context_embed_mode",
        ),
        _is_number,
    ),
    **dict.fromkeys(
        (
            *("trt_dla_enable", "trt_engine_cache_enable", "trt_dump_subgraphs"),
            *("trt_force_sequential_engine_build", "trt_context_memory_sharing_enable"),
            *("trt_layer_norm_fp32_fallback", "trt_timing_cache_enable"),
            *("trt_force_timing_cache", "trt_detailed_build_log", "trt_build_heuristics_enable"),
            *("trt_sparsity_enable", "trt_cuda_graph_enable", "trt_dump_ep_context_model"),
        ),
        _is_switch,
    ),
    **dict.fromkeys(
        (
            *("int8_calibration_table_name", "trt_engine_cache_path", "trt_engine_cache_prefix"),
            *("trt_timing_cache_path", "trt_tactic_sources", "trt_extra_plugin_lib_paths"),
            *("trt_profile_min_shapes", "trt_profile_max_shapes", "trt_profile_opt_shapes"),
            "trt_ep_context_file_path",
        ),
        _is_text,
    ),
}
# ONNX Runtime reads the other settings of CUDA itself.
_CUDA_OF_ONNX: Mapping[str, ValueTest] = defaultdict[str, ValueTest](
    lambda: _is_text,
    {"do_copy_in_default_stream": _is_switch, "use_ep_level_unified_stream": _is_switch},
)
_TENSORRT_OF_TENSORFLOW: Mapping[str, ValueTest] = {
    "precision_mode": _is_precision,
    "minimum_segment_size": _is_number,
    "max_workspace_size_bytes": _is_number,
    "max_cached_engines": _is_number,
}
# Accelerators by backend and device, each with its parameters; None: any parameter.
_ACCELERATORS: Mapping[tuple[str, str], Mapping[str, Mapping[str, ValueTest] | None]] = {
    ("onnxruntime", "gpu"): {"tensorrt": _TENSORRT_OF_ONNX, "cuda": _CUDA_OF_ONNX},
    ("onnxruntime", "cpu"): {"openvino": None},
    ("tensorflow", "gpu"): {
        "tensorrt": _TENSORRT_OF_TENSORFLOW,
        "gpu_io": None,
        "auto_mixed_precision": None,
    },
    ("tensorflow", "cpu"): {},
}
# Suffix of accelerators that ONNX Runtime loads from libraries: TelumPluginExecutionProvider.
_PLUGIN = "ExecutionProvider"
_ALLOCATION = "execution_context_allocation_strategy"
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")


@error(
    "TC199 unknown-optimization",
    summary="an accelerator, or a setting of one, that the backend does not know",
    reason="The backend refuses the model: unknown Execution Accelerator, unknown parameter, or a "
    "value that it cannot read.",
    shows="elsewhere",
    needs_valid_config=True,
)
def unknown_optimization(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    yield from _wrong_strategy(config, model)
    accelerators = config.message.optimization.execution_accelerators
    kinds = {configured_kind(group) for _, group in configured_groups(model)}
    for device_kind in ("gpu", "cpu"):
        accelerator_parameters = _ACCELERATORS.get((model.backend or "", device_kind))
        # On the CPU nothing reads accelerators for GPUs; TC611 reports them.
        if accelerator_parameters is None or (device_kind == "gpu" and kinds == {"KIND_CPU"}):
            continue
        field = f"{device_kind}_execution_accelerator"
        for index, accelerator in enumerate(getattr(accelerators, field)):
            path = ("optimization", "execution_accelerators", field, index)
            if accelerator.name in accelerator_parameters:
                yield from _wrong_parameters(
                    config, model, path, accelerator, accelerator_parameters[accelerator.name]
                )
            elif not accelerator.name.endswith(_PLUGIN):
                close = suggest(accelerator.name, accelerator_parameters)
                device = "GPUs" if device_kind == "gpu" else "the CPU"
                yield Hit(
                    f"{model.backend} has no accelerator {accelerator.name} for {device}; it has "
                    f"{', '.join(accelerator_parameters) or 'none'}",
                    f"did you mean {close}?" if close else "name one of those, or remove it",
                    config.span(*path, "name"),
                )


def _wrong_parameters(
    config: ConfigMessage,
    model: Model,
    path: Path,
    accelerator: Any,
    value_tests: Mapping[str, ValueTest] | None,
) -> Iterator[Hit]:
    for key, value in accelerator.parameters.items() if value_tests is not None else ():
        if problem := _parameter_problem(value_tests or {}, key, value):
            yield Hit(
                f"{accelerator.name} for {model.backend} {problem[0]}",
                problem[1],
                config.name_span(*path, "parameters", key),
            )


def _parameter_problem(
    takes: Mapping[str, ValueTest], key: str, value: str
) -> tuple[str, str] | None:
    if key not in takes and not isinstance(takes, defaultdict):
        close = suggest(key, takes)
        fix = f"did you mean {close}?" if close else f"it takes {join_some(takes)}"
        return f"has no parameter {key}", fix
    if not takes[key](value):
        return f"cannot read {key} {value!r}", f"write {_VALUE_TEXTS[takes[key]]}"
    return None


def _wrong_strategy(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    parameters = config.message.parameters
    if model.backend != "tensorrt" or _ALLOCATION not in parameters:
        return
    value = parameters[_ALLOCATION].string_value
    if value not in _STRATEGIES:
        yield Hit(
            f"{_ALLOCATION} is {value!r}",
            f"write {' or '.join(_STRATEGIES)}",
            config.span("parameters", _ALLOCATION, "string_value"),
        )
