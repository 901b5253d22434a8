# SPDX-License-Identifier: Apache-2.0
"""Check this machine's GPUs: what they can run, and what the project's profiles need."""

from __future__ import annotations

from tritonctl.doctor.findings import GPU, DoctorFinding, GpuReport
from tritonctl.doctor.profiles import Profiles
from tritonctl.errors import ConfigurationError
from tritonctl.host.gpus import InstalledGpu
from tritonctl.project.compatibility.rules import check_formats, refuse_driver, resolve_target
from tritonctl.project.compatibility.table import Compatibility, World, gpu_named
from tritonctl.project.engine import Engine

_GPU_BUILDERS = ("tensorrt", "tensorrt_llm")
_GPU_REASON = "TensorRT and TensorRT-LLM build and run engines on NVIDIA GPUs only"


def gpu_finding(gpus: list[InstalledGpu], reason: str) -> DoctorFinding:
    """Check for an NVIDIA GPU: TensorRT-LLM needs one; OpenVINO and ONNX Runtime do not."""
    if gpus:
        names = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
        detail = f"{names}, driver {gpus[0].driver}"
        return DoctorFinding(GPU, "ok", detail, reason=_GPU_REASON)
    remedy = "builders openvino and onnxruntime, and quantising, run on this CPU"
    return DoctorFinding(GPU, "missing", reason, remedy, reason=_GPU_REASON)


def engine_gpu_findings(
    projects: Profiles, gpus: list[InstalledGpu], compatibility: Compatibility
) -> list[DoctorFinding]:
    """Check, for each engine of each profile that needs GPUs, whether this machine has enough."""
    return [
        _engine_gpu_finding(profile, name, model.engine, gpus, compatibility)
        for profile, project in projects.items()
        for name, model in sorted(project.models.items())
        if model.engine.builder in _GPU_BUILDERS
    ]


def _engine_gpu_finding(
    profile: str | None,
    name: str,
    engine: Engine,
    gpus: list[InstalledGpu],
    compatibility: Compatibility,
) -> DoctorFinding:
    capability, count = _compute_capability(engine, compatibility), engine.tp_size * engine.pp_size
    matching_gpus = [gpu for gpu in gpus if capability in (None, gpu.compute_capability)]
    title = f"GPUs for {name}" + (f" ({profile})" if profile else "")
    capability_text = f" of compute capability {capability}" if capability else ""
    detail = f"{count} needed{capability_text}, {len(matching_gpus)} here"
    reason = "an engine runs on the GPU model and the number of GPUs that it was built for"
    if len(matching_gpus) >= count:
        return DoctorFinding(title, "ok", detail, reason=reason)
    remedy = "build and serve that profile on a machine that has them"
    if gpus and capability and not matching_gpus:
        remedy = (
            f"set engine.target.compute_capability: '{gpus[0].compute_capability}', or {remedy}"
        )
    return DoctorFinding(title, "missing", detail, remedy, reason=reason)


def _compute_capability(engine: Engine, compatibility: Compatibility) -> str | None:
    if engine.target.compute_capability or engine.target.gpu is None:
        return engine.target.compute_capability
    try:
        return gpu_named(engine.target.gpu, compatibility).compute_capability
    except ConfigurationError:  # `tritonctl build` explains it
        return None


def gpu_report(gpu: InstalledGpu, compatibility: Compatibility) -> GpuReport:
    """Report what a GPU can run by the compatibility table."""
    releases, warnings = [], []
    for release in compatibility.releases:
        if not (release.triton and release.worlds):
            continue
        try:
            resolve_target(
                compatibility, release=release.name, compute_capability=gpu.compute_capability
            )
            warning = refuse_driver(release, gpu.driver, compatibility, data_center=gpu.data_center)
        except ConfigurationError:
            continue
        releases.append(release.name)
        warnings += [warning] if warning else []
    precisions: dict[World, list[str]] = {
        "engine": _precisions(gpu, "engine", compatibility),
        "pytorch": _precisions(gpu, "pytorch", compatibility),
    }
    return GpuReport(gpu, releases, warnings[:1], precisions)


def _precisions(gpu: InstalledGpu, world: World, compatibility: Compatibility) -> list[str]:
    names = []
    for name in compatibility.precisions:
        try:
            target = resolve_target(
                compatibility, compute_capability=gpu.compute_capability, world=world
            )
            check_formats(target, name, compatibility)
        except ConfigurationError:
            continue
        names.append(name)
    return names
