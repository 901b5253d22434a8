# SPDX-License-Identifier: Apache-2.0
"""Quantise a checkpoint for TensorRT-LLM: `python quantise.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md. The model is
evaluated before it is exported, because exporting packs the weights in place.
"""

import dataclasses
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from buildlib import artefact
from buildlib.checkpoint import Checkpoint, Supported, inspect_checkpoint
from buildlib.compare import require
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.problems import BuildError
from buildlib.program import Stages, run_program, say
from buildlib.prompts import Prompt, load_tokenizer, read_prompts
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from calibration import read_samples
from choices import BUILDER, Choices, read_choices
from folders import CHECKPOINT, FOLDERS
from llm_arguments import DEFAULT_MAX_NUM_TOKENS
from recipes import ARCHITECTURES, RECIPES, ROPE_TYPES

_SUPPORTED = Supported(BUILDER, tuple(ARCHITECTURES), ROPE_TYPES)
_PACKAGES = ("nvidia-modelopt", "safetensors", "tokenizers", "torch", "transformers")
# Older ones write their configurations another way, and read other places of a model.
_MODELOPT = (0, 47)


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Quantise the checkpoint into the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    request, checkpoint, choices, limits = checked(file)
    _require_modelopt()
    packages = versions(_PACKAGES)
    tokenizer = load_tokenizer(checkpoint.folder)
    prompts = read_prompts(request.evaluation, tokenizer, limits.max_seq_len)
    samples = _samples(request, choices, tokenizer)
    with stages.stage("load"):
        # Seconds that a checkpoint with a problem must not cost.
        import quantisation

        quantisation.require_device(request)
        artefact.prepare(FOLDERS)
        model = quantisation.load_original(request, choices)
    with stages.stage("calibrate"):
        model = quantisation.quantise(model, choices, samples)
    evaluation = None
    if prompts:
        with stages.stage("evaluate"), quantisation.as_built(model, choices) as built:
            evaluation = _evaluate(request, built, checkpoint, prompts, tokenizer)
    _write(request, choices, checkpoint, model, stages)
    return {
        **_described(checkpoint, limits, choices, len(samples)),
        "versions": packages,
        "evaluation": evaluation,
        "durations_seconds": stages.durations,
    }


def checked(file: Path) -> tuple[Request, Checkpoint, Choices, ResolvedLimits]:
    """Return what the request means, read by the standard library alone. Raises BuildError."""
    request = read_request(file)
    checkpoint = inspect_checkpoint(
        request.checkpoint, _SUPPORTED, allow_pickle=request.allow_pickle
    )
    choices = read_choices(request, checkpoint)
    limits = resolve_limits(
        request.limits, checkpoint, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS
    )
    return request, checkpoint, choices, limits


def _require_modelopt() -> None:
    version = importlib.metadata.version("nvidia-modelopt")
    if tuple(int(part) for part in version.split(".")[:2]) < _MODELOPT:
        least = ".".join(map(str, _MODELOPT))
        raise BuildError(
            f"the environment has nvidia-modelopt {version}, and this stage needs {least} or newer",
            remedy="Use the runner venv, which makes an environment with the right one.",
        )


def _samples(request: Request, choices: Choices, tokenizer: Any) -> list[list[int]]:
    if choices.calibration is None:
        return []
    asked = request.calibration.samples if request.calibration else choices.calibration.samples
    if asked > choices.calibration.samples:
        say(
            f"AWQ calibrates on {choices.calibration.samples} of the {asked} samples asked for: "
            "it searches a scale for every layer on each, and gains nothing from more"
        )
    return read_samples(choices.calibration, tokenizer)


def _evaluate(
    request: Request,
    model: Any,
    checkpoint: Checkpoint,
    prompts: list[Prompt],
    tokenizer: Any,
) -> dict[str, Any]:
    from buildlib.reference import load_model
    from evaluation import evaluate

    reference = load_model(request).to(model.device)
    outcome = evaluate(reference, model, checkpoint, prompts, tokenizer)
    say(
        f"{outcome.prompts - outcome.diverged} of {outcome.prompts} answers are equal; "
        f"mean KL divergence {outcome.mean_kl_divergence:.3g} nats per token, perplexity "
        f"{outcome.perplexity:.4f} (the checkpoint's own: {outcome.reference_perplexity:.4f})"
    )
    higher = RECIPES[request.precision].higher
    require(
        outcome,
        request,
        remedy=f"Set engine.precision to {higher}, give engine.calibration.data more like what "
        "the model is asked, or accept less with a lower min_exact_match.",
    )
    return dataclasses.asdict(outcome)


def _write(
    request: Request, choices: Choices, checkpoint: Checkpoint, model: Any, stages: Stages
) -> None:
    from checks import verify_export
    from export import export

    with stages.stage("export"):
        export(model, checkpoint, choices)
        artefact.let_others_read(CHECKPOINT)
        artefact.copy_tokenizer(checkpoint.folder)
    with stages.stage("verify"):
        tensors, worst = verify_export(CHECKPOINT, checkpoint.folder, request.precision, choices)
        share = f"; the largest rounding error is {worst:.0%} of what the format allows"
        say(f"{tensors} tensors are what they must be{share if worst else ''}")


def _described(
    checkpoint: Checkpoint, limits: ResolvedLimits, choices: Choices, samples: int
) -> dict[str, Any]:
    from quantisation import hardware

    algorithm = choices.recipe.quant_algo
    return {
        "files": artefact.files(FOLDERS),
        # No engine yet: what it takes and gives is known once it is compiled or packaged.
        "tensors": {"inputs": [], "outputs": []},
        "limits": dataclasses.asdict(limits),
        "model": checkpoint.described(),
        "runtime": {
            "world": choices.world,
            "dtype": choices.dtype,
            "quant_algo": algorithm,
            "kv_cache_dtype": choices.kv_cache_dtype,
            "calibration_samples": samples,
        },
        "hardware": {"cpu": cpu_name(), **hardware()},
    }


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Quantise a checkpoint for TensorRT-LLM.",
            stages=("load", "calibrate", "evaluate", "export", "verify"),
            check=checked,
        )
    )
