# SPDX-License-Identifier: Apache-2.0
"""Package a quantised checkpoint for TensorRT-LLM's PyTorch runtime: `package.py --request R.json`.

Nothing is compiled: the artefact is the checkpoint and `llm_args.json`, the arguments of
`tensorrt_llm.LLM`. Uses only the standard library and buildlib, so it runs anywhere.
builders/README.md has the contract.
"""

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from adapters import ADAPTERS, artefact_path, copy_adapters, read_adapters
from arguments import target_version
from build_facts import inspect_source
from build_runtime import LLM_ARGUMENTS, write_llm_arguments
from build_tensors import text_generation_tensors
from buildlib import artefact
from buildlib.compatibility import quant_algo
from buildlib.limits import resolve_limits
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from folders import CHECKPOINT
from llm_arguments import DEFAULT_MAX_NUM_TOKENS
from package_facts import (
    Package,
    read_package_arguments,
    read_quantisation,
    runtime_arguments,
)
from package_rules import check


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Package the checkpoint in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the runtime cannot load it. Other exceptions are bugs or machine failures.
    """
    with stages.stage("check"):
        package = make_package(file, dry_run=False)
        check(package)
        artefact.create_folders([artefact.TOKENIZER])
    with stages.stage("package"):
        copy_checkpoint(_source(package.request), CHECKPOINT)
        artefact.copy_tokenizer(package.checkpoint.folder)
        copy_adapters(package.adapters)
        arguments = runtime_arguments(package)
        write_llm_arguments(arguments)
    target = package.request.target
    return {
        "files": artefact.list_files([CHECKPOINT, artefact.TOKENIZER, LLM_ARGUMENTS, ADAPTERS]),
        "tensors": text_generation_tensors(),
        "limits": dataclasses.asdict(package.limits),
        "model": package.checkpoint.to_result(),
        "runtime": {
            "world": "pytorch",
            "kv_cache_config": arguments["kv_cache_config"],
            "enable_chunked_prefill": arguments["enable_chunked_prefill"],
            "guided_decoding_backend": arguments.get("guided_decoding_backend") or "",
            "block_size": arguments["kv_cache_config"].get("tokens_per_block", 32),
            "world_size": package.limits.tp_size * package.limits.pp_size,
            "lora_adapters": {adapter.name: artefact_path(adapter) for adapter in package.adapters},
        },
        "versions": {
            **installed_versions(()),
            "tensorrt_llm": (target.tensorrt_llm if target else "") or "",
        },
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "evaluation": None,
    }


def make_package(file: Path, *, dry_run: bool) -> Package:
    """Return everything that decides the arguments.

    `dry_run`: if the stage quantise has not run yet, use its expected result.

    Raises:
        BuildError: the request, the checkpoint or the options are wrong.
    """
    request = read_request(file)
    arguments, extra = read_package_arguments(request.options, target_version(request))
    checkpoint = inspect_source(request)
    algorithm, cache = quant_algo(request.precision), request.kv_cache_dtype
    cache_algorithm = cache.upper() if cache and cache != "auto" else None
    if not dry_run or (_source(request) / "config.json").is_file():
        algorithm, cache_algorithm = read_quantisation(_source(request))
    return Package(
        request=request,
        checkpoint=checkpoint,
        limits=resolve_limits(
            request.limits, checkpoint, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS
        ),
        quant_algo=algorithm,
        kv_cache_quant_algo=cache_algorithm,
        arguments=arguments,
        extra=extra,
        adapters=read_adapters(arguments.get("lora_config") or {}),
    )


def _source(request: BuilderRequest) -> Path:
    if request.source is None:
        raise BuildError(
            "the request names no quantised checkpoint",
            remedy="Run the build through tritonctl, which quantises first.",
        )
    return request.source / CHECKPOINT


def copy_checkpoint(source: Path, copy: Path) -> None:
    """Hard-link the checkpoint's files into the artefact, or copy them if links fail."""
    copy.mkdir()
    for path in sorted(source.rglob("*")):
        target = copy / path.relative_to(source)
        if path.is_dir():
            target.mkdir()
            continue
        try:
            # Saves gigabytes, and the files outlive the artefact of the stage quantise.
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)


def list_commands(file: Path) -> list[list[str]]:
    """Check the request and return no commands, because packaging runs none."""
    check(make_package(file, dry_run=True))
    return []


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Package a quantised checkpoint for TensorRT-LLM's PyTorch runtime.",
            stages=("check", "package"),
            list_commands=list_commands,
            check=list_commands,
        )
    )
