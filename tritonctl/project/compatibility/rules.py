# SPDX-License-Identifier: Apache-2.0
"""Compatibility rules: pure functions that refuse an impossible pair and name the nearest possible.

The facts are data, in `builders/compatibility.toml`, which `table.py` beside this file reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from packaging.version import Version

from tritonctl.errors import ConfigurationError
from tritonctl.project.compatibility.table import (
    Compatibility,
    Format,
    Gpu,
    Release,
    Target,
    World,
    architecture_of,
    gpu_named,
    image_of,
    kv_cache_dtype_named,
    precision_named,
    reaches,
    release_named,
)

_WORLDS: dict[World, str] = {
    "engine": "compiles engines (trtllm-build)",
    "pytorch": "loads quantised checkpoints (the PyTorch runtime)",
}


def resolve_target(
    compatibility: Compatibility,
    *,
    release: str | None = None,
    gpu: str | None = None,
    compute_capability: str | None = None,
    world: World | None = None,
) -> Target:
    """Everything that `engine.target` implies; absent: the default release, its first world.

    Raises ConfigurationError for an unknown name or an impossible pair.
    """
    chosen = release_named(release or compatibility.default_release, compatibility)
    refuse_release_without_tensorrt_llm(chosen, compatibility)
    world = world or chosen.worlds[0]
    refuse_world_of_release(chosen, world, compatibility)
    if gpu is not None:
        known = gpu_named(gpu, compatibility)
        refuse_contradicting_compute_capability(known, compute_capability)
        gpu, compute_capability = known.name, known.compute_capability
    target = Target(
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
) -> Target:
    """What `engine.target` implies for a TensorRT plan: image, CUDA's major version and GPU.

    The table's TensorRT is that of the images with TensorRT-LLM, which is older than that of the
    plain ones: `tensorrt`, or left open and read off the image by the build. Raises
    ConfigurationError.
    """
    chosen = release_named(release or compatibility.default_release, compatibility)
    if gpu is not None:
        known = gpu_named(gpu, compatibility)
        refuse_contradicting_compute_capability(known, compute_capability)
        gpu, compute_capability = known.name, known.compute_capability
    if compute_capability is not None:
        architecture_of(compute_capability, compatibility)
    return Target(
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


def refuse_tensorrt_on_gpu(target: Target, precision: str, compatibility: Compatibility) -> None:
    """A plan runs from Turing on, one in FP8 from Ada on. Raises ConfigurationError."""
    if target.compute_capability is None:
        return
    architecture = architecture_of(target.compute_capability, compatibility)
    what = f"{_gpu(target)} ({architecture.name})"
    if not architecture.tensorrt:
        first = next(entry for entry in compatibility.architectures if entry.tensorrt)
        raise ConfigurationError(
            f"TensorRT does not support {what}",
            remedy=f"use a GPU of compute capability {first.compute_capability} ({first.name}) or "
            "later, or the onnxruntime builder",
        )
    fp8 = compatibility.precisions["fp8"]
    if precision == "fp8" and not fp8.runs_on(target.compute_capability, "pytorch"):
        raise ConfigurationError(
            f"engine.precision fp8 cannot run on {_gpu(target)}: {fp8.reason}",
            remedy="set engine.precision to int8 or fp16, or engine.target.gpu to a newer one",
        )


def refuse_tensorrt_without_package(target: Target, compatibility: Compatibility) -> None:
    """An environment needs exactly the server's TensorRT version. Raises ConfigurationError."""
    if target.tensorrt is None or target.cuda is None:
        raise ConfigurationError(
            f"the runner `venv` installs the TensorRT of the server that loads the plan, and "
            f"the version that release {target.release} has is unknown",
            remedy="set engine.target.tensorrt to it (`dpkg -l 'libnvinfer1*'` in the server's "
            "image, where python3 cannot tell), or use the runner `container`",
        )
    known = compatibility.tensorrt_packages.get(target.cuda, [])
    if target.tensorrt in known or not known:
        return
    newest = max(known, key=Version)
    if reaches(target.tensorrt, newest):
        return
    near = min(known, key=lambda version: _distance(version, str(target.tensorrt)))
    raise ConfigurationError(
        f"TensorRT {target.tensorrt} for CUDA {target.cuda} has no Python package",
        remedy=f"set engine.target.tensorrt to the server's version, in full (nearest: {near}), "
        "or use the runner `container`",
    )


