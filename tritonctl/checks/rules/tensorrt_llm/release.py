# SPDX-License-Identifier: Apache-2.0
"""TC74x: engines, backends and checkpoints that do not match the target release.

The facts are in builders/compatibility.toml. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/introduction/compatibility.md;
https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.checks.analysis.releases import meets_minimum, releases
from tritonctl.checks.analysis.trtllm_model import TrtllmDeployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.checks.source_span import SourceText, Span
from tritonctl.formats.trtllm_engine import CompiledEngine, read_json

if TYPE_CHECKING:
    from tritonctl.project.compatibility.table import Compatibility, TritonRelease

_NUMBERS = re.compile(r"\d+")
_COMPARED_NUMBERS = 3  # numbers of a version that identify a release of TensorRT-LLM: 1.2.1
_MIN_TENSORRT_LLM = "1.0"  # minimum TensorRT-LLM of python_backends/trtllm_engine
_QUANTISATION = "hf_quant_config.json"
_MIGRATE = (
    "quantise the checkpoint and serve it with the PyTorch runtime (NVIDIA's llmapi model, or "
    "engine.target.world: pytorch), or stay with release {}"
)


@error(
    "TC740 engine-of-another-release",
    summary="an engine compiled by another TensorRT-LLM than the target's",
    reason="TensorRT says `Version tag does not match` when the model loads: an engine runs with "
    "exactly the version that compiled it.",
    answers=("tensorrtllm_backend#531", "tensorrtllm_backend#190", "tensorrtllm_backend#424"),
    shows="elsewhere",
)
def _another_release(deployment: TrtllmDeployment, engine: CompiledEngine) -> Iterator[Hit]:
    release = _target_release(deployment.repository, releases())
    if release is None or release.tensorrt_llm is None or engine.version is None:
        return
    too_old = deployment.kind == "own" and not meets_minimum(
        release.tensorrt_llm, _MIN_TENSORRT_LLM
    )
    if too_old or _has_own_environment(deployment):  # it does not run the image's TensorRT-LLM
        return
    if _version_key(engine.version) != _version_key(release.tensorrt_llm):
        matching_releases = [
            r.name
            for r in releases().releases
            if r.tensorrt_llm and _version_key(r.tensorrt_llm) == _version_key(engine.version)
        ]
        alternative = (
            f"serve it with release {' or '.join(matching_releases[:2])}, or "
            if matching_releases
            else ""
        )
        yield Hit(
            f"the engine was compiled by TensorRT-LLM {engine.version}, and Triton "
            f"{deployment.repository.target.version} (release {release.name}) has "
            f"{release.tensorrt_llm}",
            f"{alternative}rebuild it in the image of release {release.name}",
            deployment.engine_span,
        )


def _has_own_environment(deployment: TrtllmDeployment) -> bool:
    return deployment.kind != "cpp" and deployment.has_parameter("EXECUTION_ENV_PATH")


def _version_key(version: str) -> tuple[str, ...]:
    """Return the parts of a version that must match: three numbers and the release candidate."""
    candidate = re.search(r"rc\d+", version)
    return (*_NUMBERS.findall(version)[:_COMPARED_NUMBERS], candidate[0] if candidate else "")


def _target_release(repository: Repository, compatibility: Compatibility) -> TritonRelease | None:
    """Return the release of the target's version; None if the table does not have it."""
    version = repository.target.version
    release_by_triton = {release.triton: release for release in compatibility.releases}
    return release_by_triton.get(version) if version else None


def _last_engine_release(compatibility: Compatibility) -> TritonRelease:
    """Return the last release that runs engines; the table is sorted from new to old."""
    return next(r for r in compatibility.releases if "engine" in r.worlds and r.triton)


def _is_after_engines(repository: Repository) -> bool:
    version = repository.target.version
    if version is None:
        return False
    last = _last_engine_release(releases())
    return version != last.triton and meets_minimum(version, last.triton or "")


@error(
    "TC741 engines-gone",
    summary="a compiled TensorRT-LLM engine for a release without engine support",
    reason="TensorRT-LLM removed engines, the tool that compiles them and the backend that runs "
    "them with 1.3.0rc21; no image of Triton after 26.07 has them.",
    answers=("TensorRT-LLM#15907", "TensorRT-LLM#15918"),
    shows="elsewhere",
)
def engines_gone(deployment: TrtllmDeployment, repository: Repository) -> Iterator[Hit]:
    if not _is_after_engines(repository) or _has_own_environment(deployment):
        return
    last, version = _last_engine_release(releases()), repository.target.version
    if deployment.kind in ("cpp", "python"):
        component = (
            "the backend tensorrtllm" if deployment.kind == "cpp" else "TensorRT-LLM's executor"
        )
        yield Hit(
            f"Triton {version} no longer has {component}: release {last.name} was the last with it",
            _MIGRATE.format(last.name),
            deployment.config.span("backend"),
        )
    elif deployment.kind == "own" and deployment.text("world") == "engine":
        yield Hit(
            f"compiled engines do not run in Triton {version}: release {last.name} was the last",
            _MIGRATE.format(last.name),
            deployment.span("world"),
        )
    elif (arguments := deployment.arguments) and arguments.text("backend") in ("tensorrt", "trt"):
        yield Hit(
            f"Triton {version} no longer has `backend: tensorrt`: {last.name} was the last with it",
            "write `backend: pytorch`, and a checkpoint for `model`",
            *arguments.value_location("backend"),
        )


