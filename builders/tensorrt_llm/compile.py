# SPDX-License-Identifier: Apache-2.0
"""Compile a quantised checkpoint with trtllm-build: `compile.py --request R.json --result S.json`.

Needs TensorRT-LLM up to 1.2.1: runs in the container of the target's release, or in the current
interpreter's environment. Uses only the standard library and buildlib, so that tests cover every
refusal, which costs milliseconds. `--print-commands` instead of `--result` prints the exact command
and runs nothing. builders/README.md has the contract.
"""

import dataclasses
import importlib.metadata
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from arguments import target_version
from build_checks import check
from build_command import TOOL, trtllm_build_command
from build_engine import verify_engine
from build_facts import TrtllmBuildPlan, expected_quantised, inspect_source, read_quantised
from build_gpu import NvidiaGpu, find_gpus, matching_gpus
from build_options import read_options
from build_runtime import LLM_ARGUMENTS, llm_arguments, runtime_object, write_llm_arguments
from build_sizes import size_engine
from build_tensors import text_generation_tensors
from build_tool import ToolProgress, find_tool, run_tool
from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, print_line, run_program
from buildlib.request import read_request
from buildlib.versions import cpu_name, installed_versions
from folders import CHECKPOINT, ENGINE

_SCRATCH = Path(".timing")
_FRESH_CACHE = _SCRATCH / "fresh.cache"


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Compile the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    with stages.stage("check"):
        plan = make_plan(file, dry_run=False)
        check(plan)
        target = plan.request.target
        tool = find_tool(TOOL, target.image if target else None)
        installed = _installed_libraries(plan)
        gpus = matching_gpus(find_gpus(), plan.compute_capability)
        plan = dataclasses.replace(plan, compute_capability=gpus[0].compute_capability)
        check(plan)
        artefact.create_folders([artefact.TOKENIZER])
        cache_file = _timing_cache_file(plan, gpus[0], installed)
        _SCRATCH.mkdir()
    with stages.stage("compile"):
        input_cache = cache_file if cache_file and cache_file.is_file() else None
        argv = trtllm_build_command(plan, timing_cache=(input_cache, _FRESH_CACHE))
        print_line(shlex.join(argv))
        environment = _environment(gpus)
        tail = run_tool([tool, *argv[1:]], environment, ToolProgress(plan.quantised.world_size))
    with stages.stage("verify"):
        config = verify_engine(plan, tail)
        artefact.copy_tokenizer(plan.checkpoint.folder)
        write_llm_arguments(llm_arguments(plan))
        _store_timing_cache(cache_file)
    return {
        "files": artefact.list_files([ENGINE, artefact.TOKENIZER, LLM_ARGUMENTS]),
        "tensors": text_generation_tensors(),
        "limits": dataclasses.asdict(plan.limits),
        "model": plan.checkpoint.to_result(),
        "runtime": runtime_object(plan),
        "versions": {**installed, **installed_versions(()), "tensorrt_llm": str(config["version"])},
        "hardware": _hardware(gpus[0]),
        "durations_seconds": stages.durations,
        "evaluation": None,
    }


def make_plan(file: Path, *, dry_run: bool) -> TrtllmBuildPlan:
    """Return everything that decides the command line.

    `dry_run`: if the stage quantise has not run yet, use its expected result.

    Raises:
        BuildError: the request, the checkpoint or the options are wrong.
    """
    request = read_request(file)
    options = read_options(request.options, target_version(request))
    checkpoint = inspect_source(request)
    source = request.source / CHECKPOINT if request.source else None
    if source is not None and (source / "config.json").is_file():
        quantised = read_quantised(source)
    elif dry_run:
        quantised = expected_quantised(request, checkpoint)
    else:
        raise BuildError(
            f"{source or 'the request'} has no quantised checkpoint to compile",
            remedy="Quantise first: `tritonctl build` does both.",
        )
    draft_len = options.number("max_draft_len") or quantised.max_draft_len
    return TrtllmBuildPlan(
        request=request,
        checkpoint=checkpoint,
        quantised=quantised,
        options=options,
        limits=size_engine(request.limits, checkpoint, options, draft_len),
        compute_capability=request.target.compute_capability if request.target else None,
    )


def _installed_libraries(plan: TrtllmBuildPlan) -> dict[str, str]:
    """Return the installed versions, after comparing TensorRT-LLM's with the target's."""
    installed = {}
    for name in ("tensorrt_llm", "tensorrt", "torch"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    target = plan.request.target
    installed_version, required_version = (
        installed.get("tensorrt_llm"),
        target.tensorrt_llm if target else None,
    )
    if target and installed_version and required_version and installed_version != required_version:
        raise BuildError(
            f"TensorRT-LLM {installed_version} is installed here, and release {target.release} "
            f"serves with {required_version}: engines do not load across versions",
            remedy=f"Compile in its container ({target.image}), or correct engine.target.release.",
        )
    return installed


def _environment(gpus: list[NvidiaGpu]) -> dict[str, str]:
    # The tool builds on devices 0, 1, ...: make these the matching GPUs, in nvidia-smi's order and
    # not fastest first.
    defaults = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus),
    }
    return defaults | dict(os.environ)


def _timing_cache_file(
    plan: TrtllmBuildPlan, gpu: NvidiaGpu, installed: dict[str, str]
) -> Path | None:
    """Return the file of the timing cache for this TensorRT and GPU."""
    folder, target = plan.options.timing_cache, plan.request.target
    if folder is None:
        return None
    version = (target.tensorrt if target else None) or installed.get("tensorrt") or "unknown"
    name = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return folder / f"tensorrt-{version}-{gpu.compute_capability}-{name}.cache"


def _store_timing_cache(cache_file: Path | None) -> None:
    if cache_file is not None and _FRESH_CACHE.is_file():
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        # Another build may read it meanwhile, so it is replaced atomically.
        temporary = cache_file.with_name(f".{cache_file.name}.{os.getpid()}")
        shutil.copyfile(_FRESH_CACHE, temporary)
        temporary.replace(cache_file)
    shutil.rmtree(_SCRATCH)


def _hardware(gpu: NvidiaGpu) -> dict[str, str | None]:
    return {
        "cpu": cpu_name(),
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": gpu.driver,
    }


def list_commands(file: Path) -> list[list[str]]:
    """Return the command of the request. Raises BuildError."""
    plan = make_plan(file, dry_run=True)
    check(plan)
    cache_folder = plan.options.timing_cache
    input_cache = cache_folder / "<TensorRT>-<GPU>.cache" if cache_folder else None
    return [trtllm_build_command(plan, timing_cache=(input_cache, _FRESH_CACHE))]


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Compile a quantised checkpoint with trtllm-build.",
            stages=("check", "compile", "verify"),
            list_commands=list_commands,
            check=list_commands,
        )
    )
