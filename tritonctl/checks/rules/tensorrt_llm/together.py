# SPDX-License-Identifier: Apache-2.0
"""TC76x: mismatches between the models of NVIDIA's inflight_batcher_llm template.

Sources: triton_backend/all_models/inflight_batcher_llm in https://github.com/NVIDIA/TensorRT-LLM;
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from tritonctl.checks.analysis.nesting import step_models
from tritonctl.checks.analysis.trtllm_model import deployment_of, filled_parameter
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error, warning
from tritonctl.checks.source_span import Span

_NAME = "tensorrt_llm_model_name"
_NAMES = (_NAME, "tensorrt_llm_draft_model_name", "multimodal_encoders_name")
_DEFAULT = "tensorrt_llm"
# model.py always calls these, independent of the configuration.
_FIXED_MODELS = ("preprocessing", "postprocessing")
_CALL = 'model_name="preprocessing"'


def _is_bls_model(model: Model) -> bool:
    """Whether a model is a tensorrt_llm_bls: a Python model with the template's parameters."""
    parameters = model.config.message.parameters
    return model.backend == "python" and (_NAME in parameters or "accumulate_tokens" in parameters)


def _bls_models(repository: Repository) -> Iterator[tuple[Model, str]]:
    """Yield each tensorrt_llm_bls with the name of the model it calls for tokens."""
    for model in repository.models.values():
        if _is_bls_model(model):
            yield model, filled_parameter(model.config, _NAME) or _DEFAULT


@error(
    "TC760 decoupled-unlike",
    summary="a tensorrt_llm_bls and its called model, of which only one is decoupled",
    reason="Either the call fails (`exec` of a decoupled model needs decoupled=True), or streaming "
    "does (`Streaming is only supported if model is deployed using decoupled mode`).",
    answers=("tensorrtllm_backend#626",),
    shows="elsewhere",
)
def decoupled(repository: Repository) -> Iterator[Hit]:
    for model, name in _bls_models(repository):
        called_model = repository.models.get(name)
        if called_model is None:
            continue
        is_decoupled = model.config.message.model_transaction_policy.decoupled
        called_is_decoupled = called_model.config.message.model_transaction_policy.decoupled
        if deployment_of(called_model, repository) and is_decoupled != called_is_decoupled:
            yield Hit(
                f"{model.name} is {'' if is_decoupled else 'not '}decoupled, and {name}, which it "
                f"calls, is{'' if called_is_decoupled else ' not'}",
                "set decoupled to the same value in both: true for streams",
                model.config.span("model_transaction_policy", "decoupled"),
                model=model,
            )


@warning(
    "TC761 called-model-absent",
    summary="a tensorrt_llm_bls that calls a model outside the repository",
    reason="The model loads, but every request fails unless another repository of the server has "
    "the called model.",
    shows="elsewhere",
)
def missing_called_model(repository: Repository) -> Iterator[Hit]:
    for model, name in _bls_models(repository):
        for key, called_name in _called_names(model, name):
            if called_name not in repository.models:
                yield Hit(
                    f"{model.name} calls {called_name}, which is not in this repository",
                    f"add it, or name another model in {key}",
                    model.config.span("parameters", key),
                    model=model,
                )
        code = model.code
        for fixed in _FIXED_MODELS if code and _CALL in code.source.text else ():
            if code and fixed not in repository.models:
                start = code.source.text.index(_CALL)
                yield Hit(
                    f"{model.name} calls {fixed}, which is not in this repository",
                    f"add the model under the name {fixed}, which model.py requires",
                    Span(start, start + len(_CALL)),
                    code.source,
                    model=model,
                )


def _called_names(model: Model, name: str) -> Iterator[tuple[str, str]]:
    for key in _NAMES:
        called_name = filled_parameter(model.config, key)
        if called_name or key == _NAME:
            yield key, called_name or name


@advice(
    "TC762 requests-one-by-one",
    summary="a tensorrt_llm_bls with a single instance",
    reason="The instance holds a request until its response is complete: the engine, which could "
    "batch, gets one request at a time.",
    shows="elsewhere",
)
def one_at_a_time(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not _is_bls_model(model):
        return
    if sum(max(group.count, 1) for group in config.message.instance_group) <= 1:
        yield Hit(
            f"{model.name} has one instance, which processes one request at a time",
            "set `count` to the engine's max_batch_size, so that the engine gets requests together",
            config.span("instance_group"),
        )


@warning(
    "TC763 tokenizers-differ",
    summary="a pipeline whose steps name different tokenizers",
    reason="Another tokenizer maps token ids to other text: responses are garbled.",
    shows="elsewhere",
)
def differing_tokenizers(repository: Repository) -> Iterator[Hit]:
    reported = set()
    for names in _pipelines(repository):
        models_with_path = [(model, path) for model, path in _tokenizers(repository, names) if path]
        for model, path in models_with_path[1:]:
            if path != models_with_path[0][1] and model.name not in reported:
                reported.add(model.name)
                yield Hit(
                    f"tokenizer_dir is {path}, and in {models_with_path[0][0].name} it is "
                    f"{models_with_path[0][1]}",
                    "name the same tokenizer in both",
                    model.config.span("parameters", "tokenizer_dir", "string_value"),
                    model=model,
                )


def _pipelines(repository: Repository) -> Iterator[list[str]]:
    """Yield the models of each pipeline in the order of the configuration."""
    for model in repository.models.values():
        if model.backend == "ensemble":
            yield step_models(model)
    if any(_bls_models(repository)):
        yield list(_FIXED_MODELS)


def _tokenizers(repository: Repository, names: list[str]) -> Iterator[tuple[Model, str | None]]:
    for name in names:
        model = repository.models.get(name)
        if model and model.backend == "python":
            path = filled_parameter(model.config, "tokenizer_dir")
            yield model, posixpath.normpath(path) if path else None
