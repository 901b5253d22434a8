# SPDX-License-Identifier: Apache-2.0
"""TC74x: engines, backends and checkpoints against the release that is to serve them.

The facts are data, in builders/compatibility.toml. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/introduction/compatibility.md;
https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.checks.analysis.releases import reaches, releases
from tritonctl.checks.analysis.trtllm_model import Deployment
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Source, Span
from tritonctl.checks.repository import Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.formats.trtllm_engine import Engine, read_json

if TYPE_CHECKING:
    from tritonctl.project.compatibility.table import Compatibility, Release

_NUMBERS = re.compile(r"\d+")
_SAME = 3  # numbers of a version that name a release of TensorRT-LLM: 1.2.1
_OWN_NEEDS = "1.0"  # of TensorRT-LLM, python_backends/trtllm_engine
_QUANTISATION = "hf_quant_config.json"
_MIGRATE = (
    "quantise the checkpoint and serve it with the PyTorch runtime (NVIDIA's llmapi model, or "
    "engine.target.world: pytorch), or stay with release {}"
)


@error(
    "TC740 engine-of-another-release",
    summary="an engine that another TensorRT-LLM compiled than the target has",
    why="TensorRT says `Version tag does not match` when the model loads: an engine runs with "
    "exactly the version that compiled it.",
    answers=("tensorrtllm_backend#531", "tensorrtllm_backend#190", "tensorrtllm_backend#424"),
)
def _another_release(deployment: Deployment, engine: Engine) -> Iterator[Hit]:
    release = _release(deployment.repository, releases())
    if release is None or release.tensorrt_llm is None or engine.version is None:
        return
    too_old = deployment.kind == "own" and not reaches(release.tensorrt_llm, _OWN_NEEDS)
    if too_old or _brings_its_own(deployment):  # it certainly runs another one than the image's
        return
    if _name(engine.version) != _name(release.tensorrt_llm):
        fitting = [
            r.name
            for r in releases().releases
            if r.tensorrt_llm and _name(r.tensorrt_llm) == _name(engine.version)
        ]
        instead = f"serve it with release {' or '.join(fitting[:2])}, or " if fitting else ""
        yield Hit(
            f"the engine was compiled by TensorRT-LLM {engine.version}, and Triton "
            f"{deployment.repository.target.version} (release {release.name}) has "
            f"{release.tensorrt_llm}",
            f"{instead}build it again in the image of release {release.name}",
            deployment.engine_span,
        )


def _brings_its_own(deployment: Deployment) -> bool:
    return deployment.kind != "cpp" and deployment.given("EXECUTION_ENV_PATH")


def _name(version: str) -> tuple[str, ...]:
    """What must be equal: three numbers, and the number of a release candidate."""
    candidate = re.search(r"rc\d+", version)
    return (*_NUMBERS.findall(version)[:_SAME], candidate[0] if candidate else "")


def _release(repository: Repository, compatibility: Compatibility) -> Release | None:
    """The release of the target's version, if the table has exactly that."""
    version = repository.target.version
    known = {release.triton: release for release in compatibility.releases}
    return known.get(version) if version else None


def _last(compatibility: Compatibility) -> Release:
    """The last release that runs engines; the table goes from new to old."""
    return next(r for r in compatibility.releases if "engine" in r.worlds and r.triton)


def _after_the_last(repository: Repository) -> bool:
    version = repository.target.version
    if version is None:
        return False
    last = _last(releases())
    return version != last.triton and reaches(version, last.triton or "")


@error(
    "TC741 engines-gone",
    summary="a compiled TensorRT-LLM engine for a release that runs none",
    why="TensorRT-LLM removed engines, the tool that compiles them and the backend that runs "
    "them with 1.3.0rc21; no image of Triton after 26.07 has them.",
    answers=("TensorRT-LLM#15907", "TensorRT-LLM#15918"),
)
def engines_gone(deployment: Deployment, repository: Repository) -> Iterator[Hit]:
    if not _after_the_last(repository) or _brings_its_own(deployment):
        return
    last, version = _last(releases()), repository.target.version
    if deployment.kind in ("cpp", "python"):
        what = "the backend tensorrtllm" if deployment.kind == "cpp" else "TensorRT-LLM's executor"
        yield Hit(
            f"Triton {version} no longer has {what}: release {last.name} was the last with it",
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
            *arguments.at("backend"),
        )


