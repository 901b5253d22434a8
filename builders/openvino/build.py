# SPDX-License-Identifier: Apache-2.0
"""Build an OpenVINO engine: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder. Only the result is written outside it.
builders/README.md has the contract (request, result, progress lines, exit codes).
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from buildlib import artefact
from buildlib.checkpoint import DecoderCheckpoint, SupportedModels, inspect_checkpoint
from buildlib.compare import require_min_exact_match
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.program import Stages, print_line, run_program
from buildlib.prompts import load_tokenizer, read_prompts
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from folders import FOLDERS, WEIGHTS, write_companions
from options import OpenvinoOptions, read_options
from precisions import BLOCK_SIZE, remedy_for, run_properties
from support import (
    ARCHITECTURES,
    DEFAULT_MAX_NUM_TOKENS,
    REFUSAL_REASONS,
    REFUSED_SETTINGS,
    ROPE_TYPES,
)

_SUPPORTED = SupportedModels(
    "openvino", ARCHITECTURES, ROPE_TYPES, REFUSAL_REASONS, REFUSED_SETTINGS
)
_PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "nncf", "torch", "transformers")


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    request, options, checkpoint, limits = check_request(file)
    tokenizer = load_tokenizer(checkpoint.folder)
    prompts = read_prompts(request.evaluation, tokenizer, limits.max_seq_len)
    artefact.create_folders(FOLDERS)
    with stages.stage("load"):
        # Imported here, because a checkpoint with a problem must not cost seconds.
        import convert
        from buildlib.reference import load_model

        model = load_model(request)
    with stages.stage("convert"):
        convert.export_model(model)
        del model
    with stages.stage("compress"):
        tensors = convert.compress_model(request.precision, options)
        write_companions(checkpoint)
        artefact.copy_tokenizer(checkpoint.folder)
    comparison = None
    if prompts:
        with stages.stage("evaluate"):
            import evaluate

            # Loaded again, because the export patches its model.
            model = load_model(request, attention="eager")
            comparison = evaluate.evaluate(model, request, checkpoint, limits, prompts, tokenizer)
            del model
            equal = comparison.prompts - comparison.diverged
            print_line(f"{equal} of {comparison.prompts} answers are equal")
            require_min_exact_match(comparison, request, remedy=remedy_for(request.precision))
    return {
        "files": artefact.list_files(FOLDERS),
        "tensors": tensors,
        "limits": dataclasses.asdict(limits),
        "model": checkpoint.to_result(),
        "runtime": {
            "properties": run_properties(request.precision, WEIGHTS),
            "block_size": BLOCK_SIZE,
        },
        "versions": installed_versions(_PACKAGES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "evaluation": dataclasses.asdict(comparison) if comparison else None,
    }


def check_request(
    file: Path,
) -> tuple[BuilderRequest, OpenvinoOptions, DecoderCheckpoint, ResolvedLimits]:
    """Read and check a request with the standard library only. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    checkpoint = inspect_checkpoint(
        request.checkpoint, _SUPPORTED, allow_pickle=request.allow_pickle
    )
    limits = resolve_limits(
        request.limits, checkpoint, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS
    )
    return request, options, checkpoint, limits


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build an OpenVINO engine from a checkpoint.",
            stages=("load", "convert", "compress", "evaluate"),
            check=check_request,
        )
    )
