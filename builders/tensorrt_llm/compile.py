# SPDX-License-Identifier: Apache-2.0
"""Compile a quantised checkpoint with trtllm-build: `compile.py --request R.json --result S.json`.

Runs where TensorRT-LLM up to 1.2.1 is: in the container of the target's release, or in the current
interpreter's environment. Standard library and buildlib only, so that every refusal is tested and
costs milliseconds. `--print-commands` instead of `--result` prints the exact command and runs
nothing. The contract is in builders/README.md.
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

from arguments import version_of
from build_checks import check
from build_command import TOOL, command
from build_engine import verify_engine
from build_facts import Plan, expected_quantised, inspect_source, read_quantised
from build_gpu import Gpu, find_gpus, fitting_gpus
from build_options import read_options
from build_runtime import LLM_ARGUMENTS, llm_arguments, runtime, write_llm_arguments
from build_sizes import size_engine
from build_tensors import text_generation_tensors
from build_tool import Progress, find_tool, run_tool
from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program, say
from buildlib.request import read_request
from buildlib.versions import cpu_name, versions
from folders import CHECKPOINT, ENGINE

_SCRATCH = Path(".timing")
_FRESH_CACHE = _SCRATCH / "fresh.cache"


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Compile the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: it cannot be compiled; anything else raised is a bug or the machine's.
    """
    with stages.stage("check"):
        plan = make_plan(file, only_shown=False)
        check(plan)
        target = plan.request.target
        tool = find_tool(TOOL, target.image if target else None)
        installed = _installed(plan)
        gpus = fitting_gpus(find_gpus(), plan.compute_capability)
        plan = dataclasses.replace(plan, compute_capability=gpus[0].compute_capability)
        check(plan)
        artefact.prepare([artefact.TOKENIZER])
        kept = _kept_cache(plan, gpus[0], installed)
        _SCRATCH.mkdir()
    with stages.stage("compile"):
        known = kept if kept and kept.is_file() else None
        argv = command(plan, timing_cache=(known, _FRESH_CACHE))
        say(shlex.join(argv))
        environment = _environment(gpus)
        tail = run_tool([tool, *argv[1:]], environment, Progress(plan.quantised.world_size))
    with stages.stage("verify"):
        config = verify_engine(plan, tail)
        artefact.copy_tokenizer(plan.checkpoint.folder)
        write_llm_arguments(llm_arguments(plan))
        _keep_cache(kept)
    return {
        "files": artefact.files([ENGINE, artefact.TOKENIZER, LLM_ARGUMENTS]),
        "tensors": text_generation_tensors(),
        "limits": dataclasses.asdict(plan.limits),
        "model": plan.checkpoint.described(),
        "runtime": runtime(plan),
        "versions": {**installed, **versions(()), "tensorrt_llm": str(config["version"])},
        "hardware": _hardware(gpus[0]),
        "durations_seconds": stages.durations,
        "evaluation": None,
    }


def make_plan(file: Path, *, only_shown: bool) -> Plan:
    """Return everything that decides the command line.

    `only_shown`: the stage before may not have run yet; what it will leave is taken instead.

    Raises:
        BuildError: the request, the checkpoint or the options are wrong.
    """
    request = read_request(file)
    options = read_options(request.options, version_of(request))
    checkpoint = inspect_source(request)
    source = request.source / CHECKPOINT if request.source else None
    if source is not None and (source / "config.json").is_file():
        quantised = read_quantised(source)
    elif only_shown:
        quantised = expected_quantised(request, checkpoint)
    else:
        raise BuildError(
            f"{source or 'the request'} has no quantised checkpoint to compile",
            remedy="Quantise first: `tritonctl build` does both.",
        )
    draft_len = options.number("max_draft_len") or quantised.max_draft_len
    return Plan(
        request=request,
        checkpoint=checkpoint,
        quantised=quantised,
        options=options,
        limits=size_engine(request.limits, checkpoint, options, draft_len),
        compute_capability=request.target.compute_capability if request.target else None,
    )


def _installed(plan: Plan) -> dict[str, str]:
    """Return the versions of what compiles, after comparing TensorRT-LLM's with the target's."""
    installed = {}
    for name in ("tensorrt_llm", "tensorrt", "torch"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    target = plan.request.target
    here, wanted = installed.get("tensorrt_llm"), target.tensorrt_llm if target else None
    if target and here and wanted and here != wanted:
        raise BuildError(
            f"TensorRT-LLM {here} is installed here, and release {target.release} serves with "
            f"{wanted}: engines do not load across versions",
            remedy=f"Compile in its container ({target.image}), or correct engine.target.release.",
        )
    return installed


def _environment(gpus: list[Gpu]) -> dict[str, str]:
    # The tool builds on device 0, 1, ...: let those be GPUs that the engine is for. Numbered as
    # nvidia-smi does, not fastest first.
    chosen = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus),
    }
    return chosen | dict(os.environ)


def _kept_cache(plan: Plan, gpu: Gpu, installed: dict[str, str]) -> Path | None:
    """Return the timing cache of this TensorRT and GPU; it is worth nothing to others."""
    folder, target = plan.options.timing_cache, plan.request.target
    if folder is None:
        return None
    version = (target.tensorrt if target else None) or installed.get("tensorrt") or "unknown"
    name = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return folder / f"tensorrt-{version}-{gpu.compute_capability}-{name}.cache"


def _keep_cache(kept: Path | None) -> None:
    if kept is not None and _FRESH_CACHE.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Another build may read it meanwhile: whole under a temporary name, then renamed.
        temporary = kept.with_name(f".{kept.name}.{os.getpid()}")
        shutil.copyfile(_FRESH_CACHE, temporary)
        temporary.replace(kept)
    shutil.rmtree(_SCRATCH)


def _hardware(gpu: Gpu) -> dict[str, str | None]:
    return {
        "cpu": cpu_name(),
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": gpu.driver,
    }


def shown_command(file: Path) -> list[list[str]]:
    """Return the command that the request leads to. Raises BuildError."""
    plan = make_plan(file, only_shown=True)
    check(plan)
    kept = plan.options.timing_cache
    known = kept / "<TensorRT>-<GPU>.cache" if kept else None
    return [command(plan, timing_cache=(known, _FRESH_CACHE))]


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Compile a quantised checkpoint with trtllm-build.",
            stages=("check", "compile", "verify"),
            shown=shown_command,
            check=shown_command,
        )
    )
