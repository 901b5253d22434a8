# SPDX-License-Identifier: Apache-2.0
"""Package a quantised checkpoint for TensorRT-LLM's PyTorch runtime: `package.py --request R.json`.

Nothing is compiled: the artefact is the checkpoint and `llm_args.json`, the arguments of
`tensorrt_llm.LLM`. Standard library and buildlib only, so it runs anywhere. The contract is in
builders/README.md.
"""

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from adapters import ADAPTERS, copy_adapters, place, read_adapters
from arguments import version_of
from build_facts import inspect_source
from build_runtime import LLM_ARGUMENTS, write_llm_arguments
from build_tensors import text_generation_tensors
from buildlib import artefact
from buildlib.compatibility import quant_algo
from buildlib.limits import resolve_limits
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from folders import CHECKPOINT
from llm_arguments import DEFAULT_MAX_NUM_TOKENS
from package_facts import (
    Package,
    read_given,
    read_quantisation,
    served_arguments,
)
from package_rules import check


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Package the checkpoint in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the runtime could not load it; anything else raised is a bug or the machine's.
    """
    with stages.stage("check"):
        package = make_package(file, only_shown=False)
        check(package)
        artefact.prepare([artefact.TOKENIZER])
    with stages.stage("package"):
        copy_checkpoint(_source(package.request), CHECKPOINT)
        artefact.copy_tokenizer(package.checkpoint.folder)
        copy_adapters(package.adapters)
        arguments = served_arguments(package)
        write_llm_arguments(arguments)
    target = package.request.target
    return {
        "files": artefact.files([CHECKPOINT, artefact.TOKENIZER, LLM_ARGUMENTS, ADAPTERS]),
        "tensors": text_generation_tensors(),
        "limits": dataclasses.asdict(package.limits),
        "model": package.checkpoint.described(),
        "runtime": {
            "world": "pytorch",
            "kv_cache_config": arguments["kv_cache_config"],
            "enable_chunked_prefill": arguments["enable_chunked_prefill"],
            "guided_decoding_backend": arguments.get("guided_decoding_backend") or "",
            "block_size": arguments["kv_cache_config"].get("tokens_per_block", 32),
            "world_size": package.limits.tp_size * package.limits.pp_size,
            "lora_adapters": {adapter.name: place(adapter) for adapter in package.adapters},
        },
        "versions": {**versions(()), "tensorrt_llm": (target.tensorrt_llm if target else "") or ""},
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "evaluation": None,
    }


def make_package(file: Path, *, only_shown: bool) -> Package:
    """Return everything that decides the arguments.

    `only_shown`: the stage before may not have run yet; what it will leave is taken instead.

    Raises:
        BuildError: the request, the checkpoint or the options are wrong.
    """
    request = read_request(file)
    given, extra = read_given(request.options, version_of(request))
    checkpoint = inspect_source(request)
    algorithm, cache = quant_algo(request.precision), request.kv_cache_dtype
    cache_algorithm = cache.upper() if cache and cache != "auto" else None
    if not only_shown or (_source(request) / "config.json").is_file():
        algorithm, cache_algorithm = read_quantisation(_source(request))
    return Package(
        request=request,
        checkpoint=checkpoint,
        limits=resolve_limits(
            request.limits, checkpoint, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS
        ),
        quant_algo=algorithm,
        kv_cache_quant_algo=cache_algorithm,
        given=given,
        extra=extra,
        adapters=read_adapters(given.get("lora_config") or {}),
    )


def _source(request: Request) -> Path:
    if request.source is None:
        raise BuildError(
            "the request names no quantised checkpoint",
            remedy="Run the build through tritonctl, which quantises first.",
        )
    return request.source / CHECKPOINT


def copy_checkpoint(source: Path, copy: Path) -> None:
    """Link the checkpoint's files into the artefact; copy them where links are not possible."""
    copy.mkdir()
    for path in sorted(source.rglob("*")):
        target = copy / path.relative_to(source)
        if path.is_dir():
            target.mkdir()
            continue
        try:
            # Gigabytes, and the artefact of the stage before may go without taking them along.
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)


def shown_commands(file: Path) -> list[list[str]]:
    """Return no command, since none would be run, but refuse what the build would."""
    check(make_package(file, only_shown=True))
    return []


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Package a quantised checkpoint for TensorRT-LLM's PyTorch runtime.",
            stages=("check", "package"),
            shown=shown_commands,
            check=shown_commands,
        )
    )
