# SPDX-License-Identifier: Apache-2.0
"""Compatibility rules: pure functions that refuse an invalid pair and name the nearest valid one.

The data is in `builders/compatibility.toml`, which `table.py` reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from packaging.version import Version

from tritonctl.errors import ConfigurationError
from tritonctl.project.compatibility.table import (
    BuildTarget,
    Compatibility,
    GpuModel,
    NumberFormat,
    TritonRelease,
    World,
    architecture_of,
    gpu_named,
    image_of,
    is_at_least,
    kv_cache_dtype_named,
    precision_named,
    release_named,
)

_WORLDS: dict[World, str] = {
    "engine": "compiles engines (trtllm-build)",
    "pytorch": "loads quantised checkpoints (the PyTorch runtime)",
}
_UNSUPPORTED: dict[World, str] = {
    "engine": "does not compile engines with trtllm-build",
    "pytorch": "does not load quantised checkpoints with the PyTorch runtime",
}


def resolve_target(
    compatibility: Compatibility,
    *,
    release: str | None = None,
    gpu: str | None = None,
    compute_capability: str | None = None,
    world: World | None = None,
) -> BuildTarget:
    """Resolve `engine.target`; defaults: the default release and its first world.

    Raises ConfigurationError for an unknown name or an impossible pair.
    """
    chosen = release_named(release or compatibility.default_release, compatibility)
    refuse_release_without_tensorrt_llm(chosen, compatibility)
    world = world or chosen.worlds[0]
    refuse_world_of_release(chosen, world, compatibility)
    if gpu is not None:
        gpu_entry = gpu_named(gpu, compatibility)
        refuse_contradicting_compute_capability(gpu_entry, compute_capability)
        gpu, compute_capability = gpu_entry.name, gpu_entry.compute_capability
    target = BuildTarget(
        release=chosen.name,
        triton=chosen.triton,
        tensorrt_llm=chosen.tensorrt_llm or "",
        tensorrt=chosen.tensorrt,
        cuda=chosen.cuda,
        world=world,
        image=image_of(chosen, compatibility),
        gpu=gpu,
        compute_capability=compute_capability,
    )
    refuse_gpu_of_release(target, compatibility)
    return target


def resolve_tensorrt_target(
    compatibility: Compatibility,
    *,
    release: str | None = None,
    gpu: str | None = None,
    compute_capability: str | None = None,
    tensorrt: str | None = None,
) -> BuildTarget:
    """Resolve `engine.target` for a TensorRT plan: image, CUDA's major version and GPU.

    The table only has the TensorRT version of TensorRT-LLM images, which is older than the one of
    plain images. Without `tensorrt`, the build reads the version from the image. Raises
    ConfigurationError.
    """
    chosen = release_named(release or compatibility.default_release, compatibility)
    if gpu is not None:
        gpu_entry = gpu_named(gpu, compatibility)
        refuse_contradicting_compute_capability(gpu_entry, compute_capability)
        gpu, compute_capability = gpu_entry.name, gpu_entry.compute_capability
    if compute_capability is not None:
        architecture_of(compute_capability, compatibility)
    return BuildTarget(
        release=chosen.name,
        triton=chosen.triton,
        tensorrt_llm=None,
        tensorrt=tensorrt,
        cuda=chosen.server_cuda,
        world="engine",
        image=compatibility.tensorrt_image.format(name=chosen.name),
        gpu=gpu,
        compute_capability=compute_capability,
    )


def refuse_tensorrt_on_gpu(
    target: BuildTarget, precision: str, compatibility: Compatibility
) -> None:
    """Require a GPU from Turing on, for FP8 from Ada on. Raises ConfigurationError."""
    if target.compute_capability is None:
        return
    architecture = architecture_of(target.compute_capability, compatibility)
    gpu_label = f"{_gpu_label(target)} ({architecture.name})"
    if not architecture.tensorrt:
        first = next(entry for entry in compatibility.architectures if entry.tensorrt)
        raise ConfigurationError(
            f"TensorRT does not support {gpu_label}",
            remedy=f"use a GPU of compute capability {first.compute_capability} ({first.name}) or "
            "later, or the onnxruntime builder",
        )
    fp8 = compatibility.precisions["fp8"]
    if precision == "fp8" and not fp8.runs_on(target.compute_capability, "pytorch"):
        raise ConfigurationError(
            f"engine.precision fp8 cannot run on {_gpu_label(target)}: {fp8.reason}",
            remedy="set engine.precision to int8 or fp16, or engine.target.gpu to a newer one",
        )


def refuse_tensorrt_without_package(target: BuildTarget, compatibility: Compatibility) -> None:
    """Require a Python package of the server's TensorRT version. Raises ConfigurationError."""
    if target.tensorrt is None or target.cuda is None:
        raise ConfigurationError(
            f"the runner `venv` installs the TensorRT of the server that loads the plan, and "
            f"the version that release {target.release} has is unknown",
            remedy="set engine.target.tensorrt to it (`dpkg -l 'libnvinfer1*'` in the server's "
            "image, where python3 cannot tell), or use the runner `container`",
        )
    packaged_versions = compatibility.tensorrt_packages.get(target.cuda, [])
    if target.tensorrt in packaged_versions or not packaged_versions:
        return
    newest = max(packaged_versions, key=Version)
    if is_at_least(target.tensorrt, newest):
        return
    nearest = min(packaged_versions, key=lambda version: _distance(version, str(target.tensorrt)))
    raise ConfigurationError(
        f"TensorRT {target.tensorrt} for CUDA {target.cuda} has no Python package",
        remedy=f"set engine.target.tensorrt to the server's version, in full (nearest: {nearest}), "
        "or use the runner `container`",
    )


