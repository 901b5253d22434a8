# SPDX-License-Identifier: Apache-2.0
"""What a request may ask of this builder. Standard library only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.limits import require_single
from buildlib.problems import BuildError, nearest
from buildlib.request import Request, known_keys, known_precision
from taskcompile.sentence_modules import MODES
from taskproof.figures import check_bounds

PRECISIONS = ("fp32", "fp16", "int8")
# The stage of the builder tensorrt that is run here, and its options that matter to it.
EXPORT = "export"
_OF_EXPORT = (
    *("pooling", "normalize", "opset_version", "bounds"),
    *("calibration_method", "per_channel", "external_data"),
)

_CHOICES = {
    "calibration": ("dynamic", "static"),
    "calibration_method": ("minmax", "entropy", "percentile"),
    "pooling": ("none", *MODES),
    "graph_optimization_level": ("disabled", "basic", "extended"),
}
_ONLY = {
    "int8": ("calibration", "calibration_method", "per_channel", "reduce_range"),
    "fp16": ("keep_io_types",),
}


@dataclass(frozen=True)
class Options:
    """Options of this builder; names are ONNX Runtime's and torch.onnx's where they have one."""

    # int8: ranges of activations while serving, or measured now on engine.calibration.data.
    calibration: str = "dynamic"
    calibration_method: str = "minmax"
    # One scale per output channel of a weight, not per tensor.
    per_channel: bool = True
    # 7 bits for weights. Without it, CPUs without VNNI overflow and answer differently.
    reduce_range: bool = True
    # fp16: inputs and outputs stay as they were.
    keep_io_types: bool = True
    # Hugging Face encoders: one vector per text instead of one per token, of length 1 if asked.
    # Of the task embedding only where no modules.json says it.
    pooling: str = "none"
    normalize: bool = False
    # Texts of different lengths share a run, padded, where that is exact and, measured, faster.
    padding: bool = True
    opset_version: int = 20
    graph_optimization_level: str = "extended"
    # Weights beside the graph; None: only where protobuf's 2 GiB would not do.
    external_data: bool | None = None
    # The largest difference to the source's outputs; None: precisions.py has one per precision.
    max_abs_error: float | None = None
    # Of tasks: other bounds of the proof, by measure.
    bounds: dict[str, float] = field(default_factory=dict)
    # What may be fed where no texts or samples are given: sizes of variable dimensions by name.
    dimensions: dict[str, int] = field(default_factory=dict)

    @property
    def compiled(self) -> bool:
        """Whether the graph is for TensorRT to compile, not for ONNX Runtime to serve."""
        return isinstance(self, ExportOptions)


class ExportOptions(Options):
    """Of a graph for TensorRT: ONNX's own operators, what int8 needs measured beforehand."""


def read_options(request: Request) -> Options:
    """Return the request's options.

    Raises:
        BuildError: the request asks for what this builder cannot.
    """
    if request.stage == EXPORT:
        return _export_options(request)
    known_precision(request, "onnxruntime", PRECISIONS)
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a graph of this builder has no KV cache",
            remedy="Remove kv_cache_dtype.",
        )
    require_single(request.limits, Path(__file__).parent)
    raw = request.options
    known_keys(raw, tuple(Options.__dataclass_fields__), "engine.options")
    for key, value in raw.items():
        _check(key, value)
    _belongs(raw, request.precision)
    options = Options(**raw)
    _check_calibration(options, request)
    if request.task is None:  # what a task's vectors are, its checkpoint says
        _check_pooling(options)
    _check_task(raw, request.task)
    check_bounds(options.bounds)
    return options


def _export_options(request: Request) -> Options:
    """The compile stage knows the other options, and refuses what neither does."""
    if request.precision not in PRECISIONS:
        raise BuildError(
            f"the task {request.task} has no precision {request.precision}: nothing here makes its "
            "scales",
            remedy=f"Set engine.precision to one of: {', '.join(PRECISIONS)}.",
        )
    raw = {key: value for key, value in request.options.items() if key in _OF_EXPORT}
    for key, value in raw.items():
        _check(key, value)
    _belongs(raw, request.precision)
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


def _check(key: str, value: Any) -> None:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise BuildError(
                f"engine.options.{key} is {value!r}{nearest(str(value), _CHOICES[key])}",
                remedy=f"Use one of: {', '.join(_CHOICES[key])}.",
            )
        return
    expected = {
        "opset_version": (int, "a whole number, 18 or higher"),
        "max_abs_error": (int | float | None, "a number above 0, in the units of the outputs"),
        "bounds": (dict, "a number by measure, for example {cosine: 0.9}"),
        "dimensions": (dict, "a size by the dimension's name, for example {height: 224}"),
    }.get(key, (bool | None if key == "external_data" else bool, "true or false"))
    kind, words = expected
    is_flag = isinstance(value, bool)
    if not isinstance(value, kind) or (is_flag and words != "true or false"):
        raise BuildError(f"engine.options.{key} is {value!r}", remedy=f"Use {words}.")


def _belongs(raw: dict[str, Any], precision: str) -> None:
    for owner, keys in _ONLY.items():
        foreign = [key for key in keys if key in raw]
        if foreign and precision != owner:
            names = ", ".join(foreign)
            raise BuildError(
                f"engine.options sets {names}, which only {owner} has; the precision is "
                f"{precision}",
                remedy=f"Remove {names} from engine.options, or set engine.precision to {owner}.",
            )


def _check_calibration(options: Options, request: Request) -> None:
    given = request.calibration is not None or request.evaluation is not None
    if options.calibration == "static" and not given:
        raise BuildError(
            "engine.options.calibration is static, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file with texts or a folder with .npz "
            "samples, or use `calibration: dynamic`.",
        )


def _check_task(raw: dict[str, Any], task: str | None) -> None:
    of_others = ("bounds",) if task is None else ("max_abs_error", "dimensions", "keep_io_types")
    foreign = [key for key in of_others if key in raw]
    if foreign:
        names, own = ", ".join(foreign), "max_abs_error" if task is None else "bounds"
        raise BuildError(
            f"engine.options sets {names}, which the task {task or 'tensors'} does not have",
            remedy=f"Remove {names} from engine.options; how far an engine may be from its source "
            f"is {own} there.",
        )


def _check_pooling(options: Options) -> None:
    if options.normalize and options.pooling == "none":
        raise BuildError(
            "engine.options.normalize is true, which needs one vector per text, as pooling makes",
            remedy="Set engine.options.pooling to mean or cls, or remove normalize.",
        )
