# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the options of this builder. Standard library only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.builder_toml import require_limits_of_one, require_precision
from buildlib.problems import BuildError, did_you_mean
from buildlib.request import check_keys
from buildlib.request_types import BuilderRequest
from taskproof.figures import check_bounds

_FOLDER = Path(__file__).parent
HARDWARE_COMPATIBILITY = ("none", "ampere_plus", "same_compute_capability")
CALIBRATORS = ("minmax", "entropy")

# Options of a task that the stage `export` takes and checks.
_EXPORT_KEYS = (
    *("pooling", "normalize", "opset_version"),
    *("calibration_method", "per_channel", "external_data"),
)
# Options of a given graph only: the export of a task decides its graph's types.
_GRAPH_KEYS = ("strongly_typed", "calibrator")

_MAX_OPTIMIZATION_LEVEL = 5
_DEFAULT_WORKSPACE_MIB = 4096


@dataclass(frozen=True)
class TensorrtOptions:
    """Options of this builder. Where they exist, names are TensorRT's."""

    # Shapes by input: {"input_ids": {"min": [1, 1], "opt": [8, 64], "max": [32, 512]}}, with the
    # batch dimension; one set or a list of sets.
    profiles: list[dict[str, Any]] = field(default_factory=list)
    # The graph decides the types; the precision only names them.
    strongly_typed: bool = False
    builder_optimization_level: int = 3
    workspace_mib: int = _DEFAULT_WORKSPACE_MIB
    tf32: bool = True
    # int8 without Q/DQ: the method that derives ranges from engine.calibration.data.
    calibrator: str = "minmax"
    # Slower plans for other GPUs, or for later TensorRT of the same major version.
    hardware_compatibility: str = "none"
    version_compatible: bool = False
    # A timing cache of an earlier build, in the checkpoint's folder; the new one is in timing/.
    timing_cache: str | None = None
    # Tasks: bounds of the proof by measure.
    bounds: dict[str, float] = field(default_factory=dict)


def read_options(request: BuilderRequest) -> TensorrtOptions:
    """Read the request's options.

    Raises:
        BuildError: this builder does not support the request.
    """
    require_precision(request, _FOLDER)
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a plan of this builder has no KV cache",
            remedy="Remove kv_cache_dtype, or use the tensorrt_llm builder for text generation.",
        )
    require_limits_of_one(request.limits, _FOLDER)
    raw = dict(request.options)
    check_keys(raw, _allowed_keys(request.task), "engine.options")
    raw = {key: value for key, value in raw.items() if key not in _EXPORT_KEYS}
    if isinstance(raw.get("profiles"), dict):
        raw["profiles"] = [raw["profiles"]]
    for key, value in raw.items():
        _check_value(key, value)
    check_bounds(raw.get("bounds", {}))
    if request.task is not None:
        # The bounds of fp32 are finer than TF32.
        raw = {"strongly_typed": True, "tf32": False} | raw
    return TensorrtOptions(**raw)


def _allowed_keys(task: str | None) -> tuple[str, ...]:
    option_names = tuple(TensorrtOptions.__dataclass_fields__)
    if task is None:
        return tuple(key for key in option_names if key != "bounds")
    return (*(key for key in option_names if key not in _GRAPH_KEYS), *_EXPORT_KEYS)


def _check_value(key: str, value: Any) -> None:
    choices = {"hardware_compatibility": HARDWARE_COMPATIBILITY, "calibrator": CALIBRATORS}
    if key in choices:
        if value not in choices[key]:
            raise BuildError(
                f"engine.options.{key} is {value!r}{did_you_mean(str(value), choices[key])}",
                remedy=f"Use one of: {', '.join(choices[key])}.",
            )
        return
    if key in ("strongly_typed", "tf32", "version_compatible"):
        _require(isinstance(value, bool), key, value, "true or false")
    elif key == "builder_optimization_level":
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        is_valid = is_integer and 0 <= value <= _MAX_OPTIMIZATION_LEVEL
        _require(is_valid, key, value, f"a whole number from 0 to {_MAX_OPTIMIZATION_LEVEL}")
    elif key == "workspace_mib":
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        _require(is_integer and value > 0, key, value, "a whole number of MiB, above 0")
    elif key == "timing_cache":
        is_file_name = value is None or (isinstance(value, str) and "/" not in value)
        _require(is_file_name, key, value, "the name of a file in the checkpoint's folder")
    elif key == "bounds":
        expectation = "a number by measure, for example {cosine: 0.9}"
        _require(isinstance(value, dict), key, value, expectation)
    else:
        are_objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        expectation = (
            "shapes by input, or a list of them: {x: {min: [1, 8], opt: [8, 8], max: [32, 8]}}"
        )
        _require(are_objects, key, value, expectation)


def _require(condition: bool, key: str, value: Any, expectation: str) -> None:
    if not condition:
        raise BuildError(f"engine.options.{key} is {value!r}", remedy=f"Use {expectation}.")
