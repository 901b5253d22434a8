# SPDX-License-Identifier: Apache-2.0
"""Quantise a checkpoint for TensorRT-LLM: `python quantise.py --request R.json --result S.json`.

The working directory is a fresh staging folder. Only the result is written outside it.
builders/README.md has the contract (request, result, progress lines, exit codes). The model is
evaluated before the export, which packs the weights in place.
"""

import dataclasses
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from buildlib import artefact
from buildlib.checkpoint import DecoderCheckpoint, SupportedModels, inspect_checkpoint
from buildlib.compare import require_min_exact_match
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.problems import BuildError
from buildlib.program import Stages, print_line, run_program
from buildlib.prompts import EvaluationPrompt, load_tokenizer, read_prompts
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from calibration import read_samples
from choices import BUILDER, QuantiseChoices, read_choices
from folders import CHECKPOINT, FOLDERS
from llm_arguments import DEFAULT_MAX_NUM_TOKENS
from recipes import ARCHITECTURES, RECIPES, ROPE_TYPES

_SUPPORTED = SupportedModels(BUILDER, tuple(ARCHITECTURES), ROPE_TYPES)
_PACKAGES = ("nvidia-modelopt", "safetensors", "tokenizers", "torch", "transformers")
# Older versions have another configuration format and read other parts of a model.
_MIN_MODELOPT = (0, 47)


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Quantise the checkpoint into the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    request, checkpoint, choices, limits = check_request(file)
    _require_modelopt()
    packages = installed_versions(_PACKAGES)
    tokenizer = load_tokenizer(checkpoint.folder)
    prompts = read_prompts(request.evaluation, tokenizer, limits.max_seq_len)
    samples = _samples(request, choices, tokenizer)
    with stages.stage("load"):
        # Imported here, because a checkpoint with a problem must not cost seconds.
        import quantisation

        quantisation.require_device(request)
        artefact.create_folders(FOLDERS)
        model = quantisation.load_original(request, choices)
    with stages.stage("calibrate"):
        model = quantisation.quantise(model, choices, samples)
    evaluation = None
    if prompts:
        with stages.stage("evaluate"), quantisation.with_built_weights(model, choices) as built:
            evaluation = _evaluate(request, built, checkpoint, prompts, tokenizer)
    _export(request, choices, checkpoint, model, stages)
    return {
        **_result_objects(checkpoint, limits, choices, len(samples)),
        "versions": packages,
        "evaluation": evaluation,
        "durations_seconds": stages.durations,
    }


def check_request(
    file: Path,
) -> tuple[BuilderRequest, DecoderCheckpoint, QuantiseChoices, ResolvedLimits]:
    """Read and check a request with the standard library only. Raises BuildError."""
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
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_MODELOPT:
        min_version = ".".join(map(str, _MIN_MODELOPT))
        raise BuildError(
            f"the environment has nvidia-modelopt {version}, and this stage needs {min_version} "
            "or newer",
            remedy="Use the runner venv, which makes an environment with the right version.",
        )


def _samples(request: BuilderRequest, choices: QuantiseChoices, tokenizer: Any) -> list[list[int]]:
    if choices.calibration is None:
        return []
    requested_samples = (
        request.calibration.samples if request.calibration else choices.calibration.samples
    )
    if requested_samples > choices.calibration.samples:
        print_line(
            f"AWQ calibrates on {choices.calibration.samples} of the {requested_samples} requested "
            "samples: it searches a scale for every layer on each, and gains nothing from more"
        )
    return read_samples(choices.calibration, tokenizer)


def _evaluate(
    request: BuilderRequest,
    model: Any,
    checkpoint: DecoderCheckpoint,
    prompts: list[EvaluationPrompt],
    tokenizer: Any,
) -> dict[str, Any]:
    from buildlib.reference import load_model
    from evaluation import evaluate

    reference = load_model(request).to(model.device)
    evaluation = evaluate(reference, model, checkpoint, prompts, tokenizer)
    print_line(
        f"{evaluation.prompts - evaluation.diverged} of {evaluation.prompts} answers are equal; "
        f"mean KL divergence {evaluation.mean_kl_divergence:.3g} nats per token, perplexity "
        f"{evaluation.perplexity:.4f} (the checkpoint's own: {evaluation.reference_perplexity:.4f})"
    )
    higher = RECIPES[request.precision].higher
    require_min_exact_match(
        evaluation,
        request,
        remedy=f"Set engine.precision to {higher}, give engine.calibration.data more like what "
        "users ask, or accept less with a lower min_exact_match.",
    )
    return dataclasses.asdict(evaluation)


def _export(
    request: BuilderRequest,
    choices: QuantiseChoices,
    checkpoint: DecoderCheckpoint,
    model: Any,
    stages: Stages,
) -> None:
    from checks import verify_export
    from export import export

    with stages.stage("export"):
        export(model, checkpoint, choices)
        artefact.grant_read_access(CHECKPOINT)
        artefact.copy_tokenizer(checkpoint.folder)
    with stages.stage("verify"):
        tensors, worst = verify_export(CHECKPOINT, checkpoint.folder, request.precision, choices)
        share = f"; the largest rounding error is {worst:.0%} of the format's tolerance"
        print_line(f"{tensors} tensors are what they must be{share if worst else ''}")


def _result_objects(
    checkpoint: DecoderCheckpoint, limits: ResolvedLimits, choices: QuantiseChoices, samples: int
) -> dict[str, Any]:
    from quantisation import hardware

    algorithm = choices.recipe.quant_algo
    return {
        "files": artefact.list_files(FOLDERS),
        # Known once the engine is compiled or packaged.
        "tensors": {"inputs": [], "outputs": []},
        "limits": dataclasses.asdict(limits),
        "model": checkpoint.to_result(),
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
            check=check_request,
        )
    )