def _distance(first: str, second: str) -> list[int]:
    """Return the distance of two versions, most significant number first."""
    pairs = zip_longest(Version(first).release, Version(second).release, fillvalue=0)
    return [abs(a - b) for a, b in pairs]


def check_formats(
    target: BuildTarget,
    precision: str,
    compatibility: Compatibility,
    *,
    kv_cache_dtype: str | None = None,
) -> list[str]:
    """Check precision and KV cache type against `target`; return warnings on undocumented pairs.

    Raises ConfigurationError naming the nearest valid precision, release or GPU.
    """
    formats: list[tuple[str, str, NumberFormat]] = [
        ("precision", precision, precision_named(precision, compatibility))
    ]
    if kv_cache_dtype not in (None, "auto"):
        cache = kv_cache_dtype_named(str(kv_cache_dtype), compatibility)
        formats.append(("kv_cache_dtype", str(kv_cache_dtype), cache))
    warnings = []
    for field, name, chosen in formats:
        refuse_format_in_world(field, name, chosen, target, compatibility)
        refuse_format_on_gpu(field, name, chosen, target, compatibility)
        refuse_format_with_cuda(field, name, chosen, target, compatibility)
        if target.compute_capability in chosen.unlisted:
            warnings.append(
                f"engine.{field} {name} on compute capability {target.compute_capability}: "
                "TensorRT-LLM does not document this pair"
            )
    return warnings


def refuse_release_without_tensorrt_llm(
    release: TritonRelease, compatibility: Compatibility
) -> None:
    """Require a release with TensorRT-LLM (Triton up to 26.07). Raises ConfigurationError."""
    if release.tensorrt_llm is None:
        last = _newest(r for r in compatibility.releases if r.triton and r.tensorrt_llm)
        raise ConfigurationError(
            f"release {release.name} has no TensorRT-LLM image; {last.name} is the last with one",
            remedy=f"set engine.target.release to {last.name} (TensorRT-LLM {last.tensorrt_llm})",
        )


def refuse_world_of_release(
    release: TritonRelease, world: World, compatibility: Compatibility
) -> None:
    """Require a release that supports the world: compiled engines or the PyTorch runtime.

    Releases before 1.3.0rc21 support engines; releases from 1.0 support PyTorch. Raises
    ConfigurationError.
    """
    if world not in release.worlds:
        nearest = _newest(r for r in compatibility.releases if world in r.worlds and r.triton)
        supported_worlds = " or ".join(release.worlds)
        raise ConfigurationError(
            f"TensorRT-LLM {release.tensorrt_llm} (release {release.name}) {_UNSUPPORTED[world]}",
            remedy=f"set engine.target.release to {nearest.name} (TensorRT-LLM "
            f"{nearest.tensorrt_llm}), "
            f"or engine.target.world to {supported_worlds}",
        )


def refuse_contradicting_compute_capability(gpu: GpuModel, compute_capability: str | None) -> None:
    """Require the GPU's compute capability if both are set. Raises ConfigurationError."""
    if compute_capability not in (None, gpu.compute_capability):
        raise ConfigurationError(
            f"engine.target has gpu {gpu.name} and compute_capability {compute_capability}: "
            f"{gpu.name} has {gpu.compute_capability}",
            remedy="remove engine.target.compute_capability, or correct engine.target.gpu",
        )


def refuse_gpu_of_release(target: BuildTarget, compatibility: Compatibility) -> None:
    """Require TensorRT-LLM and CUDA with support for the GPU. Raises ConfigurationError."""
    if target.compute_capability is None:
        return
    architecture = architecture_of(target.compute_capability, compatibility)
    gpu_label = f"{_gpu_label(target)} ({architecture.name})"
    if not architecture.trtllm:
        first = next(entry for entry in compatibility.architectures if entry.trtllm)
        raise ConfigurationError(
            f"TensorRT-LLM does not support {gpu_label}",
            remedy=f"use a GPU of compute capability {first.compute_capability} ({first.name}) or "
            "later, or the onnxruntime builder",
        )
    if target.cuda and not is_at_least(target.cuda, architecture.cuda):
        nearest = _oldest(
            release
            for release in compatibility.releases
            if target.world in release.worlds and is_at_least(release.cuda, architecture.cuda)
        )
        raise ConfigurationError(
            f"release {target.release} (CUDA {target.cuda}) cannot compile for {gpu_label}, which "
            f"needs CUDA {architecture.cuda}",
            remedy=f"set engine.target.release to {nearest.name} or later",
        )


