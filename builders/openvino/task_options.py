# SPDX-License-Identifier: Apache-2.0
"""What a task's request may ask of this builder, and how each precision is run.

Nothing is left to OpenVINO's defaults, because those follow the CPU: bf16 where it has some. With
these properties an engine does what was proven; but for dynamic int8 on a CPU without VNNI, which
leaves activations in fp32, nearer to the checkpoint and no faster. Standard library only.
"""

from dataclasses import dataclass, field
from pathlib import Path

from buildlib.limits import require_single
from buildlib.problems import BuildError
from buildlib.request import Request, known_keys, known_precision
from taskcompile.image_task import IMAGE_TASKS
from taskproof.figures import BF16, FP16, FP32, INT8, INT8_STATIC, check_bounds
from taskproof.image_files import require_images

DYNAMIC, STATIC = "dynamic", "static"
# Of runs whose processor time is measured.
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1}
# What the stage `export` takes, and checks.
_OF_EXPORT = ("pooling", "normalize", "opset_version")
_CPUINFO = Path("/proc/cpuinfo")
# As the kernel names them: arithmetic in bf16 of an x86-64 CPU.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


@dataclass(frozen=True)
class Precision:
    """How one precision is run.

    `column`: of the bounds. `better`: what to do where it is too far. `inside`: the type that sums
    are made in. `group`: activations that share a scale, measured in each run; 0 for none.
    """

    column: str
    better: str
    inside: str = "f32"
    group: int = 0

    @property
    def properties(self) -> dict[str, str | int | bool]:
        """OpenVINO's, of proof and serving."""
        return {
            "INFERENCE_PRECISION_HINT": self.inside,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.group,
            # One run at a time, on all cores: who waits for it shares the next one.
            "PERFORMANCE_HINT": "LATENCY",
            # The cores belong to other models' steps, too.
            "ENABLE_CPU_PINNING": False,
        }


PLAIN = Precision(FP32, "Report it, with build.log.")
_PRECISIONS = {
    "fp32": PLAIN,
    "fp16": Precision(FP16, "Set engine.precision to fp32."),
    "bf16": Precision(BF16, "Set engine.precision to fp32.", inside="bf16"),
    "int8": Precision(INT8, "Set engine.precision to bf16 or fp32.", group=64),
}
_STATIC = Precision(
    INT8_STATIC, "Use `calibration: dynamic`, more and better calibration data, or bf16."
)


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task: those of the export, and what is proven here."""

    # int8: activations quantised while serving, or ranges measured now on engine.calibration.data.
    calibration: str = DYNAMIC
    # Texts of different lengths share a run, padded, where that is exact and, measured, faster.
    padding: bool = True
    # Other bounds of the proof, by measure.
    bounds: dict[str, float] = field(default_factory=dict)


def read_task_options(request: Request) -> TaskOptions:
    """Return the request's options.

    Raises:
        BuildError: the request asks for what this builder cannot.
    """
    if request.kv_cache_dtype is not None:
        raise BuildError(
            f"kv_cache_dtype {request.kv_cache_dtype!r}: a graph of this builder has no KV cache",
            remedy="Remove kv_cache_dtype.",
        )
    known_precision(request, "openvino", tuple(_PRECISIONS))
    require_single(request.limits, Path(__file__).parent)
    own = tuple(TaskOptions.__dataclass_fields__)
    known_keys(request.options, (*own, *_OF_EXPORT), "engine.options")
    raw = {key: value for key, value in request.options.items() if key in own}
    options = TaskOptions(**raw)
    for key, fits, words in (
        ("calibration", options.calibration in (DYNAMIC, STATIC), "dynamic or static"),
        ("padding", isinstance(options.padding, bool), "true or false"),
        ("bounds", isinstance(options.bounds, dict), "a number by measure, as {cosine: 0.9}"),
    ):
        if not fits:
            problem = f"engine.options.{key} is {raw[key]!r}"
            raise BuildError(problem, remedy=f"Use {words}.")
    check_bounds(options.bounds)
    _check_calibration(request, options)
    if request.precision == "bf16":
        refuse_without_bf16(_cpu_flags())
    return options


def precision_of(request: Request, options: TaskOptions) -> Precision:
    """How the request's precision is run."""
    static = request.precision == "int8" and options.calibration == STATIC
    return _STATIC if static else _PRECISIONS[request.precision]


def _check_calibration(request: Request, options: TaskOptions) -> None:
    if "calibration" in request.options and request.precision != "int8":
        raise BuildError(
            f"engine.options.calibration is of int8, and the precision is {request.precision}",
            remedy="Remove calibration from engine.options, or set engine.precision to int8.",
        )
    if options.calibration != STATIC:
        return
    if request.task in IMAGE_TASKS:
        require_images(request)
    elif request.calibration is None and request.evaluation is None:
        raise BuildError(
            "engine.options.calibration is static, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file of texts like those to come, or use "
            "`calibration: dynamic`.",
        )


def _cpu_flags() -> set[str] | None:
    """What the CPU can, in the kernel's words; None where it does not say so."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.startswith("flags")), None)
    return set(flags.partition(":")[2].split()) if flags else None


def refuse_without_bf16(flags: set[str] | None) -> None:
    """Raise BuildError for a CPU that is known to have no arithmetic in bf16."""
    if flags is not None and not flags & _BF16_FLAGS:
        raise BuildError(
            "precision bf16 needs a CPU with AVX512-BF16 or AMX, and this one has neither: "
            "OpenVINO would compute in fp32, and nothing would show what bf16 costs",
            remedy="Build where the CPU has it, as the one that serves must, or set "
            "engine.precision to fp32 or int8.",
        )
