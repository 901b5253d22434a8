# SPDX-License-Identifier: Apache-2.0
"""What a request may ask of this builder. Standard library only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.limits import require_single
from buildlib.problems import BuildError, nearest
from buildlib.request import Request, known_keys, known_precision
from taskproof.figures import check_bounds

PRECISIONS = ("fp32", "fp16", "int8", "fp8")
HARDWARE_COMPATIBILITY = ("none", "ampere_plus", "same_compute_capability")
CALIBRATORS = ("minmax", "entropy")

# Of a task: what the stage `export` takes, and checks.
_OF_EXPORT = (
    *("pooling", "normalize", "opset_version"),
    *("calibration_method", "per_channel", "external_data"),
)
# Of a graph of one's own alone: the export of a task gives its graph the types that it has.
_OF_GRAPHS = ("strongly_typed", "calibrator")

_HIGHEST_LEVEL = 5
_DEFAULT_WORKSPACE_MIB = 4096


@dataclass(frozen=True)
class Options:
    """Options of this builder, by TensorRT's own names where it has one."""

    # Shapes by input: {"input_ids": {"min": [1, 1], "opt": [8, 64], "max": [32, 512]}}, with the
    # batch dimension; one set or a list of sets.
    profiles: list[dict[str, Any]] = field(default_factory=list)
    # Types are those of the graph; the precision then only says which they are.
    strongly_typed: bool = False
    builder_optimization_level: int = 3
    workspace_mib: int = _DEFAULT_WORKSPACE_MIB
    tf32: bool = True
    # int8 without Q/DQ: how ranges follow from engine.calibration.data.
    calibrator: str = "minmax"
    # Plans for other GPUs, or for later TensorRT of the same major version: slower.
    hardware_compatibility: str = "none"
    version_compatible: bool = False
    # A timing cache of an earlier build, in the checkpoint's folder; the new one is in timing/.
    timing_cache: str | None = None
    # Of tasks: other bounds of the proof, by measure.
    bounds: dict[str, float] = field(default_factory=dict)


def read_options(request: Request) -> Options:
    """Return the request's options.

    Raises:
        BuildError: the request asks for what this builder cannot.
    """
    known_precision(request, "tensorrt", PRECISIONS)
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a plan of this builder has no KV cache",
            remedy="Remove kv_cache_dtype, or use the tensorrt_llm builder for text generation.",
        )
    require_single(request.limits, Path(__file__).parent)
    raw = dict(request.options)
    known_keys(raw, _known(request.task), "engine.options")
    raw = {key: value for key, value in raw.items() if key not in _OF_EXPORT}
    if isinstance(raw.get("profiles"), dict):
        raw["profiles"] = [raw["profiles"]]
    for key, value in raw.items():
        _check(key, value)
    check_bounds(raw.get("bounds", {}))
    if request.task is not None:
        # The bounds of fp32 are finer than TF32.
        raw = {"strongly_typed": True, "tf32": False} | raw
    return Options(**raw)


def _known(task: str | None) -> tuple[str, ...]:
    own = tuple(Options.__dataclass_fields__)
    if task is None:
        return tuple(key for key in own if key != "bounds")
    return (*(key for key in own if key not in _OF_GRAPHS), *_OF_EXPORT)


def _check(key: str, value: Any) -> None:
    choices = {"hardware_compatibility": HARDWARE_COMPATIBILITY, "calibrator": CALIBRATORS}
    if key in choices:
        if value not in choices[key]:
            raise BuildError(
                f"engine.options.{key} is {value!r}{nearest(str(value), choices[key])}",
                remedy=f"Use one of: {', '.join(choices[key])}.",
            )
        return
    if key in ("strongly_typed", "tf32", "version_compatible"):
        _require(isinstance(value, bool), key, value, "true or false")
    elif key == "builder_optimization_level":
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = whole and 0 <= value <= _HIGHEST_LEVEL
        _require(fits, key, value, f"a whole number from 0 to {_HIGHEST_LEVEL}")
    elif key == "workspace_mib":
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and value > 0, key, value, "a whole number of MiB, above 0")
    elif key == "timing_cache":
        text = value is None or (isinstance(value, str) and "/" not in value)
        _require(text, key, value, "the name of a file in the checkpoint's folder")
    elif key == "bounds":
        words = "a number by measure, for example {cosine: 0.9}"
        _require(isinstance(value, dict), key, value, words)
    else:
        objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        words = "shapes by input, or a list of them: {x: {min: [1, 8], opt: [8, 8], max: [32, 8]}}"
        _require(objects, key, value, words)


def _require(condition: bool, key: str, value: Any, words: str) -> None:
    if not condition:
        raise BuildError(f"engine.options.{key} is {value!r}", remedy=f"Use {words}.")