@advice(
    "TC742 last-with-engines",
    summary="a model of NVIDIA's tensorrt_llm template in the last release that has it",
    reason="The next upgrade of Triton requires another runtime, which cannot run engines.",
    answers=("TensorRT-LLM#11723",),
    shows="elsewhere",
)
def last_with_engines(deployment: TrtllmDeployment, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if version is None or deployment.kind not in ("cpp", "python"):
        return
    last = _last_engine_release(releases())
    if version == last.triton:
        yield Hit(
            f"release {last.name} is the last that runs engines by NVIDIA's tensorrt_llm model",
            _MIGRATE.format(last.name),
            deployment.config.span("backend"),
        )


@warning(
    "TC743 no-trtllm-image",
    summary="a model for TensorRT-LLM's PyTorch runtime on a release without an image of it",
    reason="The plain images of Triton have no tensorrt_llm: model.py fails to import it.",
    shows="elsewhere",
)
def no_image(deployment: TrtllmDeployment, repository: Repository) -> Iterator[Hit]:
    pytorch = deployment.kind == "llmapi" or deployment.text("world") == "pytorch"
    if _is_after_engines(repository) and pytorch and not _has_own_environment(deployment):
        last = _last_engine_release(releases())
        yield Hit(
            f"NVIDIA built no image with TensorRT-LLM for Triton {repository.target.version}",
            f"serve it with release {last.name}, or install tensorrt_llm into a custom image",
            deployment.config.span("backend"),
        )


@error(
    "TC744 quantisation-without-kernels",
    summary="a checkpoint quantised in a way that TensorRT-LLM's PyTorch runtime cannot run",
    reason="The runtime says `unsupported quant mode` when the model loads.",
    shows="elsewhere",
)
def unsupported_quantisation(deployment: TrtllmDeployment) -> Iterator[Hit]:
    folder = _checkpoint(deployment)
    if folder is None:
        return
    record = read_json(folder / _QUANTISATION)
    quantisation = record.get("quantization") if isinstance(record, dict) else None
    source, span = _checkpoint_location(deployment)
    for field, formats in (
        ("quant_algo", releases().precisions),
        ("kv_cache_quant_algo", releases().kv_cache_dtypes),
    ):
        value = quantisation.get(field) if isinstance(quantisation, dict) else None
        matches = [
            precision for precision in formats.values() if precision.quant_algo == value and value
        ]
        if matches and all("pytorch" not in precision.worlds for precision in matches):
            yield Hit(
                f"the checkpoint is quantised as {value}: {matches[0].world_reason}",
                "quantise it again as one of "
                + ", ".join(n for n, precision in formats.items() if "pytorch" in precision.worlds),
                span,
                source,
            )


def _checkpoint(deployment: TrtllmDeployment) -> Path | None:
    """Return the checkpoint of a PyTorch runtime model; None if not readable on this machine."""
    if deployment.kind == "own" and deployment.text("world") == "pytorch":
        return next(deployment.served_files("checkpoint"), None)
    arguments = deployment.arguments
    pytorch = arguments is not None and arguments.text("backend") not in ("tensorrt", "trt")
    path = arguments.text("model") if arguments and pytorch else None
    for folder in deployment.local_paths(path) if path else ():
        if os.path.isfile(folder / _QUANTISATION):  # noqa: PTH113 - never raises
            return folder
    return None


def _checkpoint_location(deployment: TrtllmDeployment) -> tuple[SourceText | None, Span]:
    """Return the source and span of the checkpoint's path."""
    if deployment.kind == "llmapi" and deployment.arguments:
        return deployment.arguments.source, deployment.arguments.value_span("model")
    return None, deployment.engine_span


@error(
    "TC745 kv-cache-type",
    summary="a KV cache type that TensorRT-LLM's runtime does not accept",
    reason="The runtime refuses the KvCacheConfig, and the model does not load.",
    shows="elsewhere",
)
def kv_cache_type(deployment: TrtllmDeployment) -> Iterator[Hit]:
    if deployment.kind == "llmapi" and (arguments := deployment.arguments):
        dtype = arguments.text("kv_cache_config", "dtype")
        cache_type = releases().kv_cache_dtypes.get((dtype or "").lower())
        if (
            cache_type
            and "pytorch" not in cache_type.worlds
            and arguments.text("backend") != "tensorrt"
        ):
            yield Hit(
                f"kv_cache_config.dtype is {dtype}: {cache_type.world_reason}",
                "write auto, fp8 or nvfp4",
                *arguments.value_location("kv_cache_config", "dtype"),
            )
    elif deployment.kind == "own" and deployment.text("world") == "engine":
        dtype = deployment.settings("kv_cache_config").get("dtype", "auto")
        if dtype != "auto":
            yield Hit(
                f"kv_cache_config says dtype {dtype}, and an engine's was fixed when it was "
                "compiled",
                "remove dtype; the builder reads engine.kv_cache_dtype",
                deployment.span("kv_cache_config"),
            )
