# SPDX-License-Identifier: Apache-2.0
"""Reads the options of a task, and describes how each precision runs. Standard library only.

OpenVINO's defaults depend on the CPU (bf16 if it has it), so the properties set everything. With
them an engine behaves as proven, with one exception: on a CPU without VNNI, dynamic int8 leaves
activations in fp32, which is closer to the checkpoint and not faster.
"""

from dataclasses import dataclass, field
from pathlib import Path

from buildlib.builder_toml import require_limits_of_one, require_precision
from buildlib.problems import BuildError
from buildlib.request import check_keys
from buildlib.request_types import BuilderRequest
from taskcompile.image_task import IMAGE_TASKS
from taskproof.figures import BF16, FP16, FP32, INT8, INT8_STATIC, check_bounds
from taskproof.image_files import calibration_images

DYNAMIC, STATIC = "dynamic", "static"
# For runs with measured CPU time.
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1}
# Options that the stage `export` takes and checks.
_EXPORT_KEYS = ("pooling", "normalize", "opset_version")
_FOLDER = Path(__file__).parent
_CPUINFO = Path("/proc/cpuinfo")
# The kernel's names for bf16 arithmetic of an x86-64 CPU.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


@dataclass(frozen=True)
class TaskPrecision:
    """Execution of one precision."""

    column: str  # of the bounds
    remedy: str  # for an engine that is too far from its reference
    compute_type: str = "f32"
    activation_group_size: int = 0  # activations that share a scale; 0: not quantised

    @property
    def properties(self) -> dict[str, str | int | bool]:
        """The OpenVINO properties of proof and serving."""
        return {
            "INFERENCE_PRECISION_HINT": self.compute_type,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.activation_group_size,
            # One run at a time on all cores. Waiting requests share the next run.
            "PERFORMANCE_HINT": "LATENCY",
            # Steps of other models use the cores too.
            "ENABLE_CPU_PINNING": False,
        }


FP32_PRECISION = TaskPrecision(FP32, "Report it, with build.log.")
_PRECISIONS = {
    "fp32": FP32_PRECISION,
    "fp16": TaskPrecision(FP16, "Set engine.precision to fp32."),
    "bf16": TaskPrecision(BF16, "Set engine.precision to fp32.", compute_type="bf16"),
    "int8": TaskPrecision(INT8, "Set engine.precision to bf16 or fp32.", activation_group_size=64),
}
_STATIC_INT8 = TaskPrecision(
    INT8_STATIC, "Use `calibration: dynamic`, more and better calibration data, or bf16."
)


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task in addition to those of the export."""

    # int8: activations quantised while serving, or ranges measured now on engine.calibration.data.
    calibration: str = DYNAMIC
    # Texts of different lengths share a padded run if that is exact and measured to be faster.
    padding: bool = True
    # Bounds of the proof by measure.
    bounds: dict[str, float] = field(default_factory=dict)


def read_task_options(request: BuilderRequest) -> TaskOptions:
    """Read the request's options.

    Raises:
        BuildError: this builder does not support the request.
    """
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a graph of this builder has no KV cache",
            remedy="Remove kv_cache_dtype.",
        )
    require_precision(request, _FOLDER)
    require_limits_of_one(request.limits, _FOLDER)
    option_names = tuple(TaskOptions.__dataclass_fields__)
    check_keys(request.options, (*option_names, *_EXPORT_KEYS), "engine.options")
    raw = {key: value for key, value in request.options.items() if key in option_names}
    options = TaskOptions(**raw)
    for key, is_valid, expectation in (
        ("calibration", options.calibration in (DYNAMIC, STATIC), "dynamic or static"),
        ("padding", isinstance(options.padding, bool), "true or false"),
        ("bounds", isinstance(options.bounds, dict), "a number by measure, as {cosine: 0.9}"),
    ):
        if not is_valid:
            problem = f"engine.options.{key} is {raw[key]!r}"
            raise BuildError(problem, remedy=f"Use {expectation}.")
    check_bounds(options.bounds)
    _check_calibration(request, options)
    if request.precision == "bf16":
        refuse_without_bf16(_cpu_flags())
    return options


def task_precision(request: BuilderRequest, options: TaskOptions) -> TaskPrecision:
    """Return the execution of the request's precision."""
    static = request.precision == "int8" and options.calibration == STATIC
    return _STATIC_INT8 if static else _PRECISIONS[request.precision]


def _check_calibration(request: BuilderRequest, options: TaskOptions) -> None:
    if "calibration" in request.options and request.precision != "int8":
        raise BuildError(
            f"engine.options.calibration is for int8, and the precision is {request.precision}",
            remedy="Remove calibration from engine.options, or set engine.precision to int8.",
        )
    if options.calibration != STATIC:
        return
    if request.task in IMAGE_TASKS:
        calibration_images(request)
    elif request.calibration is None and request.evaluation is None:
        raise BuildError(
            "engine.options.calibration is static, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file of texts like those to come, or use "
            "`calibration: dynamic`.",
        )


def _cpu_flags() -> set[str] | None:
    """Return the CPU flags that the kernel reports, or None without them."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.startswith("flags")), None)
    return set(flags.partition(":")[2].split()) if flags else None


def refuse_without_bf16(flags: set[str] | None) -> None:
    """Raise BuildError for a CPU that reports no bf16 arithmetic."""
    if flags is not None and not flags & _BF16_FLAGS:
        raise BuildError(
            "precision bf16 needs a CPU with AVX512-BF16 or AMX, and this one has neither: "
            "OpenVINO would compute in fp32, and the proof would not show the loss of bf16",
            remedy="Build on such a CPU (the serving one needs it too), or set engine.precision to "
            "fp32 or int8.",
        )