def _distance(one: str, other: str) -> list[int]:
    """How far versions are from each other, the first number first."""
    pairs = zip_longest(Version(one).release, Version(other).release, fillvalue=0)
    return [abs(a - b) for a, b in pairs]


def check(
    target: Target,
    precision: str,
    compatibility: Compatibility,
    *,
    kv_cache_dtype: str | None = None,
) -> list[str]:
    """Refuse what cannot be built for `target`; return warnings about undocumented pairs.

    Raises ConfigurationError naming the nearest possible precision, release or GPU.
    """
    formats: list[tuple[str, str, Format]] = [
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


def refuse_release_without_tensorrt_llm(release: Release, compatibility: Compatibility) -> None:
    """Triton's images from 26.08 on hold no TensorRT-LLM. Raises ConfigurationError."""
    if release.tensorrt_llm is None:
        last = _newest(r for r in compatibility.releases if r.triton and r.tensorrt_llm)
        raise ConfigurationError(
            f"release {release.name} has no TensorRT-LLM image; {last.name} is the last with one",
            remedy=f"set engine.target.release to {last.name} (TensorRT-LLM {last.tensorrt_llm})",
        )


def refuse_world_of_release(release: Release, world: World, compatibility: Compatibility) -> None:
    """Engines end before 1.3.0rc21, PyTorch begins with 1.0. Raises ConfigurationError."""
    if world not in release.worlds:
        near = _newest(r for r in compatibility.releases if world in r.worlds and r.triton)
        other = " or ".join(release.worlds)
        raise ConfigurationError(
            f"TensorRT-LLM {release.tensorrt_llm} of release {release.name} is not one that "
            f"{_WORLDS[world]}",
            remedy=f"set engine.target.release to {near.name} (TensorRT-LLM {near.tensorrt_llm}), "
            f"or engine.target.world to {other}",
        )


def refuse_contradicting_compute_capability(gpu: Gpu, compute_capability: str | None) -> None:
    """A GPU has one compute capability. Raises ConfigurationError."""
    if compute_capability not in (None, gpu.compute_capability):
        raise ConfigurationError(
            f"engine.target says gpu {gpu.name} and compute_capability {compute_capability}: "
            f"{gpu.name} has {gpu.compute_capability}",
            remedy="remove engine.target.compute_capability, or correct engine.target.gpu",
        )


def refuse_gpu_of_release(target: Target, compatibility: Compatibility) -> None:
    """TensorRT-LLM and the release's CUDA must know the GPU. Raises ConfigurationError."""
    if target.compute_capability is None:
        return
    architecture = architecture_of(target.compute_capability, compatibility)
    what = f"{_gpu(target)} ({architecture.name})"
    if not architecture.trtllm:
        first = next(entry for entry in compatibility.architectures if entry.trtllm)
        raise ConfigurationError(
            f"TensorRT-LLM does not support {what}",
            remedy=f"use a GPU of compute capability {first.compute_capability} ({first.name}) or "
            "later, or the onnxruntime builder",
        )
    if target.cuda and not reaches(target.cuda, architecture.cuda):
        near = _oldest(
            release
            for release in compatibility.releases
            if target.world in release.worlds and reaches(release.cuda, architecture.cuda)
        )
        raise ConfigurationError(
            f"release {target.release} (CUDA {target.cuda}) cannot compile for {what}, which "
            f"needs CUDA {architecture.cuda}",
            remedy=f"set engine.target.release to {near.name} or later",
        )


def refuse_format_in_world(
    field: str, name: str, chosen: Format, target: Target, compatibility: Compatibility
) -> None:
    """Some formats work with engines only, some with PyTorch only. Raises ConfigurationError."""
    if target.world not in chosen.worlds:
        world = chosen.worlds[0]
        near = _newest(r for r in compatibility.releases if world in r.worlds and r.triton)
        raise ConfigurationError(
            f"engine.{field} {name} is not for TensorRT-LLM {target.tensorrt_llm} where it "
            f"{_WORLDS[target.world]}: {chosen.world_reason}",
            remedy=_instead(field, chosen, target, compatibility)
            + f", or engine.target.release to {near.name} with world {world}",
        )


def refuse_format_on_gpu(
    field: str, name: str, chosen: Format, target: Target, compatibility: Compatibility
) -> None:
    """A GPU must support a format's arithmetic. Raises ConfigurationError."""
    capability = target.compute_capability
    if capability is None or chosen.runs_on(capability, target.world):
        return
    gpus = [
        g.name for g in compatibility.gpus if chosen.runs_on(g.compute_capability, target.world)
    ]
    raise ConfigurationError(
        f"engine.{field} {name} cannot run on {_gpu(target)}: {chosen.reason}",
        remedy=_instead(field, chosen, target, compatibility)
        + f", or engine.target.gpu to one that can: {', '.join(gpus)}",
    )


def refuse_format_with_cuda(
    field: str, name: str, chosen: Format, target: Target, compatibility: Compatibility
) -> None:
    """Some kernels need a newer CUDA. Raises ConfigurationError."""
    wanted = chosen.cuda.get(target.compute_capability or "")
    if wanted and target.cuda and not reaches(target.cuda, wanted):
        near = _oldest(
            release
            for release in compatibility.releases
            if target.world in release.worlds and reaches(release.cuda, wanted)
        )
        raise ConfigurationError(
            f"engine.{field} {name} on {_gpu(target)} needs CUDA {wanted}, and release "
            f"{target.release} has {target.cuda}",
            remedy=f"set engine.target.release to {near.name} or later",
        )


def refuse_driver(
    release: Release, driver: str, compatibility: Compatibility, *, data_center: bool
) -> str | None:
    """Refuse a driver that is too old; return a warning where a data-centre GPU may still work.

    Raises ConfigurationError naming the newest release for that driver.
    """
    if release.driver is None or reaches(driver, release.driver):
        return None
    problem = (
        f"driver {driver} is older than {release.driver}, which CUDA {release.cuda} of release "
        f"{release.name} came with"
    )
    if data_center:
        return f"{problem}: the image's CUDA compatibility package must bridge the gap"
    fitting = [r for r in compatibility.releases if r.driver and reaches(driver, r.driver)]
    release_too = f", or engine.target.release to {_newest(fitting).name}" if fitting else ""
    raise ConfigurationError(
        problem, remedy=f"update the driver to {release.driver} or later{release_too}"
    )


def fields_unknown_to(triton: str, compatibility: Compatibility) -> dict[str, str]:
    """The config.pbtxt fields (dotted) newer than a Triton version, with their first version."""
    return {
        field: first
        for field, first in compatibility.config_fields.items()
        if not reaches(triton, first)
    }


def _instead(field: str, chosen: Format, target: Target, compatibility: Compatibility) -> str:
    """The nearest format that `target` can run, as the beginning of a remedy."""
    known: dict[str, Format] = {**compatibility.precisions}
    if field == "kv_cache_dtype":
        known = {**compatibility.kv_cache_dtypes}
    for name in chosen.nearest:
        capability = target.compute_capability
        possible = capability is None or known[name].runs_on(capability, target.world)
        if possible and target.world in known[name].worlds:
            return f"set engine.{field} to {name}"
    return f"remove engine.{field}" if field == "kv_cache_dtype" else f"change engine.{field}"


def _gpu(target: Target) -> str:
    capability = f"compute capability {target.compute_capability}"
    return f"{target.gpu} ({capability})" if target.gpu else capability


def _newest(releases: Iterable[Release]) -> Release:
    # The table goes from new to old.
    return next(iter(releases))


def _oldest(releases: Iterable[Release]) -> Release:
    return list(releases)[-1]
