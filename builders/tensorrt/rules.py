# SPDX-License-Identifier: Apache-2.0
"""Refuses early what TensorRT would refuse late or change silently. Standard library only.

Sources: TensorRT's support matrix, developer guide and Python API (10.14), and the migration guide
from 10 to 11.
"""

from pathlib import Path

from buildlib.compatibility import min_capability_tensorrt, precisions
from buildlib.problems import BuildError
from network import TRITON_TYPES, Network
from options import TensorrtOptions

# TensorRT 11 supports strongly typed networks only.
STRONGLY_TYPED_FROM = 11
_MIN_CAPABILITY_REASON = "TensorRT dropped older ones in 10.5"
_AMPERE = "8.0"
_Q_TYPES = {"int8": "INT8", "fp8": "FP8"}


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version or a compute capability as numbers for comparison."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def check_compute_capability(precision: str, compute_capability: str | None) -> None:
    """Raise BuildError if a GPU cannot run the precision."""
    if compute_capability is None:
        return
    min_capability, reason = min_capability_tensorrt(), _MIN_CAPABILITY_REASON
    if precision == "fp8":
        fp8 = precisions()["fp8"]
        min_capability, reason = fp8.listed[0], fp8.reason
    if version_numbers(compute_capability) < version_numbers(min_capability):
        raise BuildError(
            f"precision {precision} needs compute capability {min_capability}, and the GPU has "
            f"{compute_capability}: {reason}",
            remedy="Set engine.precision to int8 or fp16, or build for a newer GPU."
            if precision == "fp8"
            else "Build for a newer GPU, or serve the graph with the onnxruntime builder.",
        )


def check_device(target: str | None, device: str | None, options: TensorrtOptions) -> None:
    """Raise BuildError if the building GPU differs in kind from the serving one."""
    if device is None:
        raise BuildError(
            "nvidia-smi found no GPU, and TensorRT times its kernels on one",
            remedy="Build on the machine that serves; in a container, set engine.target.gpu.",
        )
    if target is None or target == device:
        return
    both_ampere = min(version_numbers(target), version_numbers(device)) >= version_numbers(_AMPERE)
    if options.hardware_compatibility == "ampere_plus" and both_ampere:
        return
    raise BuildError(
        f"this GPU has compute capability {device}, and the engine is for {target}: a plan runs on "
        "the architecture that made it",
        remedy="Build on a GPU of the target's kind, or set engine.options.hardware_compatibility "
        "to ampere_plus (8.0 and later; slower).",
    )


def check_version(target: str | None, installed: str, options: TensorrtOptions) -> None:
    """Raise BuildError if this TensorRT's version differs from the server's."""
    if target is None or version_numbers(target) == version_numbers(installed):
        return
    newer = version_numbers(target) > version_numbers(installed)
    same_major = version_numbers(target)[:1] == version_numbers(installed)[:1]
    if options.version_compatible and same_major and newer:
        return
    raise BuildError(
        f"TensorRT here is {installed}, and the target's server has {target}: a plan loads in the "
        "version that made it",
        remedy="Build in the target's image (runner container), or set "
        "engine.options.version_compatible for a later version of the same major one (the server "
        "then needs --backend-config=tensorrt,version-compatible=true).",
    )


def check_typing(
    precision: str, options: TensorrtOptions, installed: str, *, calibrated: bool
) -> None:
    """Raise BuildError if precision flags contradict strongly typed networks."""
    is_always_typed = version_numbers(installed)[0] >= STRONGLY_TYPED_FROM
    if not (options.strongly_typed or is_always_typed):
        return
    cause = (
        f"TensorRT {installed} has" if is_always_typed else "engine.options.strongly_typed asks for"
    )
    if calibrated:
        raise BuildError(
            f"{cause} strongly typed networks, which cannot be calibrated",
            remedy="Give a graph with Q/DQ nodes and remove engine.calibration.",
        )
    if precision == "fp16" and is_always_typed:
        raise BuildError(
            f"{cause} strongly typed networks only: the graph decides on fp16, not a flag",
            remedy="Convert the graph (onnxruntime builder, precision fp16, or ModelOpt AutoCast) "
            "and build it with engine.options.strongly_typed and precision fp32.",
        )
    if precision == "fp16":
        raise BuildError(
            "precision fp16 sets a flag that strongly typed networks refuse",
            remedy="Remove engine.options.strongly_typed; or convert the graph to fp16 and set "
            "engine.precision to fp32, which leaves its types alone.",
        )


