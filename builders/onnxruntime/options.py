# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the options of this builder. Standard library only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.builder_toml import read_description, require_limits_of_one, require_precision
from buildlib.problems import BuildError, did_you_mean
from buildlib.request import check_keys
from buildlib.request_types import BuilderRequest
from taskcompile.sentence_modules import MODES
from taskproof.figures import check_bounds

_FOLDER = Path(__file__).parent
# The stage of the builder tensorrt that runs here, and the options that affect it.
EXPORT = "export"
_EXPORT_KEYS = (
    *("pooling", "normalize", "opset_version", "bounds"),
    *("calibration_method", "per_channel", "external_data"),
)

_CHOICES = {
    "calibration": ("dynamic", "static"),
    "calibration_method": ("minmax", "entropy", "percentile"),
    "pooling": ("none", *MODES),
    "graph_optimization_level": ("disabled", "basic", "extended"),
}
_PRECISION_KEYS = {
    "int8": ("calibration", "calibration_method", "per_channel", "reduce_range"),
    "fp16": ("keep_io_types",),
}


@dataclass(frozen=True)
class OnnxRuntimeOptions:
    """Options of this builder. Where they exist, names are ONNX Runtime's and torch.onnx's."""

    # int8: ranges of activations while serving, or measured now on engine.calibration.data.
    calibration: str = "dynamic"
    calibration_method: str = "minmax"
    # One scale per output channel of a weight, not per tensor.
    per_channel: bool = True
    # 7 bits for weights. With 8 bits, CPUs without VNNI overflow and answer differently.
    reduce_range: bool = True
    # fp16: inputs and outputs keep their types.
    keep_io_types: bool = True
    # Hugging Face encoders: one vector per text instead of one per token, with `normalize` of
    # length 1. For the task embedding only without modules.json.
    pooling: str = "none"
    normalize: bool = False
    # Texts of different lengths share a padded run if that is exact and measured to be faster.
    padding: bool = True
    opset_version: int = 20
    graph_optimization_level: str = "extended"
    # Weights in a separate file. None: only above protobuf's 2 GiB.
    external_data: bool | None = None
    # The largest difference to the source's outputs. None: the one of precisions.py.
    max_abs_error: float | None = None
    # Tasks: bounds of the proof by measure.
    bounds: dict[str, float] = field(default_factory=dict)
    # Sizes of variable dimensions by name, for random feeds without texts or samples.
    dimensions: dict[str, int] = field(default_factory=dict)

    @property
    def is_for_tensorrt(self) -> bool:
        """Whether TensorRT compiles the graph, instead of ONNX Runtime serving it."""
        return isinstance(self, ExportOptions)


class ExportOptions(OnnxRuntimeOptions):
    """Options of a graph for TensorRT: standard operators, and static calibration for int8."""


def read_options(request: BuilderRequest) -> OnnxRuntimeOptions:
    """Read the request's options.

    Raises:
        BuildError: this builder does not support the request.
    """
    if request.stage == EXPORT:
        return _read_export_options(request)
    require_precision(request, _FOLDER)
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a graph of this builder has no KV cache",
            remedy="Remove kv_cache_dtype.",
        )
    require_limits_of_one(request.limits, _FOLDER)
    raw = request.options
    check_keys(raw, tuple(OnnxRuntimeOptions.__dataclass_fields__), "engine.options")
    for key, value in raw.items():
        _check_value(key, value)
    _check_precision_keys(raw, request.precision)
    options = OnnxRuntimeOptions(**raw)
    _check_calibration(options, request)
    if request.task is None:  # a task's checkpoint decides on its vectors
        _check_pooling(options)
    _check_task(raw, request.task)
    check_bounds(options.bounds)
    return options


def _read_export_options(request: BuilderRequest) -> OnnxRuntimeOptions:
    """Read the options of the export stage. The compile stage checks the other keys."""
    precisions = read_description(_FOLDER)["precisions"]
    if request.precision not in precisions:
        raise BuildError(
            f"the task {request.task} has no precision {request.precision}: the export cannot make "
            "its scales",
            remedy=f"Set engine.precision to one of: {', '.join(precisions)}.",
        )
    raw = {key: value for key, value in request.options.items() if key in _EXPORT_KEYS}
    for key, value in raw.items():
        _check_value(key, value)
    _check_precision_keys(raw, request.precision)
    calibrated = request.precision == "int8"
    if calibrated and request.calibration is None and request.evaluation is None:
        raise BuildError(
            "precision int8 of a plan needs ranges, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file of texts or a folder of images, or use "
            "fp16.",
        )
    options = ExportOptions(
        **raw,
        calibration="static" if calibrated else "dynamic",
        reduce_range=False,
        padding=False,
        graph_optimization_level="basic",
    )
    check_bounds(options.bounds)
    return options


def _check_value(key: str, value: Any) -> None:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise BuildError(
                f"engine.options.{key} is {value!r}{did_you_mean(str(value), _CHOICES[key])}",
                remedy=f"Use one of: {', '.join(_CHOICES[key])}.",
            )
        return
    expected = {
        "opset_version": (int, "a whole number, 18 or higher"),
        "max_abs_error": (int | float | None, "a number above 0, in the units of the outputs"),
        "bounds": (dict, "a number by measure, for example {cosine: 0.9}"),
        "dimensions": (dict, "a size by the dimension's name, for example {height: 224}"),
    }.get(key, (bool | None if key == "external_data" else bool, "true or false"))
    kind, expectation = expected
    is_flag = isinstance(value, bool)
    if not isinstance(value, kind) or (is_flag and expectation != "true or false"):
        raise BuildError(f"engine.options.{key} is {value!r}", remedy=f"Use {expectation}.")


def _check_precision_keys(raw: dict[str, Any], precision: str) -> None:
    for owner, keys in _PRECISION_KEYS.items():
        unsupported = [key for key in keys if key in raw]
        if unsupported and precision != owner:
            names = ", ".join(unsupported)
            raise BuildError(
                f"engine.options sets {names}, which only {owner} has; the precision is "
                f"{precision}",
                remedy=f"Remove {names} from engine.options, or set engine.precision to {owner}.",
            )


def _check_calibration(options: OnnxRuntimeOptions, request: BuilderRequest) -> None:
    has_data = request.calibration is not None or request.evaluation is not None
    if options.calibration == "static" and not has_data:
        raise BuildError(
            "engine.options.calibration is static, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file with texts or a folder with .npz "
            "samples, or use `calibration: dynamic`.",
        )


def _check_task(raw: dict[str, Any], task: str | None) -> None:
    unsupported_keys = (
        ("bounds",) if task is None else ("max_abs_error", "dimensions", "keep_io_types")
    )
    unsupported = [key for key in unsupported_keys if key in raw]
    if unsupported:
        names, alternative = ", ".join(unsupported), "max_abs_error" if task is None else "bounds"
        raise BuildError(
            f"engine.options sets {names}, which the task {task or 'tensors'} does not have",
            remedy=f"Remove {names} from engine.options; {alternative} limits the difference to "
            "the source there.",
        )


def _check_pooling(options: OnnxRuntimeOptions) -> None:
    if options.normalize and options.pooling == "none":
        raise BuildError(
            "engine.options.normalize is true, which needs one vector per text, as pooling makes",
            remedy="Set engine.options.pooling to mean or cls, or remove normalize.",
        )
