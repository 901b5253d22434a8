# SPDX-License-Identifier: Apache-2.0
"""Build a TensorRT plan: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder. Only the result is written outside it.
builders/README.md has the contract (request, result, progress lines, exit codes).
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# A proof runs the code used in serving.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from buildlib.weights import refuse_lfs_pointer
from gpu import LocalGpu, find_gpu
from network import Network
from options import TensorrtOptions, read_options
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
from task_plans import default_profiles, exported_task_for, precision_column, remedy_for
from taskproof.exported_task import ExportedTask, copy_task_folders

MODEL = "model.onnx"
PLAN = "model.plan"
_ENGINE, _TIMING = Path("engine"), Path("timing")
_TIMING_CACHE = "timing.cache"
_RANGES = "calibration.cache"


@dataclass(frozen=True)
class TensorrtBuild:
    """A checked request."""

    request: BuilderRequest
    options: TensorrtOptions
    model: Path  # the graph; for a task, the one of the export stage
    samples: list[Path]

    @property
    def is_batched(self) -> bool:
        """Whether requests share runs; otherwise tensors have the graph's own shapes."""
        return self.request.limits.max_batch_size > 0


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the plan in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    job = check_request(file)
    request, options = job.request, job.options
    gpu = _check_gpu(request, options)
    with stages.stage("load"):
        exported = exported_task_for(request)
        compiler = _parse_graph(job)
        network = compiler.description
        shapes = options.profiles or default_profiles(network, exported, request.limits)
        profiles = resolve_profiles(network, shapes, request.limits.max_batch_size)
        timing_cache = read_timing_cache(request.checkpoint, options)
    folders = (_ENGINE, _TIMING, *(exported.folders if exported else ()))
    artefact.create_folders(folders)
    with stages.stage("compile"):
        calibrator = _calibrator(request, options, network, job.samples)
        plan, timing = compiler.plan(
            request.precision, options, profiles, calibrator=calibrator, timing_cache=timing_cache
        )
        (_ENGINE / PLAN).write_bytes(plan)
        (_TIMING / _TIMING_CACHE).write_bytes(timing)
        border = compiler.inspect(plan)
    with stages.stage("evaluate"):
        proof = _prove(job, exported, plan, profiles, compiler.logger) if exported else None
    return {
        "files": artefact.list_files(folders),
        "tensors": {
            "inputs": [tensor.spec(batched=job.is_batched) for tensor in border.inputs],
            "outputs": [tensor.spec(batched=job.is_batched) for tensor in border.outputs],
        },
        "limits": dataclasses.asdict(request.limits) | (exported.lengths if exported else {}),
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / PLAN).as_posix(),
            "profiles": [_profile_object(profile) for profile in profiles],
            **(exported.facts if exported else {}),
        },
        "versions": {**installed_versions(()), "tensorrt": compiler.version},
        "hardware": {
            "cpu": cpu_name(),
            "gpu": gpu.name,
            "compute_capability": gpu.compute_capability,
        },
        "durations_seconds": stages.durations,
        "proof": proof,
    }


def _profile_object(profile: Profile) -> dict[str, Any]:
    return {name: dataclasses.asdict(shapes) for name, shapes in profile.items()}


def _prove(
    job: TensorrtBuild, exported: ExportedTask, plan: bytes, profiles: list[Profile], logger: Any
) -> Any:
    # These import TensorRT and the modules that read texts and images.
    from plan import PlanRunner
    from taskproof.compiled_proof import CompiledSubject, prove_compiled

    copy_task_folders(exported)
    subject = CompiledSubject(
        request=job.request,
        source=exported.source,
        precision=precision_column(job.request.precision),
        engine=PlanRunner(plan, profiles, logger),
        bound_overrides=job.options.bounds,
    )
    return prove_compiled(subject, artefact.PROOF, remedy=remedy_for(job.request.precision))


def _check_gpu(request: BuilderRequest, options: TensorrtOptions) -> LocalGpu:
    target_capability = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, target_capability)
    gpu = find_gpu()
    check_device(target_capability, gpu.compute_capability, options)
    check_compute_capability(request.precision, gpu.compute_capability)
    return gpu


def _parse_graph(job: TensorrtBuild) -> Any:
    """Parse the graph and check that it can be built."""
    import tensorrt

    request, options, calibrated = job.request, job.options, bool(job.samples)
    installed = str(tensorrt.__version__)
    check_version(request.target.tensorrt if request.target else None, installed, options)
    # The graph of an exported task has the types of its precision.
    flag_precision = "fp32" if request.task else request.precision
    check_typing(flag_precision, options, installed, calibrated=calibrated)
    from compiler import Compiler

    model = find_graph(job.model)
    compiler = Compiler.parse(model, strongly_typed=options.strongly_typed)
    check_border(compiler.description, batched=job.is_batched)
    check_quantisation(request.precision, compiler.description, calibrated=calibrated)
    return compiler


def find_graph(checkpoint: Path) -> Path:
    """Return the ONNX file at or in `checkpoint`.

    Raises:
        BuildError: there is no ONNX file.
    """
    model = checkpoint / MODEL if checkpoint.is_dir() else checkpoint
    if not model.is_file() or model.suffix != ".onnx":
        raise BuildError(
            f"checkpoint {checkpoint} holds no ONNX graph ({MODEL})",
            remedy="Export the model first: the onnxruntime builder's artefact is one (engine/).",
        )
    refuse_lfs_pointer(model)
    return model


def read_timing_cache(checkpoint: Path, options: TensorrtOptions) -> bytes:
    """Return the timing cache in the checkpoint's folder, or b"" if the options name none.

    Raises:
        BuildError: the file does not exist.
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


def _calibrator(
    request: BuilderRequest, options: TensorrtOptions, network: Network, samples: list[Path]
) -> Any:
    if request.calibration is None or request.task is not None:
        return None  # the graph of a task has its scales
    from calibrate import create_calibrator  # imports TensorRT

    selected = samples[: request.calibration.samples]
    return create_calibrator(options.calibrator, selected, network, _TIMING / _RANGES)


def check_request(file: Path) -> TensorrtBuild:
    """Read and check a request without TensorRT and a GPU. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    samples: list[Path] = []
    if request.task is None:
        model = find_graph(request.checkpoint)
        if request.calibration:
            samples = check_calibration_data(request.calibration.data)
    else:  # of the export stage, which may not have run yet
        model = (request.source or Path()) / _ENGINE
    target_capability = request.target.compute_capability if request.target else None
    check_compute_capability(request.precision, target_capability)
    read_timing_cache(request.checkpoint, options)
    return TensorrtBuild(request, options, model, samples)


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build a TensorRT plan from an ONNX graph.",
            stages=("load", "compile", "evaluate"),
            check=check_request,
        )
    )
