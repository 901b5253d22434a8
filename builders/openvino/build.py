# SPDX-License-Identifier: Apache-2.0
"""Build an OpenVINO engine: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from buildlib import artefact
from buildlib.checkpoint import Checkpoint, Supported, inspect_checkpoint
from buildlib.compare import require
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.program import Stages, run_program, say
from buildlib.prompts import load_tokenizer, read_prompts
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from folders import FOLDERS, WEIGHTS, write_companions
from options import Options, read_options
from precisions import BLOCK_SIZE, higher_than, run_properties
from support import ARCHITECTURES, DEFAULT_MAX_NUM_TOKENS, REFUSED, ROPE_TYPES

_SUPPORTED = Supported("openvino", ARCHITECTURES, ROPE_TYPES, REFUSED)
_PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "nncf", "torch", "transformers")


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    request, options, checkpoint, limits = checked(file)
    tokenizer = load_tokenizer(checkpoint.folder)
    prompts = read_prompts(request.evaluation, tokenizer, limits.max_seq_len)
    artefact.prepare(FOLDERS)
    with stages.stage("load"):
        # Seconds that a checkpoint with a problem must not cost.
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
    outcome = None
    if prompts:
        with stages.stage("evaluate"):
            import evaluate

            # Loaded again: exporting patches the model it is given.
            model = load_model(request)
            outcome = evaluate.evaluate(model, request, checkpoint, limits, prompts, tokenizer)
            del model
            say(f"{outcome.prompts - outcome.diverged} of {outcome.prompts} answers are equal")
            require(outcome, request, remedy=higher_than(request.precision))
    return {
        "files": artefact.files(FOLDERS),
        "tensors": tensors,
        "limits": dataclasses.asdict(limits),
        "model": checkpoint.described(),
        "runtime": {
            "properties": run_properties(request.precision, WEIGHTS),
            "block_size": BLOCK_SIZE,
        },
        "versions": versions(_PACKAGES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "evaluation": dataclasses.asdict(outcome) if outcome else None,
    }


def checked(file: Path) -> tuple[Request, Options, Checkpoint, ResolvedLimits]:
    """Return what the request means, read by the standard library alone. Raises BuildError."""
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
            check=checked,
        )
    )
