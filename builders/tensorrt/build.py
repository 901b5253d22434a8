# SPDX-License-Identifier: Apache-2.0
"""Build a TensorRT plan: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from buildlib.weights import refuse_pointer
from gpu import Gpu, this_gpu
from network import Network
from options import Options, read_options
from profiles import resolve_profiles
from rules import (
    check_border,
    check_calibration_data,
    check_compute_capability,
    check_device,
    check_quantisation,
    check_typing,
    check_version,
)

MODEL = "model.onnx"
PLAN = "model.plan"
_ENGINE, _TIMING = Path("engine"), Path("timing")
_FOLDERS = (_ENGINE, _TIMING)
_TIMING_CACHE = "timing.cache"
_RANGES = "calibration.cache"


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the plan in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    request, options, model, samples = checked(file)
    gpu = _check_gpu(request, options)
    with stages.stage("load"):
        compiler = _parsed(request, options, model, calibrated=bool(samples))
        network = compiler.description
        profiles = resolve_profiles(network, options.profiles, request.limits.max_batch_size)
        cached = read_timing_cache(model, options)
    artefact.prepare(_FOLDERS)
    with stages.stage("compile"):
        calibrator = _calibrator(request, options, network, samples)
        plan, timing = compiler.plan(
            request.precision, options, profiles, calibrator=calibrator, timing_cache=cached
        )
        (_ENGINE / PLAN).write_bytes(plan)
        (_TIMING / _TIMING_CACHE).write_bytes(timing)
        made = compiler.inspect(plan)
    shapes = [{name: dataclasses.asdict(s) for name, s in p.items()} for p in profiles]
    return {
        "files": artefact.files(_FOLDERS),
        "tensors": {
            "inputs": [tensor.spec() for tensor in made.inputs],
            "outputs": [tensor.spec() for tensor in made.outputs],
        },
        "limits": dataclasses.asdict(request.limits),
        "model": None,
        "runtime": {"model_file": (_ENGINE / PLAN).as_posix(), "profiles": shapes},
        "versions": {**versions(()), "tensorrt": compiler.version},
        "hardware": {
            "cpu": cpu_name(),
            "gpu": gpu.name,
            "compute_capability": gpu.compute_capability,
        },
        "durations_seconds": stages.durations,
    }


def _check_gpu(request: Request, options: Options) -> Gpu:
    asked = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, asked)
    gpu = this_gpu()
    check_device(asked, gpu.compute_capability, options)
    check_compute_capability(request.precision, gpu.compute_capability)
    return gpu


def _parsed(request: Request, options: Options, model: Path, *, calibrated: bool) -> Any:
    """The parsed graph, found buildable."""
    import tensorrt

    installed = str(tensorrt.__version__)
    check_version(request.target.tensorrt if request.target else None, installed, options)
    check_typing(request.precision, options, installed, calibrated=calibrated)
    from compiler import Compiler

    compiler = Compiler.parse(model, strongly_typed=options.strongly_typed)
    check_border(compiler.description)
    check_quantisation(request.precision, compiler.description, calibrated=calibrated)
    return compiler


def given_graph(checkpoint: Path) -> Path:
    """Return the ONNX file that `checkpoint` is or holds.

    Raises:
        BuildError: it holds none.
    """
    model = checkpoint / MODEL if checkpoint.is_dir() else checkpoint
    if not model.is_file() or model.suffix != ".onnx":
        raise BuildError(
            f"checkpoint {checkpoint} holds no ONNX graph ({MODEL})",
            remedy="Export the model first: the onnxruntime builder's artefact is one (engine/).",
        )
    refuse_pointer(model)
    return model


def read_timing_cache(model: Path, options: Options) -> bytes:
    """Return the timing cache beside the graph; empty where none is asked for.

    Raises:
        BuildError: it is not there.
    """
    if options.timing_cache is None:
        return b""
    file = model.parent / options.timing_cache
    if not file.is_file():
        raise BuildError(
            f"timing cache {file} does not exist",
            remedy=f"Copy timing/{_TIMING_CACHE} of an earlier artefact there, or remove "
            "engine.options.timing_cache.",
        )
    return file.read_bytes()


def _calibrator(request: Request, options: Options, network: Network, samples: list[Path]) -> Any:
    if request.calibration is None:
        return None
    try:
        from calibrate import calibrator
    except ModuleNotFoundError as error:
        raise BuildError(
            f"calibrating int8 needs {error.name}, which this Python does not have",
            remedy="Build with runner current in an image that has it (NVIDIA's TensorRT-LLM "
            "image), or give a graph with Q/DQ nodes and remove engine.calibration.",
        ) from error

    chosen = samples[: request.calibration.samples]
    return calibrator(options.calibrator, chosen, network, _TIMING / _RANGES)


def checked(file: Path) -> tuple[Request, Options, Path, list[Path]]:
    """Return what the request means, without TensorRT and its GPU. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    model = given_graph(request.checkpoint)
    samples = check_calibration_data(request.calibration.data) if request.calibration else []
    asked = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, asked)
    read_timing_cache(model, options)
    return request, options, model, samples


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build a TensorRT plan from an ONNX graph.",
            stages=("load", "compile"),
            check=checked,
        )
    )