def refuse_format_in_world(
    field: str, name: str, chosen: NumberFormat, target: BuildTarget, compatibility: Compatibility
) -> None:
    """Require a format that the target's world supports. Raises ConfigurationError."""
    if target.world not in chosen.worlds:
        world = chosen.worlds[0]
        nearest = _newest(r for r in compatibility.releases if world in r.worlds and r.triton)
        raise ConfigurationError(
            f"engine.{field} {name} is not for TensorRT-LLM {target.tensorrt_llm} where it "
            f"{_WORLDS[target.world]}: {chosen.world_reason}",
            remedy=_nearest_format_remedy(field, chosen, target, compatibility)
            + f", or engine.target.release to {nearest.name} with world {world}",
        )


def refuse_format_on_gpu(
    field: str, name: str, chosen: NumberFormat, target: BuildTarget, compatibility: Compatibility
) -> None:
    """Require a GPU that supports the format's arithmetic. Raises ConfigurationError."""
    capability = target.compute_capability
    if capability is None or chosen.runs_on(capability, target.world):
        return
    gpus = [
        g.name for g in compatibility.gpus if chosen.runs_on(g.compute_capability, target.world)
    ]
    raise ConfigurationError(
        f"engine.{field} {name} cannot run on {_gpu_label(target)}: {chosen.reason}",
        remedy=_nearest_format_remedy(field, chosen, target, compatibility)
        + f", or engine.target.gpu to one that can: {', '.join(gpus)}",
    )


def refuse_format_with_cuda(
    field: str, name: str, chosen: NumberFormat, target: BuildTarget, compatibility: Compatibility
) -> None:
    """Require the CUDA version that the format's kernels need. Raises ConfigurationError."""
    required_cuda = chosen.cuda.get(target.compute_capability or "")
    if required_cuda and target.cuda and not is_at_least(target.cuda, required_cuda):
        nearest = _oldest(
            release
            for release in compatibility.releases
            if target.world in release.worlds and is_at_least(release.cuda, required_cuda)
        )
        raise ConfigurationError(
            f"engine.{field} {name} on {_gpu_label(target)} needs CUDA {required_cuda}, and "
            "release "
            f"{target.release} has {target.cuda}",
            remedy=f"set engine.target.release to {nearest.name} or later",
        )


def refuse_driver(
    release: TritonRelease, driver: str, compatibility: Compatibility, *, data_center: bool
) -> str | None:
    """Check the driver's version; return a warning if a data-centre GPU may still work.

    Raises ConfigurationError naming the newest release for that driver.
    """
    if release.driver is None or is_at_least(driver, release.driver):
        return None
    problem = (
        f"driver {driver} is older than {release.driver}, which CUDA {release.cuda} of release "
        f"{release.name} came with"
    )
    if data_center:
        return f"{problem}: it needs the image's CUDA compatibility package"
    compatible = [r for r in compatibility.releases if r.driver and is_at_least(driver, r.driver)]
    release_hint = f", or engine.target.release to {_newest(compatible).name}" if compatible else ""
    raise ConfigurationError(
        problem, remedy=f"update the driver to {release.driver} or later{release_hint}"
    )


def fields_unknown_to(triton: str, compatibility: Compatibility) -> dict[str, str]:
    """Return config.pbtxt fields (dotted) newer than a Triton version, with their first version."""
    return {
        field: first
        for field, first in compatibility.config_fields.items()
        if not is_at_least(triton, first)
    }


def _nearest_format_remedy(
    field: str, chosen: NumberFormat, target: BuildTarget, compatibility: Compatibility
) -> str:
    """Return the start of a remedy: the nearest format that `target` supports."""
    formats: dict[str, NumberFormat] = {**compatibility.precisions}
    if field == "kv_cache_dtype":
        formats = {**compatibility.kv_cache_dtypes}
    for name in chosen.nearest:
        capability = target.compute_capability
        possible = capability is None or formats[name].runs_on(capability, target.world)
        if possible and target.world in formats[name].worlds:
            return f"set engine.{field} to {name}"
    return f"remove engine.{field}" if field == "kv_cache_dtype" else f"change engine.{field}"


def _gpu_label(target: BuildTarget) -> str:
    capability = f"compute capability {target.compute_capability}"
    return f"{target.gpu} ({capability})" if target.gpu else capability


def _newest(releases: Iterable[TritonRelease]) -> TritonRelease:
    # The table goes from new to old.
    return next(iter(releases))


def _oldest(releases: Iterable[TritonRelease]) -> TritonRelease:
    return list(releases)[-1]