@advice(
    "TC742 last-with-engines",
    summary="a model of NVIDIA's tensorrt_llm template in the last release that has it",
    why="The next upgrade of Triton is a change of the runtime: engines cannot be taken along.",
    answers=("TensorRT-LLM#11723",),
)
def last_with_engines(deployment: Deployment, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if version is None or deployment.kind not in ("cpp", "python"):
        return
    last = _last(releases())
    if version == last.triton:
        yield Hit(
            f"release {last.name} is the last that runs engines by NVIDIA's tensorrt_llm model",
            _MIGRATE.format(last.name),
            deployment.config.span("backend"),
        )


@warning(
    "TC743 no-trtllm-image",
    summary="a model over TensorRT-LLM's PyTorch runtime for a release without an image of it",
    why="The plain images of Triton have no tensorrt_llm: model.py fails to import it.",
)
def no_image(deployment: Deployment, repository: Repository) -> Iterator[Hit]:
    pytorch = deployment.kind == "llmapi" or deployment.text("world") == "pytorch"
    if _after_the_last(repository) and pytorch and not _brings_its_own(deployment):
        last = _last(releases())
        yield Hit(
            f"NVIDIA built no image with TensorRT-LLM for Triton {repository.target.version}",
            f"serve it with release {last.name}, or install tensorrt_llm into an image of your own",
            deployment.config.span("backend"),
        )


@error(
    "TC744 quantisation-without-kernels",
    summary="a checkpoint quantised in a way that TensorRT-LLM's PyTorch runtime cannot run",
    why="The runtime says `unsupported quant mode` when the model loads.",
)
def unsupported_quantisation(deployment: Deployment) -> Iterator[Hit]:
    folder = _checkpoint(deployment)
    if folder is None:
        return
    read = read_json(folder / _QUANTISATION)
    given = read.get("quantization") if isinstance(read, dict) else None
    source, span = _named_in(deployment)
    for field, formats in (
        ("quant_algo", releases().precisions),
        ("kv_cache_quant_algo", releases().kv_cache_dtypes),
    ):
        value = given.get(field) if isinstance(given, dict) else None
        known = [one for one in formats.values() if one.quant_algo == value and value]
        if known and all("pytorch" not in one.worlds for one in known):
            yield Hit(
                f"the checkpoint is quantised as {value}: {known[0].world_reason}",
                "quantise it again as one of "
                + ", ".join(n for n, one in formats.items() if "pytorch" in one.worlds),
                span,
                source,
            )


def _checkpoint(deployment: Deployment) -> Path | None:
    """The checkpoint of a model of the PyTorch runtime, where it can be seen from here."""
    if deployment.kind == "own" and deployment.text("world") == "pytorch":
        return next(deployment.version_file("checkpoint"), None)
    arguments = deployment.arguments
    pytorch = arguments is not None and arguments.text("backend") not in ("tensorrt", "trt")
    path = arguments.text("model") if arguments and pytorch else None
    for folder in deployment.places(path) if path else ():
        if os.path.isfile(folder / _QUANTISATION):  # noqa: PTH113 - never raises
            return folder
    return None


def _named_in(deployment: Deployment) -> tuple[Source | None, Span]:
    """Where the checkpoint is named."""
    if deployment.kind == "llmapi" and deployment.arguments:
        return deployment.arguments.source, deployment.arguments.place("model")
    return None, deployment.engine_span


@error(
    "TC745 kv-cache-type",
    summary="a type of the KV cache that TensorRT-LLM's runtime cannot be given",
    why="The runtime refuses its KvCacheConfig, and the model does not load.",
)
def kv_cache_type(deployment: Deployment) -> Iterator[Hit]:
    if deployment.kind == "llmapi" and (arguments := deployment.arguments):
        given = arguments.text("kv_cache_config", "dtype")
        known = releases().kv_cache_dtypes.get((given or "").lower())
        if known and "pytorch" not in known.worlds and arguments.text("backend") != "tensorrt":
            yield Hit(
                f"kv_cache_config.dtype is {given}: {known.world_reason}",
                "write auto, fp8 or nvfp4",
                *arguments.at("kv_cache_config", "dtype"),
            )
    elif deployment.kind == "own" and deployment.text("world") == "engine":
        given = deployment.settings("kv_cache_config").get("dtype", "auto")
        if given != "auto":
            yield Hit(
                f"kv_cache_config says dtype {given}, and an engine's was fixed when it was "
                "compiled",
                "leave dtype out; engine.kv_cache_dtype is for the builder",
                deployment.span("kv_cache_config"),
            )