def check_quantisation(precision: str, network: Network, *, calibrated: bool) -> None:
    """Raise BuildError unless the precision's scales have exactly one source."""
    expected_type = _Q_TYPES.get(precision)
    if expected_type is None:
        if network.quantised:
            types = " and ".join(sorted(network.quantised))
            raise BuildError(
                f"the graph has Q/DQ nodes ({types}), and the precision is {precision}",
                remedy=f"Set engine.precision to {types.lower()}, or give the graph without them.",
            )
        return
    other_types = network.quantised - {expected_type}
    if other_types:
        raise BuildError(
            f"the graph has Q/DQ nodes of the type {' and '.join(sorted(other_types))}, and the "
            f"precision is {precision}",
            remedy="Set engine.precision to the type of the graph's Q/DQ nodes.",
        )
    if expected_type in network.quantised and calibrated:
        raise BuildError(
            "the graph has Q/DQ nodes, so TensorRT would not use the calibration",
            remedy="Remove engine.calibration, or give the graph without Q/DQ nodes.",
        )
    if expected_type not in network.quantised and not calibrated:
        raise BuildError(
            f"precision {precision} needs scales: the graph has no Q/DQ nodes of that type and "
            "nothing calibrates it",
            remedy=_scales_remedy(precision),
        )
    if precision == "fp8" and calibrated:
        raise BuildError(
            "TensorRT calibrates int8 only; fp8 takes its scales from Q/DQ nodes",
            remedy=_scales_remedy(precision),
        )


def _scales_remedy(precision: str) -> str:
    quantise = f"Quantise the graph with ModelOpt (modelopt.onnx.quantization, {precision})"
    if precision == "fp8":
        return f"{quantise}."
    return f"{quantise}, or set engine.calibration.data to a folder of .npz samples."


def check_border(network: Network, *, batched: bool) -> None:
    """Raise BuildError for inputs or outputs that Triton could not carry.

    `batched`: requests share runs, along the first dimension of all tensors.
    """
    for tensor in (*network.inputs, *network.outputs):
        if tensor.data_type not in TRITON_TYPES:
            raise BuildError(
                f"{tensor.name} is of the type {tensor.data_type}, which Triton cannot carry",
                remedy="Add a Cast at the border of the graph.",
            )
        if not tensor.shape:
            raise BuildError(
                f"{tensor.name} is a scalar, which Triton's TensorRT backend does not carry",
                remedy="Export the graph with [1] there (Reshape, Unsqueeze), or serve it with the "
                "onnxruntime builder.",
            )
        if batched and tensor.shape[0] != -1:
            raise BuildError(
                f"the first dimension of {tensor.name} is fixed at {tensor.shape[0]}, so requests "
                "cannot be batched along it",
                remedy="Set engine.max_batch_size to 0: the plan then runs once for each request. "
                'To batch, export the graph with a variable first dimension: {0: Dim("batch")}.',
            )


def check_calibration_data(folder: Path) -> list[Path]:
    """Return the samples for int8 calibration. Raises BuildError without samples."""
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not files:
        raise BuildError(
            f"{folder}: holds no .npz samples to calibrate on",
            remedy="Save each with numpy.savez(FILE, **arrays), arrays named as the inputs, batch "
            "dimension first.",
        )
    return files
