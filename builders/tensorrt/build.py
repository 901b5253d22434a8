# SPDX-License-Identifier: Apache-2.0
"""Build a TensorRT plan: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# Serving's own code is what a proof runs.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from buildlib.weights import refuse_pointer
from gpu import Gpu, this_gpu
from network import Network
from options import Options, read_options
from profiles import Profile, resolve_profiles
from rules import (
    check_border,
    check_calibration_data,
    check_compute_capability,
    check_device,
    check_quantisation,
    check_typing,
    check_version,
)
from taskproof.parts import TaskParts, copy_parts
from tasks import column, parts_of, profiles_of, remedy_for

MODEL = "model.onnx"
PLAN = "model.plan"
_ENGINE, _TIMING = Path("engine"), Path("timing")
_TIMING_CACHE = "timing.cache"
_RANGES = "calibration.cache"


@dataclass(frozen=True)
class Checked:
    """What a request means. `model`: the graph; of a task, that of the stage before."""

    request: Request
    options: Options
    model: Path
    samples: list[Path]


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the plan in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    asked = checked(file)
    request, options = asked.request, asked.options
    gpu = _check_gpu(request, options)
    with stages.stage("load"):
        parts = parts_of(request)
        compiler = _parsed(asked)
        network = compiler.description
        shapes = options.profiles or profiles_of(network, parts, request.limits)
        profiles = resolve_profiles(network, shapes, request.limits.max_batch_size)
        cached = read_timing_cache(request.checkpoint, options)
    folders = (_ENGINE, _TIMING, *(parts.folders if parts else ()))
    artefact.prepare(folders)
    with stages.stage("compile"):
        calibrator = _calibrator(request, options, network, asked.samples)
        plan, timing = compiler.plan(
            request.precision, options, profiles, calibrator=calibrator, timing_cache=cached
        )
        (_ENGINE / PLAN).write_bytes(plan)
        (_TIMING / _TIMING_CACHE).write_bytes(timing)
        made = compiler.inspect(plan)
    with stages.stage("evaluate"):
        proof = _prove(asked, parts, plan, profiles, compiler.logger) if parts else None
    return {
        "files": artefact.files(folders),
        "tensors": {
            "inputs": [tensor.spec() for tensor in made.inputs],
            "outputs": [tensor.spec() for tensor in made.outputs],
        },
        "limits": dataclasses.asdict(request.limits) | (parts.lengths if parts else {}),
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / PLAN).as_posix(),
            "profiles": [_as_shapes(profile) for profile in profiles],
            **(parts.facts if parts else {}),
        },
        "versions": {**versions(()), "tensorrt": compiler.version},
        "hardware": {
            "cpu": cpu_name(),
            "gpu": gpu.name,
            "compute_capability": gpu.compute_capability,
        },
        "durations_seconds": stages.durations,
        "proof": proof,
    }


def _as_shapes(profile: Profile) -> dict[str, Any]:
    return {name: dataclasses.asdict(shapes) for name, shapes in profile.items()}


def _prove(
    asked: Checked, parts: TaskParts, plan: bytes, profiles: list[Profile], logger: Any
) -> Any:
    # What imports TensorRT, and what reads texts and images.
    from plan import RunningPlan
    from taskproof.compiled import Compiled, prove_compiled

    copy_parts(parts)
    subject = Compiled(
        request=asked.request,
        source=parts.source,
        precision=column(asked.request.precision),
        engine=RunningPlan(plan, profiles, logger),
        bounds=asked.options.bounds,
    )
    return prove_compiled(subject, artefact.PROOF, remedy=remedy_for(asked.request.precision))


def _check_gpu(request: Request, options: Options) -> Gpu:
    asked = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, asked)
    gpu = this_gpu()
    check_device(asked, gpu.compute_capability, options)
    check_compute_capability(request.precision, gpu.compute_capability)
    return gpu


def _parsed(asked: Checked) -> Any:
    """The parsed graph, found buildable."""
    import tensorrt

    request, options, calibrated = asked.request, asked.options, bool(asked.samples)
    installed = str(tensorrt.__version__)
    check_version(request.target.tensorrt if request.target else None, installed, options)
    # An exported task has the types of its precision already.
    flagged = "fp32" if request.task else request.precision
    check_typing(flagged, options, installed, calibrated=calibrated)
    from compiler import Compiler

    model = given_graph(asked.model)
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


def read_timing_cache(checkpoint: Path, options: Options) -> bytes:
    """Return the timing cache in the checkpoint's folder; empty where none is asked for.

    Raises:
        BuildError: it is not there.
    """
    if options.timing_cache is None:
        return b""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    file = folder / options.timing_cache
    if not file.is_file():
        raise BuildError(
            f"timing cache {file} does not exist",
            remedy=f"Copy timing/{_TIMING_CACHE} of an earlier artefact there, or remove "
            "engine.options.timing_cache.",
        )
    return file.read_bytes()


def _calibrator(request: Request, options: Options, network: Network, samples: list[Path]) -> Any:
    if request.calibration is None or request.task is not None:
        return None  # a task's graph has its scales
    from calibrate import calibrator  # imports TensorRT

    chosen = samples[: request.calibration.samples]
    return calibrator(options.calibrator, chosen, network, _TIMING / _RANGES)


def checked(file: Path) -> Checked:
    """Return what the request means, without TensorRT and its GPU. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    samples: list[Path] = []
    if request.task is None:
        model = given_graph(request.checkpoint)
        if request.calibration:
            samples = check_calibration_data(request.calibration.data)
    else:  # of the stage before, which may not have run yet
        model = (request.source or Path()) / _ENGINE
    asked = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, asked)
    read_timing_cache(request.checkpoint, options)
    return Checked(request, options, model, samples)


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build a TensorRT plan from an ONNX graph.",
            stages=("load", "compile", "evaluate"),
            check=checked,
        )
    )
